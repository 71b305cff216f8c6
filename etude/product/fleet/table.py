"""How agents side by side did: a table for people, one JSON object for programs.

Owns both, of a run that has ended or of one that is kept. Answers to one task stand in the order of their rank, several
tasks in their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from etude.harness.fleet import Conflict
from etude.plain import plain_line, short_line
from etude.product.fleet.board import short
from etude.product.fleet.run_records import Done, RunRecord, too_large
from etude.product.terminal.show import stopped_by

_TESTS = {True: ("pass", "green"), False: ("fail", "red"), None: ("–", "dim")}


def rows_of(run: RunRecord) -> list[Done]:
    """Those that have ended, in the order they are told of."""
    return run.ranked() if run.one_task else sorted(run.done, key=lambda done: list(run.tasks).index(done.name))


def table(run: RunRecord, conflicts: Sequence[Conflict]) -> RenderableType:
    """For a console of at least 80 columns."""
    costs = any(done.spent.money for done in run.done)
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    rows, best = rows_of(run), run.best()
    cells = [_cells(done, run.currency if costs else None, best is done) for done in rows]
    headings = ("agent", "tests", "lints", "change", "turns", "tokens", *(["cost"] if costs else []), "time")
    for at, heading in enumerate(headings):
        drawn.add_column(heading, no_wrap=True, min_width=max(len(heading), *(len(row[at]) for row in cells), 0))
    drawn.add_column("" if run.one_task else "task", overflow="ellipsis", no_wrap=True)
    for done, row in zip(rows, cells, strict=True):
        drawn.add_row(*row, _note(done, run))
    waiting = [name for name in run.tasks if name not in {done.name for done in run.done}]
    lines = [
        Text(f"{each.first} and {each.second} conflict in {plain_line(', '.join(each.paths))}", "yellow")
        for each in conflicts
    ]
    lines += [Text(f"{name} has no result", "dim") for name in waiting]
    lines += [
        Text(f"not in the result of {done.name}: {too_large(done.entry.result.left_out)}", "yellow")
        for done in rows if done.entry.result is not None and done.entry.result.left_out
    ]  # fmt: skip
    return Group(drawn, *lines)


def _cells(done: Done, currency: str | None, best: bool) -> list[Text]:
    marks, result, money = done.entry.marks, done.entry.result, done.spent.money
    size = "–" if result is None else "none" if result.empty else f"+{result.added} -{result.removed}"
    files = f", {result.files} file{'s' * (result.files != 1)}" if result is not None and result.files else ""
    return [
        Text(done.name, "bold green" if best else ""),
        Text(*_TESTS[marks.tests_pass]),
        Text("–" if marks.lints is None else str(marks.lints)),
        Text(size + files),
        Text(str(done.turns)),
        Text(short(done.spent.prompt + done.spent.completion).removesuffix(" tok")),
        *([Text("–" if money is None else f"{currency}{money:.2f}")] if currency is not None else []),
        Text(f"{int(done.seconds) // 60}:{int(done.seconds) % 60:02}"),
    ]


def _note(done: Done, run: RunRecord) -> Text:
    if done.entry.error:
        return Text(short_line(done.entry.error), "red")
    limit = stopped_by(done.stop) if done.stop not in ("finished", "") else ""
    said = ("the best" if run.best() is done else "") if run.one_task else short_line(done.task)
    return Text("; ".join(each for each in (limit, said) if each), "yellow" if limit else "")


def as_json(run: RunRecord, conflicts: Sequence[Conflict]) -> dict[str, Any]:
    """`agents` are in the order of the table; `usage` is the endpoint's own count, `cost` is null without a price."""
    best = run.best()
    return {
        "run_id": run.id,
        "start": run.start,
        "too_large": list(run.left_out),
        "best": best.name if best else None,
        "agents": [_row(done) for done in rows_of(run)],
        "conflicts": [{"agents": [each.first, each.second], "paths": list(each.paths)} for each in conflicts],
    }


def _row(done: Done) -> dict[str, Any]:
    entry, spent = done.entry, done.spent
    result = entry.result
    return {
        "agent": done.name,
        "task": done.task,
        "session_id": done.session,
        "stop": done.stop,
        "error": entry.error,
        "tests_pass": entry.marks.tests_pass,
        "tests_output": entry.marks.output,
        "new_lints": entry.marks.lints,
        "commit": result.commit if result and not result.empty else None,
        "files": result.files if result else 0,
        "added": result.added if result else 0,
        "removed": result.removed if result else 0,
        "too_large": list(result.left_out) if result else [],
        "turns": done.turns,
        "usage": {
            "prompt_tokens": spent.prompt,
            "cached_tokens": spent.cached,
            "completion_tokens": spent.completion,
        },
        "cost": spent.money,
        "seconds": done.seconds,
    }
