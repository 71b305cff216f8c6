"""Files in pieces that can be read on their own.

Owns `pieces_of`: stretches of lines that begin, where they can, with a definition or after a blank line at the
shallowest indentation, and are no longer than a screen. No parser: this must hold for every language, broken files
included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_LINES = 60
_MIN_LINES = 8
_DEFINITION = re.compile(
    r"\s*(?:@|(?:(?:export|default|public|private|protected|internal|static|async|abstract|final|override|pub(?:\(\w+\))?|"
    r"unsafe|inline|virtual|extern)\s+)*"
    r"(?:def|class|func|fn|function|interface|struct|enum|trait|impl|type|module|namespace|protocol|object)\b)"
)


def is_definition(line: str) -> bool:
    """Whether a line looks like the beginning of a definition, or of what decorates one."""
    return _DEFINITION.match(line) is not None


def pieces_of(lines: Sequence[str]) -> list[tuple[int, int]]:
    """(first, end) of each piece, from 0, without gaps."""
    pieces, start = [], 0
    while start < len(lines):
        end = min(start + MAX_LINES, len(lines))
        if end < len(lines):
            end = max(range(start + _MIN_LINES, end + 1), key=lambda at: (_fitness(lines, at), at))
        pieces.append((start, end))
        start = end
    return pieces


def _fitness(lines: Sequence[str], at: int) -> tuple[int, int, int]:
    """How good it is to begin a piece here: not below a decorator, shallow, at a definition, after a blank line."""
    line = lines[at]
    if not line.strip() or lines[at - 1].lstrip().startswith("@"):
        return (-100, 0, 0)
    depth = len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip())
    return (-depth, int(is_definition(line)), int(not lines[at - 1].strip()))
