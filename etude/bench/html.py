"""What the pages of benchmarks have in common: their look, escaped text, plots.

Owns the one stylesheet. A page is one file in which nothing is fetched and no script runs. Knows no figure of any run.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from etude.durable import write_whole

_STYLE = """
:root { --ink: #1c2430; --paper: #fff; --line: #d9dee7; --soft: #f5f7fa; --faint: #66708a; --good: #2a8a4a;
  --bad: #c43d33; --mark: #2f6fed }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --paper: #14181f; --line: #2c3442; --soft: #1c222c; --faint: #98a2b8 }
  svg.plot { filter: invert(.88) hue-rotate(180deg) }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper) }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 }
h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid var(--line) }
table { border-collapse: collapse; margin: .6rem 0 }
td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top; font-weight: 400 }
th { color: var(--faint) } td.n { font-variant-numeric: tabular-nums } .faint { color: var(--faint) }
.big { display: flex; gap: 1rem 2.5rem; flex-wrap: wrap; margin-top: 1rem } .big b { font-size: 1.8rem; display: block }
svg { width: 100%; height: auto }
.tasks { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .1rem 1.5rem }
.tasks div { display: flex; justify-content: space-between; gap: 1rem; overflow: hidden }
.tasks a, .tasks i { font-style: normal; text-decoration: none; padding: 0 .15rem }
.yes { color: var(--good) } .no { color: var(--bad) } .none { color: var(--faint) }
pre { background: var(--soft); padding: .5rem .7rem; border-radius: 6px; overflow-x: auto; font-size: 13px;
  margin: .3rem 0 } .told { white-space: pre-wrap }
svg text { fill: var(--faint); font-size: 11px } svg .axis { stroke: var(--line) } svg .bar { stroke: var(--mark) }
svg .dot { fill: var(--mark); fill-opacity: .55 } summary { cursor: pointer; margin: .3rem 0 }
"""


def write_html(target: Path, title: str, parts: Iterable[str]) -> Path:
    """Write the page; returns its path."""
    head = "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    head += f"<title>{text(title)}</title><style>{_STYLE}</style>"
    write_whole(target, (head + "".join(parts)).encode(errors="backslashreplace"))
    return target


def text(value: object) -> str:
    """Whatever a model or a task has written shows, and does nothing."""
    return html.escape(str(value))


def headline(figures: Iterable[tuple[str, str]]) -> str:
    """Each of the first figures, and below it what it is."""
    return "<div class=big>" + "".join(f"<div><b>{big}</b>{small}</div>" for big, small in figures) + "</div>"


def figure(width: float, height: float) -> Any:
    """Of matplotlib, to be drawn on."""
    from matplotlib.figure import Figure  # here, for it takes a second to load

    return Figure(figsize=(width, height), layout="constrained")


def svg(drawn: Any) -> str:
    """A figure as it stands in a page."""
    buffer = io.StringIO()
    drawn.savefig(buffer, format="svg", transparent=True)
    found = buffer.getvalue()
    return "<svg class=plot" + found[found.index("<svg") + len("<svg") :]
