"""Draws the life of a sample for the docs: `python tools/draw_slots.py docs/slots.svg`.

The picture is made from `etude.rollouts.slots.TRANSITIONS` and nothing else: states in the order of the way that most
samples go, every transition an arrow with its sentence. A test holds the file in docs to it.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from etude.rollouts.slots import DROPPED, ENDS, REASONS, STATES, TRANSITIONS, State

LEFT, TOP, WIDE, HIGH, STEP = 240, 24, 120, 34, 76
BACK, APART = 160, 22
"""How far left arrows go back, and how far from each other."""
RIGHT = 250
"""Room for the sentences of arrows that go on."""
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2937 }
  .state { font-weight: 600; text-anchor: middle }
  .when { fill: #4b5563; font-size: 12px }
  .back { text-anchor: end }
  rect { fill: #eef2ff; stroke: #6366f1; rx: 8 }
  .trained { fill: #dcfce7; stroke: #16a34a }
  .dropped { fill: #fee2e2; stroke: #dc2626 }
  path { fill: none; stroke: #6b7280; stroke-width: 1.4 }
  .again { stroke: #d97706 }
  .drop { stroke: #dc2626; stroke-dasharray: 4 3 }
"""


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def sentence(x: float, y: float, text: str, kind: str = "", width: int = 38) -> str:
    """Text whose lines lie around `y`."""
    lines = wrapped(text, width)
    first = y - 7.5 * (len(lines) - 1) + 4
    rows = (f'<tspan x="{x}" y="{first + 15 * at:g}">{escape(line)}</tspan>' for at, line in enumerate(lines))
    return f'<text class="when {kind}">{"".join(rows)}</text>'


def draw() -> str:
    """The picture as SVG."""
    way: list[State] = [state for state in STATES if state != "dropped"]
    top = {state: TOP + STEP * at for at, state in enumerate(way)}
    top["dropped"] = top[way[-1]]
    drops = [before for before, after in TRANSITIONS if after == "dropped"]
    rail = LEFT + WIDE + RIGHT
    parts: list[str] = []
    backwards = [edge for edge in TRANSITIONS if edge[1] != "dropped" and top[edge[1]] < top[edge[0]]]
    for before, after in TRANSITIONS:
        said = TRANSITIONS[before, after]
        if after == "dropped":
            y = top[before] + HIGH * 0.3
            parts.append(f'<path class="drop" d="M{LEFT + WIDE} {y:g} H{rail}"/>')
        elif (before, after) in backwards:
            nearest = sum(top[other[0]] - top[other[1]] < top[before] - top[after] for other in backwards)
            x, y, to = LEFT - BACK - APART * nearest, top[before] + HIGH * 0.35, top[after] + HIGH * 0.65
            down, up = f"Q{x:g} {y:g} {x:g} {y - 8:g} V{to + 8:g}", f"Q{x:g} {to:g} {x + 8:g} {to:g}"
            line = f"M{LEFT} {y:g} H{x + 8:g} {down} {up} H{LEFT - 3}"
            parts.append(f'<path class="again" marker-end="url(#again)" d="{line}"/>')
            parts.append(sentence(LEFT - 8, y - 9, said, "back", 34))
        else:
            x, y = LEFT + WIDE / 2, top[before] + HIGH
            parts.append(f'<path marker-end="url(#on)" d="M{x:g} {y} V{top[after] - 3}"/>')
            parts.append(sentence(x + 12, (y + top[after]) / 2, said))
    end = top["dropped"]
    parts.append(f'<path class="drop" marker-end="url(#drop)" d="M{rail} {top[drops[0]]} V{end - 3}"/>')
    parts.append(
        sentence(rail + 10, top["running"] + HIGH / 2, f"from any state here: {DROPPED.partition(';')[0]}", "", 20)
    )
    for state, y in top.items():
        x = rail - WIDE / 2 if state == "dropped" else LEFT
        kind = f' class="{state}"' if state in ENDS else ""
        parts.append(f'<rect{kind} x="{x:g}" y="{y}" width="{WIDE}" height="{HIGH}"/>')
        parts.append(f'<text class="state" x="{x + WIDE / 2:g}" y="{y + HIGH / 2 + 5:g}">{state}</text>')
    parts.append(sentence(rail + 70, end + HIGH / 2, " · ".join(REASONS), "", 24))
    return _page(rail + 240, end + HIGH + 36, parts)


def _page(width: int, height: int, parts: list[str]) -> str:
    colours = {"on": "#6b7280", "again": "#d97706", "drop": "#dc2626"}
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" style="fill: {colour}; stroke: none"/></marker>'
        for name, colour in colours.items()
    )
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    )
    title, body = "<title>The life of a sample</title>", "\n".join(parts)
    return f"{opening}\n{title}\n<style>{STYLE}</style>\n<defs>{heads}</defs>\n{body}\n</svg>\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw())
