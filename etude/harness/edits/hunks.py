"""One edit, and the written form of several: blocks of raw text between markers.

    <<<<<<< SEARCH
    the text there is
    =======
    the text in its place
    >>>>>>> REPLACE

Owns `Edit` and `parse_hunks`. The form is what models know from other agents, and like every value of a call it is
raw: nothing in it is escaped. A text that itself holds such markers, a conflict to be resolved say, is edited with
`old` and `new` instead. Never looks at a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SEARCH = re.compile(r"<{5,9} ?SEARCH>?\s*")
_MIDDLE = re.compile(r"={5,9}\s*")
_REPLACE = re.compile(r">{5,9} ?REPLACE\s*")
FORM = "write each as a line <<<<<<< SEARCH, the old text, a line =======, the new text, a line >>>>>>> REPLACE"


@dataclass(frozen=True)
class Edit:
    """`old` becomes `new`; `every` of its occurrences, or the only one."""

    old: str
    new: str
    every: bool = False


def parse_hunks(text: str) -> list[Edit]:
    """The edits of a call, in order. Raises ValueError saying which line is wrong and how it should be."""
    edits: list[Edit] = []
    old: list[str] = []
    new: list[str] = []
    into: list[str] | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if into is None:
            if _SEARCH.fullmatch(line):
                old, new = [], []
                into = old
            elif line.strip():
                raise ValueError(f"line {number} of hunks stands outside a hunk; {FORM}")
        elif into is old and _MIDDLE.fullmatch(line):
            into = new
        elif into is new and _REPLACE.fullmatch(line):
            edits.append(Edit("\n".join(old), "\n".join(new)))
            into = None
        elif _SEARCH.fullmatch(line) or _MIDDLE.fullmatch(line) or _REPLACE.fullmatch(line):
            raise ValueError(f"line {number} of hunks is a marker out of order; {FORM}; or give old and new instead")
        else:
            into.append(line)
    if into is not None:
        raise ValueError(f"the last of hunks is not closed; {FORM}")
    if not edits:
        raise ValueError(f"hunks is empty; {FORM}")
    return edits
