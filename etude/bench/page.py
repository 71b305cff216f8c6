"""The report of a run: one HTML file with everything in it.

Owns how report.html looks: the rates with their intervals, solved against tokens, a row of marks for every task, each
leading to its session. Everything that was written by a model or a task is escaped. Computes no figure that the summary
has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from etude.bench.attempts import Attempt
from etude.bench.html import headline, text, write_html
from etude.bench.results import Run, session_events
from etude.bench.text import CONDUCT, FAULTS, comparison_text, cost_of, percent, policy_name
from etude.records import Event

SESSIONS_BYTES = 4_000_000
"""So much of sessions is on the page; those of attempts that were not solved come first."""
_SHOWN = 1500


def write_page(run: Run, summary: Mapping[str, Any], compared: Mapping[str, Any] | None = None) -> Path:
    """Write report.html into the run's directory; returns its path."""
    first = summary["pass"]["1"]
    big = [
        (percent(first["rate"]), f"pass@1, 95% interval {percent(first['low'])} to {percent(first['high'])}"),
        (f"{summary['solved']} of {summary['judged']}", "attempts solved"),
        (str(summary["tasks"]), "tasks"),
    ]
    named = summary["no_verdict"]
    parts = [
        f"<h1>{text(summary['name'])}</h1><div class=faint>{text(policy_name(summary['policy']))}</div>",
        headline(big),
        "<h2>Against the earlier run</h2><pre class=told>" + text(comparison_text(compared)) + "</pre>"
        if compared
        else "",
        "<h2>Rates</h2>" + _rates(summary),
        "<h2>Solved against tokens</h2>" + _scatter(run),
        "<h2>Task by task</h2>" + _matrix(run),
        "<h2>How it works, a session on average</h2>" + _conduct(summary),
        "<h2>What the judge says</h2>" + _bars(list(summary["rubric"].items())) if summary["rubric"] else "",
        "<h2>Without a verdict, in no rate</h2><pre>"
        + text("\n".join(f"{one['task']} #{one['attempt']}: {one['why']}" for one in named))
        + "</pre>"
        if named
        else "",
        "<h2>Sessions</h2>" + _sessions(run),
    ]
    return write_html(run.directory / "report.html", summary["name"], parts)


def _rates(summary: Mapping[str, Any]) -> str:
    rows = [(f"pass@{k}", found) for k, found in summary["pass"].items()]
    return _bars([*rows, *(summary["splits"].items() if len(summary["splits"]) > 1 else ())])


