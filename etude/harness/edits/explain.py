"""The answer to an edit that is refused: enough to write the next one without reading the file again.

Owns the words and nothing else. Lines are counted from 1 here, as the tools count them.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from etude.harness.edits.places import Match, likely, without_line_end, without_spacing

_MAX_PLACES = 50
_MAX_ROWS = 40
_MAX_WIDTH = 200
_SEARCHED_LINES = 4000  # for a line that is only similar; more would cost seconds


def ambiguous(file: Sequence[str], spans: Sequence[tuple[int, int]], head: str = "old is in {} places") -> str:
    """`spans` are first line and line after the last, from 0. Every place is named, with the line before it."""
    rows = []
    for start, end in spans[:_MAX_PLACES]:
        before = next((line for line in reversed(file[:start]) if line.strip()), None)
        where = f"lines {start + 1}-{end}" if end - start > 1 else f"line {start + 1}"
        rows.append(where + (f", after: {before.strip()[:_MAX_WIDTH]}" if before is not None else ", at the top"))
    if len(spans) > _MAX_PLACES:
        rows.append(f"and at lines {', '.join(str(start + 1) for start, _ in spans[_MAX_PLACES:])}")
    return "\n".join([f"{head.format(len(spans))}; give lines around it that are in one only:", *rows])


def missing(file: Sequence[str], asked: Sequence[str], because: str = "") -> str:
    """The place that is nearest, as a diff from what was asked to what is there."""
    if len(asked) > 1 and not asked[-1]:
        asked = asked[:-1]  # the line end after the last
    place = next(iter(likely(file, asked)), None) or _similar(file, asked)
    if place is None:
        return f"old is not there{because}, nor anything like it"
    start, end = _around(place, len(asked), len(file))
    rows = _difference(asked, file[start:end], start)
    cut = [f"[{len(rows) - _MAX_ROWS} more lines]"] if len(rows) > _MAX_ROWS else []
    if [without_spacing(line) for line in asked] == [without_spacing(line) for line in file[start:end]]:
        tabs = any("\t" in line for line in file[start:end])
        because += f" (they differ only in spacing{'; the file has tabs' if tabs else ''})"
    head = f"old is not there{because}; nearest is lines {start + 1}-{end} (- as you gave it, + as it is):"
    return "\n".join([head, *rows[:_MAX_ROWS], *cut])


def _around(place: Match, asked: int, length: int) -> tuple[int, int]:
    """The stretch of the file in which the whole of the asked text would stand."""
    first = next(at for at, line in enumerate(place.lines) if line >= 0)
    last = next(at for at in reversed(range(asked)) if place.lines[at] >= 0)
    return max(place.lines[first] - first, 0), min(place.lines[last] + asked - last, length)


def _difference(asked: Sequence[str], there: Sequence[str], start: int) -> list[str]:
    """Rows of a diff; those of the file with their numbers. Whitespace at line ends is left out."""
    ours, theirs = [without_line_end(line) for line in asked], [without_line_end(line) for line in there]
    shift, rows = 1 + start, []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if tag != "equal":
            rows += [f"      - {_shown(line)}" for line in ours[i1:i2]]
        sign = " " if tag == "equal" else "+"
        rows += [f"{shift + j:5} {sign} {_shown(theirs[j])}" for j in range(j1, j2)]
    return rows


def _shown(line: str) -> str:
    return line if len(line) <= _MAX_WIDTH else line[:_MAX_WIDTH] + "…"


def _similar(file: Sequence[str], asked: Sequence[str]) -> Match | None:
    """The place of the line most like the one that says most, where no line is the same."""
    keys = [without_spacing(line) for line in file[:_SEARCHED_LINES]]
    says_most = max(range(len(asked)), key=lambda at: len(without_spacing(asked[at])))
    found = difflib.get_close_matches(without_spacing(asked[says_most]), keys, n=1, cutoff=0.6)
    if not found:
        return None
    lines = [-1] * len(asked)
    lines[says_most] = keys.index(found[0])
    return Match(tuple(lines), (False,) * len(asked), 0.0)
