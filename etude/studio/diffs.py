"""What changed in a file, as hunks of lines, in bounded time.

Owns `hunks_of` and `counts_of`. What two sides begin and end with alike is set aside first; what is left is compared
line by line where it is not too much, and else shown as taken away and added whole. Reads no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from etude.archive.records import FileChange
from etude.studio.archive_shapes import DiffAnswer, FileAnswer, Hunk, LineKind

AROUND = 3
_MOST_PAIRS = 4_000_000
"""Lines before times lines after that are compared one with another."""
_MOST_LINES, _LONGEST_LINE = 4000, 2000
Blocks = list[tuple[int, int, int, int]]
"""Stretches that differ: [from, to) of the old lines and of the new ones."""


def is_binary(change: FileChange) -> bool:
    return any(b"\0" in side[:8000] for side in (change.before, change.after) if side)


def file_of(change: FileChange, counted: bool) -> FileAnswer:
    """A changed file as a row; `counted` says whether its lines may be."""
    binary = is_binary(change)
    added = removed = None
    if counted and not binary and not change.cut:
        blocks = _blocks(_lines(change.before), _lines(change.after))
        added, removed = sum(d - c for _, _, c, d in blocks), sum(b - a for a, b, _, _ in blocks)
    return FileAnswer(change.path, added, removed, binary, change.cut)


def hunks_of(change: FileChange) -> DiffAnswer:
    """One file's difference."""
    if is_binary(change):
        return DiffAnswer(change.path, [], True, change.cut)
    old, new = _lines(change.before), _lines(change.after)
    hunks: list[Hunk] = []
    left = _MOST_LINES
    for near in _near(_blocks(old, new)):
        if left <= 0:
            break
        hunks.append(hunk_of(old, new, near, left))
        left -= len(hunks[-1].lines)
    return DiffAnswer(change.path, hunks, False, change.cut or left <= 0)


def _lines(side: bytes | None) -> list[str]:
    return [] if not side else side.decode("utf-8", "replace").removesuffix("\n").split("\n")


def _blocks(old: Sequence[str], new: Sequence[str]) -> Blocks:
    begin = 0
    while begin < min(len(old), len(new)) and old[begin] == new[begin]:
        begin += 1
    end = 0
    while end < min(len(old), len(new)) - begin and old[-1 - end] == new[-1 - end]:
        end += 1
    before, after = old[begin : len(old) - end], new[begin : len(new) - end]
    if not before and not after:
        return []
    if len(before) * len(after) > _MOST_PAIRS:
        return [(begin, begin + len(before), begin, begin + len(after))]
    found = SequenceMatcher(None, before, after).get_opcodes()
    return [(begin + a, begin + b, begin + c, begin + d) for tag, a, b, c, d in found if tag != "equal"]


def _near(blocks: Blocks) -> list[Blocks]:
    """Blocks so close together that their surroundings meet."""
    found: list[Blocks] = []
    for block in blocks:
        if found and block[0] - found[-1][-1][1] <= 2 * AROUND:
            found[-1].append(block)
        else:
            found.append([block])
    return found


def hunk_of(old: Sequence[str], new: Sequence[str], blocks: Blocks, most: int) -> Hunk:
    """Blocks that stand together, with what is around them: at most so many lines."""
    first, last = blocks[0], blocks[-1]
    begins = max(0, first[0] - AROUND)
    lines: list[tuple[LineKind, str]] = []
    at = begins
    for a, b, c, d in blocks:
        lines += [("same", _short(line)) for line in old[at:a]]
        lines += [("removed", _short(line)) for line in old[a:b]]
        lines += [("added", _short(line)) for line in new[c:d]]
        at = b
    lines += [("same", _short(line)) for line in old[at : last[1] + AROUND]]
    return Hunk(begins + 1, begins + 1 + first[2] - first[0], lines[:most])


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…"
