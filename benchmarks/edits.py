"""How often an edit a model sends is made as it was meant: ours beside exact search and replace.

    python benchmarks/edits.py --repository PATH [--repository PATH ...]

Replays edits from git histories (`edit_replay/histories.py`) with the mistakes that models make
(`edit_replay/mistakes.py`): in one call each, without a second try. An edit has failed where the file is not, byte for
byte, what it was meant to become. Where the right answer is to change nothing (the text given stands in several
places, or the edit was made before), it has failed where anything was changed, and ours also where the refusal does
not name the line that was meant. It is in the wrong place where anything but whitespace at line ends was changed
outside the lines that were meant.
Exact search and replace replaces a text that occurs once and refuses all else, as most agents' tools do.

Prints a table by kind of mistake, and last a line of JSON.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from edit_replay.histories import Change, History, Hunk
from edit_replay.mistakes import MISTAKES, Case, Source

from etude.harness.edits import Edit, EditRefused, replace

MAX_LINES = 60


def ours(file: str, old: str, new: str) -> tuple[str | None, str]:
    """The text after the edit, or None and the reason it was refused."""
    try:
        return replace(file, Edit(old, new)).text, ""
    except EditRefused as refusal:
        return None, str(refusal)


def exact(file: str, old: str, new: str) -> tuple[str | None, str]:
    return (file.replace(old, new), "") if file.count(old) == 1 else (None, "")


def judge(case: Case, result: str | None, reason: str | None) -> str:
    """What became of an edit; `reason` is None where a refusal need not say anything."""
    if case.meant is None:
        if result is not None and result != case.file:
            return "wrong place"
        ambiguous = case.file.count(case.old) > 1
        return "right" if reason is None or not ambiguous or case.line in named(reason) else "unnamed"
    if result is None:
        return "refused"
    if result == case.meant:
        return "right"
    text, head, tail = (_without_line_ends(each) for each in (result, case.kept_head, case.kept_tail))
    return "wrong text" if text.startswith(head) and text.endswith(tail) else "wrong place"


def named(reason: str) -> set[int]:
    """The lines a refusal names."""
    rows = [row for row in reason.split("\n") if row.startswith(("line", "and at lines"))]
    return {int(number) for row in rows for number in re.findall(r"\d+", row.partition(", after:")[0])}


def _without_line_ends(text: str) -> str:
    """Of two equal lines, one new, nobody can say which is: whose line end has a space is no matter of place."""
    return "\n".join(line.rstrip() for line in text.split("\n"))


def sources(history: History, rng: random.Random) -> Iterator[Source]:
    """Hunks in random order, one of each change, so that no single commit weighs much."""
    changes = [change for change in history.changes() if change.hunks]
    rng.shuffle(changes)
    for change in changes:
        hunk = rng.choice(change.hunks)
        if hunk.end - hunk.start <= MAX_LINES and hunk.new_end - hunk.new_start <= MAX_LINES:
            yield from _source(history, change, hunk)


def _source(history: History, change: Change, hunk: Hunk) -> Iterator[Source]:
    before, after = history.lines(change.old), history.lines(change.new)
    if before is not None and after is not None:
        earlier = history.lines(change.before.old) if change.before else None
        yield Source(before, after, hunk, earlier, change.before.hunks if change.before else ())


def cases(histories: list[History], edits: int, rng: random.Random) -> Iterator[tuple[str, str, Case]]:
    """(kind, mistake, case), each kind by its share; repositories take turns."""
    room = {kind: edits * share // 100 for kind, (share, _) in MISTAKES.items()}
    room["as it is"] += edits - sum(room.values())
    streams = [sources(history, rng) for history in histories]
    while streams and any(room.values()):
        for stream in list(streams):
            source = next(stream, None)
            if source is None:
                streams.remove(stream)
            elif found := _mistaken(source, room, rng):
                room[found[0]] -= 1
                yield found


def _mistaken(source: Source, room: dict[str, int], rng: random.Random) -> tuple[str, str, Case] | None:
    """A case of the rarest kind this hunk lends itself to."""
    for kind in ("stale context", "duplicates", *sorted(room, key=lambda _: rng.random())):
        makers = list(MISTAKES[kind][1]) if room[kind] else []
        rng.shuffle(makers)
        for maker in makers:
            case = maker(source, rng)
            if case is not None:
                return kind, maker.__name__.replace("_", " "), case
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, action="append", help="a git directory; again for more", default=[])
    parser.add_argument("--commits", type=int, default=3000, help="how far back each history is read")
    parser.add_argument("--edits", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="print so many edits that failed")
    options = parser.parse_args()
    directories = options.repository or [Path(__file__).parents[1] / ".git"]
    histories = [History(directory, options.commits).__enter__() for directory in directories]
    for directory, history in zip(directories, histories, strict=True):
        print(f"{directory.parent.name}/{directory.name} at {history.head()}")
    counts: dict[str, dict[str, Counter[str]]] = {"ours": {}, "exact": {}}
    spent: list[float] = []
    shown = options.show
    for kind, mistake, case in cases(histories, options.edits, random.Random(options.seed)):
        started = time.process_time()
        result, reason = ours(case.file, case.old, case.new)
        spent.append(time.process_time() - started)
        outcome = judge(case, result, reason)
        _count(counts["ours"], kind, mistake, outcome)
        _count(counts["exact"], kind, mistake, judge(case, exact(case.file, case.old, case.new)[0], None))
        if outcome != "right" and shown:
            shown -= 1
            _show(mistake, outcome, case, result, reason)
    for history in histories:
        history.__exit__()
    _report(counts, spent)


def _count(counts: dict[str, Counter[str]], kind: str, mistake: str, outcome: str) -> None:
    for row in dict.fromkeys((kind, f"  {mistake}")):
        counts.setdefault(row, Counter())[outcome] += 1


def _show(mistake: str, outcome: str, case: Case, result: str | None, reason: str) -> None:
    print(f"--- {mistake}: {outcome} (line {case.line})\n<<<<\n{case.old}\n====\n{case.new}\n>>>>\n{reason}")
    if result is not None and case.meant is not None:
        print("\n".join(difflib.unified_diff(case.meant.split("\n"), result.split("\n"), "meant", "result", n=1)))


def _report(counts: dict[str, dict[str, Counter[str]]], spent: list[float]) -> None:
    print(f"{'mistake':24}{'edits':>7}{'failed':>9}{'wrong place':>13}{'exact failed':>14}")
    for row, outcomes in counts["ours"].items():
        failed, peer = (_failure_rate({row: counts[which][row]}) for which in ("ours", "exact"))
        print(f"{row:24}{outcomes.total():7}{failed:9.2%}{outcomes['wrong place']:13}{peer:14.2%}")
    kinds = {which: {kind: each[kind] for kind in MISTAKES if kind in each} for which, each in counts.items()}
    wrong = sum(outcomes["wrong place"] for outcomes in kinds["ours"].values())
    figures = {
        "edits": len(spent),
        "failure_rate": round(_failure_rate(kinds["ours"]), 4),
        "wrong_place": wrong,
        "baseline_failure_rate": round(_failure_rate(kinds["exact"]), 4),
        "ms_p50": round(sorted(spent)[len(spent) // 2] * 1000, 2),
        "ms_p99": round(sorted(spent)[len(spent) * 99 // 100] * 1000, 2),
    }
    print(json.dumps(figures))


def _failure_rate(counts: dict[str, Counter[str]]) -> float:
    total = sum(outcomes.total() for outcomes in counts.values())
    return 1 - sum(outcomes["right"] for outcomes in counts.values()) / total if total else 0.0


if __name__ == "__main__":
    main()
