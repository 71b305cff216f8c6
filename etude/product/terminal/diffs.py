"""Shows changes of files as rows.

Owns the form of diffs on the screen: what an edit changed, with line numbers, and a whole patch. Rows are (text,
style); signs stand beside colours, so that no information is in a colour alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = tuple[str, str]
_CONTEXT = 2
_ASKED_ROWS = 20
_LONGEST_COMPARED = 20_000
"""Lines of a file beyond which comparing takes longer than a person notices."""
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)")


def edit_rows(before: str, after: str, most: int) -> tuple[list[Row], int, int]:
    """What became of a file: rows, at most so many, and how many lines were added and removed."""
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > _LONGEST_COMPARED:
        old, new = _without_common_ends(old, new)
    lines = list(difflib.unified_diff(old, new, n=_CONTEXT, lineterm=""))[2:]
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    rows = list(_numbered(lines))
    return _at_most(rows, most), added, removed


def _without_common_ends(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Lines that are the same at the end are left out; comparing is what takes long, and line numbers stay."""
    same = 0
    while same < min(len(old), len(new)) and old[-1 - same] == new[-1 - same]:
        same += 1
    cut = max(same - _CONTEXT, 0)
    return old[: len(old) - cut], new[: len(new) - cut]


def _numbered(lines: Sequence[str]) -> Iterator[Row]:
    """The number is the line's in the file as it is now; of one that is gone, where it was."""
    old = new = 0
    for number, line in enumerate(lines):
        if found := _HUNK.fullmatch(line):
            old, new = int(found[1]), int(found[2])
            if number:
                yield "   ⋮", "dim"
            continue
        sign, text = line[:1], line[1:]
        yield f"{old if sign == '-' else new:>4} {sign} {text}".rstrip(), _STYLES[sign]
        old += sign != "+"
        new += sign != "-"


_STYLES = {" ": "dim", "+": "green", "-": "red"}


def patch_rows(patch: str, most: int) -> list[Row]:
    """A patch as git writes it, at most so many rows of it."""
    return _at_most([_patch_row(line) for line in patch.splitlines()], most)


def _patch_row(line: str) -> Row:
    if line.startswith(("diff --git", "+++", "---")):
        return line, "bold"
    if line.startswith("@@"):
        return line, "cyan"
    if line.startswith(("index ", "new file", "deleted file", "similarity", "rename", "old mode", "new mode")):
        return line, "dim"
    return line, _STYLES.get(line[:1], "") if line[:1] != " " else ""


def request_rows(tool: str, arguments: Mapping[str, Any]) -> list[Row]:
    """What an edit that is asked about would write, as the call says it; nothing for another call."""
    if tool == "write_file":
        signs = [("+", arguments.get("content"))]
    elif tool == "edit_file":
        signs = [("", arguments.get("hunks")), ("-", arguments.get("old")), ("+", arguments.get("new"))]
    else:
        return []
    rows = [
        (f"{sign} {line}" if sign else line, _STYLES.get(sign, ""))
        for sign, text in signs
        if text
        for line in str(text).split("\n")
    ]
    return _at_most(rows, _ASKED_ROWS)


def _at_most(rows: list[Row], most: int) -> list[Row]:
    if len(rows) <= most:
        return rows
    return [*rows[:most], (f"   … {len(rows) - most} more lines", "dim")]
