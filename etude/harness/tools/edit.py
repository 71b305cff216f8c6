"""The matching behind `edit_file`: replace one stretch of a text, or say exactly why not.

Owns `replace_once`. Agents lose more turns to edits that do not match than to anything else, so a miss is answered
with what would have matched. `old` must occur once. It is compared exactly first, then without regard to trailing
whitespace and carriage returns; never without regard to indentation, which is meaning. Pure: touches no file.
"""

from __future__ import annotations

import difflib
import itertools
import re

from etude.harness.tools.base import ToolError

_SHOWN_LINES = 8  # of an ambiguous match
_SEARCHED_LINES = 4000  # for the nearest line; more would cost seconds


def replace_once(text: str, old: str, new: str) -> tuple[str, str]:
    """The text with its one occurrence of `old` replaced, and a note where the match was not exact (else empty).

    Raises ToolError where `old` is absent or ambiguous. `new` takes over the text's line endings.
    """
    if old == new:
        raise ToolError("old and new are the same")
    if not old.strip():
        raise ToolError("old is blank; give the text to replace")
    spans, note = [(at, at + len(old)) for at in _find_all(text, old)], ""
    if not spans:
        found = re.finditer(_loose(old), text)
        spans, note = [match.span() for match in itertools.islice(found, 50)], "whitespace at line ends ignored"
    if not spans:
        raise ToolError(_explain_miss(text, old, new))
    if len(spans) > 1:
        raise ToolError(
            f"old is at lines {_line_numbers(text, [start for start, _ in spans])}; include lines around it"
        )
    [(start, end)] = spans
    if "\r\n" in text:
        new = new.replace("\r\n", "\n").replace("\n", "\r\n")
    return text[:start] + new + text[end:], note


def _find_all(text: str, old: str) -> list[int]:
    """Where `old` starts, overlapping occurrences included: they too would be ambiguous."""
    starts, at = [], text.find(old)
    while at >= 0 and len(starts) < 50:
        starts.append(at)
        at = text.find(old, at + 1)
    return starts


def _loose(old: str) -> str:
    """A pattern for `old` with any whitespace at its line ends."""
    return r"[ \t\r]*\n".join(re.escape(line.rstrip()) for line in old.split("\n"))


def _line_numbers(text: str, starts: list[int]) -> str:
    numbers = [str(text.count("\n", 0, start) + 1) for start in starts[:_SHOWN_LINES]]
    return ", ".join(numbers) + (", …" if len(starts) > _SHOWN_LINES else "")


def _explain_miss(text: str, old: str, new: str) -> str:
    if new.strip():
        there = re.compile(rf"^[ \t]*{_loose(new.strip())}[ \t\r]*$", re.MULTILINE).search(text)
        if there:
            first = there.start() + len(there.group()) - len(there.group().lstrip())
            return f"old is not there; new already is, at line {_line_numbers(text, [first])}"
    number, line = _nearest(text.split("\n")[:_SEARCHED_LINES], old)
    return f"old is not there; nearest is line {number}: {line[:200].rstrip()}" if number else "old is not there"


def _nearest(lines: list[str], old: str) -> tuple[int, str]:
    """The line where the most similar place first departs from `old`, counted from 1; 0 if nothing is similar."""
    asked = old.strip("\n").split("\n")
    asked = asked[next(k for k, line in enumerate(asked) if line.strip()) :]
    stripped = [line.strip() for line in lines]
    [anchor] = difflib.get_close_matches(asked[0].strip(), stripped, n=1, cutoff=0.5) or [None]
    if anchor is None:
        return 0, ""
    start = stripped.index(anchor)
    if asked[0].strip() in anchor:
        for k in range(1, min(len(asked), len(lines) - start)):
            if lines[start + k].rstrip() != asked[k].rstrip():
                return start + k + 1, lines[start + k]
    return start + 1, lines[start]
