"""Finds where a text stands in a file, even if it is not written exactly as it is there.

Owns `Match` and the ways to find one: `windows`, stretches of lines that equal the wanted ones under a normalising key,
and `likely`, the stretches that resemble them most. Lines are counted from 0 here. It only finds; whether a place is
good enough to be edited is decided in `replace`.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_CANDIDATES = 12
_COMMON = 200  # a line that stands in more places than this tells nothing
_MAX_ALIGNED = 2000  # asked lines; aligning more would take seconds


@dataclass(frozen=True)
class Match:
    """For each asked line the file's line in its place, -1 where there is none, and whether it is the same line."""

    lines: tuple[int, ...]
    same: tuple[bool, ...]
    score: float
    """The share of the asked text that is the same, lines weighed by how much they say."""

    @property
    def span(self) -> tuple[int, int]:
        """The first line and the line after the last."""
        found = [line for line in self.lines if line >= 0]
        return min(found), max(found) + 1


def without_line_end(line: str) -> str:
    return line.rstrip()


def without_spacing(line: str) -> str:
    """A line for which indentation, and how wide its gaps are, does not count."""
    return " ".join(line.split())


def windows(file: Sequence[str], asked: Sequence[str], key: Callable[[str], str]) -> list[Match]:
    """Every stretch of the file whose lines have the keys of the asked ones."""
    keys, wanted = [key(line) for line in file], [key(line) for line in asked]
    counts = Counter(keys)
    rarest = min(range(len(wanted)), key=lambda at: counts[wanted[at]])
    size, places = len(wanted), []
    for at, each in enumerate(keys):
        start = at - rarest
        if each == wanted[rarest] and start >= 0 and keys[start : start + size] == wanted:
            places.append(Match(tuple(range(start, start + size)), (True,) * size, 1.0))
    return places


def likely(file: Sequence[str], asked: Sequence[str], beside: Sequence[int] = ()) -> list[Match]:
    """The stretches that share most with the asked text, the best first; spacing does not count.

    The farther from the asked lines `beside` which something is to change, the less a line weighs.
    """
    if len(asked) > _MAX_ALIGNED:
        return []
    keys, wanted = [without_spacing(line) for line in file], [without_spacing(line) for line in asked]
    weights = [
        weight(key) / (1 + min((abs(at - other) for other in beside), default=0)) if key else 0.0
        for at, key in enumerate(wanted)
    ]
    found = (_aligned(keys, wanted, weights, offset) for offset in _offsets(keys, wanted))
    places = {place.lines: place for place in found if place is not None}
    return sorted(places.values(), key=lambda place: (-place.score, place.span))


def weight(key: str) -> float:
    """How much a line says: little for a bracket, most for a line full of names."""
    return 0.2 + min(sum(char.isalnum() for char in key), 30)


def _offsets(keys: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """How far the asked text would have to be moved down the file, by how many of its lines would agree."""
    positions: dict[str, list[int]] = defaultdict(list)
    asked = set(wanted)
    for at, key in enumerate(keys):
        if key in asked:
            positions[key].append(at)
    votes: Counter[int] = Counter()
    for at, key in enumerate(wanted):
        where = positions.get(key, ())
        if key and len(where) <= _COMMON:
            for position in where:
                votes[position - at] += int(weight(key) * 10)
    # what was added to or lost from the file moves a part of the text by a few lines: neighbours vote together
    near = {offset: sum(votes[offset + step] for step in range(-4, 5)) for offset in votes}
    return sorted(near, key=lambda offset: (-near[offset], -votes[offset], offset))[:_CANDIDATES]


def _aligned(keys: Sequence[str], wanted: Sequence[str], weights: Sequence[float], offset: int) -> Match | None:
    """The asked text moved down by so many lines: the best run that agrees there stays, the rest is fitted around."""
    core = _core(keys, wanted, weights, offset)
    if core is None:
        return None
    first, end = core
    slack, lines = 4 + len(wanted) // 4, [-1] * len(wanted)
    lines[first:end] = range(first + offset, end + offset)
    _fit(keys, wanted, lines, range(first), range(max(offset - slack, 0), first + offset))
    below = range(end + offset, min(len(wanted) + offset + slack, len(keys)))
    _fit(keys, wanted, lines, range(end, len(wanted)), below)
    _fill(keys, wanted, lines)
    same = tuple(line >= 0 and keys[line] == key for line, key in zip(lines, wanted, strict=True))
    agreed = sum(each for each, found in zip(weights, same, strict=True) if found)
    return Match(tuple(lines), same, agreed / sum(weights))


def _core(keys: Sequence[str], wanted: Sequence[str], weights: Sequence[float], offset: int) -> tuple[int, int] | None:
    """The heaviest run of asked lines that are the file's at this offset; None where none of them says anything."""
    best, start, heaviest = None, 0, 0.0
    for at in range(len(wanted) + 1):
        here = at + offset
        if at < len(wanted) and 0 <= here < len(keys) and keys[here] == wanted[at]:
            continue
        if (mass := sum(weights[start:at])) > heaviest:
            best, heaviest = (start, at), mass
        start = at + 1
    return best


def _fit(keys: Sequence[str], wanted: Sequence[str], lines: list[int], asked: range, there: range) -> None:
    """Find asked lines among some of the file's; a blank line alone is not found, there are too many of them."""
    ours, theirs = [wanted[at] for at in asked], [keys[at] for at in there]
    for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        if any(ours[block.a : block.a + block.size]):
            for step in range(block.size):
                lines[asked[block.a + step]] = there[block.b + step]


def _fill(keys: Sequence[str], wanted: Sequence[str], lines: list[int]) -> None:
    """A gap as long in the file as in the asked text: its lines have changed, each in its place."""
    known = [at for at, line in enumerate(lines) if line >= 0]
    for before, after in itertools.pairwise(known):
        if lines[after] - lines[before] == after - before:
            lines[before:after] = range(lines[before], lines[after])
    for at, step in [
        *((at, 1) for at in range(known[0] - 1, -1, -1)),
        *((at, -1) for at in range(known[-1] + 1, len(lines))),
    ]:
        line = lines[at + step] - step
        if lines[at + step] >= 0 and 0 <= line < len(keys) and keys[line] == wanted[at]:
            lines[at] = line  # a blank line beside what was found