def _bars(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """A rate a row, with its interval."""
    height = 26 * len(rows) + 22
    lines = [
        f'<line class=axis x1="{_x(at)}" x2="{_x(at)}" y1=0 y2="{height - 20}"/>' for at in (0, 0.25, 0.5, 0.75, 1)
    ]
    lines += [f'<text x="{_x(at) - 10}" y="{height - 5}">{at:.0%}</text>' for at in (0, 0.5, 1)]
    for place, (name, found) in enumerate(rows):
        y = 26 * place + 14
        lines.append(f'<text x=0 y="{y + 4}">{text(name)}</text>')
        if found["rate"] is None:
            continue
        low, rate, high = (_x(found[key]) for key in ("low", "rate", "high"))
        lines.append(f'<line class=bar stroke-width=2 x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>')
        lines.append(f'<circle class=dot style="fill-opacity:1" cx="{rate}" cy="{y}" r=5 />')
        lines.append(f'<text x=700 y="{y + 4}">{percent(found["rate"])}</text>')
    return f'<svg viewBox="0 0 760 {height}" width="100%">{"".join(lines)}</svg>'


def _x(share: float) -> float:
    return round(90 + 590 * share, 1)


def _scatter(run: Run) -> str:
    """A dot a task: its mean of sampled tokens, and its share solved."""
    of: dict[str, list[Attempt]] = {}
    for attempt in run.attempts:
        if attempt.solved is not None:
            of.setdefault(attempt.task, []).append(attempt)
    points = {
        task: (fmean(one.usage.get("sampled_tokens", 0) for one in each), fmean(bool(one.solved) for one in each))
        for task, each in of.items()
    }
    most = max((tokens for tokens, _ in points.values()), default=0.0) or 1.0
    dots = [
        f'<circle class=dot cx="{_x(tokens / most)}" cy="{160 - 140 * rate:.1f}" r=5>'
        f"<title>{text(task)}: {rate:.0%}, {tokens:.0f} tokens</title></circle>"
        for task, (tokens, rate) in points.items()
    ]
    frame = [f'<line class=axis x1=90 x2=680 y1="{y}" y2="{y}"/><text x=50 y="{y + 4}">{name}</text>'
             for y, name in ((20, "100%"), (90, "50%"), (160, "0%"))]  # fmt: skip
    ends = f"<text x=90 y=182>0</text><text x=600 y=182>{most:,.0f} sampled tokens</text>"
    return f'<svg viewBox="0 0 760 190" width="100%">{"".join(frame)}{ends}{"".join(dots)}</svg>'


def _matrix(run: Run) -> str:
    rows: dict[str, list[str]] = {}
    for attempt in sorted(run.attempts, key=lambda one: one.attempt):
        rows.setdefault(attempt.task, []).append(_mark(attempt))
    return "<div class=tasks>" + "".join(
        f"<div><span>{text(task)}</span><span>{''.join(marks)}</span></div>" for task, marks in rows.items()
    ) + "</div>"  # fmt: skip


def _mark(attempt: Attempt) -> str:
    kind, sign = {True: ("yes", "✓"), False: ("no", "✗"), None: ("none", "!")}[attempt.solved]
    return f'<a class={kind} title="{text(attempt.why)}" href="#{_anchor(attempt)}">{sign}</a>'


def _anchor(attempt: Attempt) -> str:
    return text(f"{attempt.task}-{attempt.attempt}".replace(" ", "_"))


def _conduct(summary: Mapping[str, Any]) -> str:
    rows = [(name, summary["conduct"][key]) for key, name in CONDUCT.items()]
    rows += [(FAULTS[key], value) for key, value in summary["faults"].items()]
    table = "<table>" + "".join(
        f"<tr><th>{name}</th><td class=n>{value:.2f}</td></tr>" for name, value in rows if value is not None
    ) + "</table>"  # fmt: skip
    return table + (f"<p>{cost_of(summary['cost'])}</p>" if summary["cost"]["total"] is not None else "")


def _sessions(run: Run) -> str:
    parts, size, left_out = [], 0, 0
    for attempt in sorted(run.attempts, key=lambda one: bool(one.solved)):
        kind, sign = ("yes", "✓") if attempt.solved else ("no", "✗")
        body = _session(session_events(run, attempt)) if size < SESSIONS_BYTES else ""
        left_out += not body
        size += len(body)
        title = f"{attempt.task} #{attempt.attempt} · {attempt.why} · {attempt.stop}"
        findings = f"<pre>{text(chr(10).join(attempt.findings))}</pre>" if attempt.findings else ""
        parts.append(
            f'<details id="{_anchor(attempt)}"><summary><span class={kind}>{sign}</span> {text(title)}</summary>'
            f"{findings}{body}</details>"
        )
    told = f"<p class=faint>{left_out} are in sessions/ only.</p>" if left_out else ""
    return told + "".join(parts)


def _session(events: Iterable[Event]) -> str:
    parts = []
    for event in events:
        data = event.data
        if event.kind == "prompt":
            parts.append(f"<p><b>{text(_cut(data.get('user')))}</b></p>")
        elif event.kind == "completion":
            parts.append(f"<pre>{text(_cut(data.get('text')))}</pre>")
        elif event.kind == "tool_result":
            kind = "no" if data.get("error") else "faint"
            parts.append(f"<pre class={kind}>{text(_cut(data.get('text')))}</pre>")
    return "".join(parts)


def _cut(told: Any) -> str:
    said = "" if told is None else str(told)
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}\n… {len(said) - _SHOWN} more characters"
