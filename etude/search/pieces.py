"""Files in pieces that can be read on their own.

Owns `cut`: a piece is a definition with its comment, or what stands between two, where a parser knows the language
(`syntax`); elsewhere, and where a definition is longer than a screen, it is a stretch of lines that begins, where it
can, with a definition or after a blank line at the shallowest indentation. That is `pieces_of`, which needs no parser:
it holds for every language, broken files included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from etude.search.syntax import Definition, definitions_of

MAX_LINES = 60
_MIN_LINES = 8
_MOST_DEFINITIONS = 2000
"""A file with more was written by a program."""
_MOST_COMMENT = 200
_DEFINITION = re.compile(
    r"\s*(?:@|(?:(?:export|default|public|private|protected|internal|static|async|abstract|final|override|pub(?:\(\w+\))?|"
    r"unsafe|inline|virtual|extern)\s+)*"
    r"(?:def|class|func|fn|function|interface|struct|enum|trait|impl|type|module|namespace|protocol|object)\b)"
)
_NAMED = re.compile(
    r"\s*(?:\w+(?:\(\w+\))?\s+)*?"
    r"(?:def|class|func|fn|function|interface|struct|enum|trait|impl|type|module|namespace|protocol|object)\s+(\w+)"
)
_COMMENT = re.compile(r"\s*(?:#|//|/\*|\*|--|@|%|;;|\[)")


@dataclass(frozen=True)
class Cut:
    """Lines `first` to `end` from 0, `end` not among them; the names it defines, and of what it stands in."""

    first: int
    end: int
    names: tuple[str, ...] = ()
    within: tuple[str, ...] = ()


def cut(language: str, text: str) -> list[Cut]:
    """All pieces of a file. Between them is nothing but blank lines and closing brackets."""
    lines = text.removesuffix("\n").split("\n")
    found = definitions_of(language, text.encode("utf-8", "replace")) if language else None
    by_lines = found is None or len(found) > _MOST_DEFINITIONS
    cuts = _by_lines(lines) if by_lines else _by_definitions(found or [], lines)
    return [each for each in cuts if _says(lines, each.first, each.end)]


def _by_definitions(found: Sequence[Definition], lines: Sequence[str]) -> Iterator[Cut]:
    for first, end, inner in _stretches(found, lines):
        names = tuple(dict.fromkeys(each.name for each in found if first <= each.first < end and each.name))
        within = tuple(name for name in inner.within if name) if inner else ()
        own = (inner.name,) if inner is not None and inner.name else ()
        for number, (at, to) in enumerate(_screens(lines, first, end)):
            yield Cut(at, to, names if number == 0 else (), within if number == 0 else (*within, *own))


def _screens(lines: Sequence[str], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Of a stretch, as many pieces as it needs, without the blank lines around them."""
    short = end - first <= MAX_LINES
    for at, to in [(first, end)] if short else [(first + at, first + to) for at, to in pieces_of(lines[first:end])]:
        while at < to and not lines[to - 1].strip():
            to -= 1
        while at < to and not lines[at].strip():
            at += 1
        if at < to:
            yield at, to


def _stretches(found: Sequence[Definition], lines: Sequence[str]) -> Iterator[tuple[int, int, Definition | None]]:
    """(first, end) between the places where a definition begins or ends, and the innermost one there."""
    starts = {_with_comment(lines, each.first): each for each in found}  # of several in one line, the innermost
    places = sorted({0, len(lines), *starts, *(min(each.end, len(lines)) for each in found)})
    first, inner = 0, starts.get(0)
    for place, after in zip(places[1:], [*places[2:], len(lines)], strict=True):
        begins = starts.get(place)
        inside = place < len(lines) and begins is None and after - place < _MIN_LINES and inner is not None
        if inside and not _says(lines, place, after):
            continue  # what is next to nothing stays with the definition before it
        if place > first:
            yield first, place, inner
        first, inner = place, begins or _around(found, place)


def _says(lines: Sequence[str], first: int, end: int) -> bool:
    """Whether there is anything but closing brackets."""
    return any(re.search(r"\w", line) for line in lines[first:end])


def _around(found: Sequence[Definition], line: int) -> Definition | None:
    """The innermost definition that a line between others stands in."""
    inside = [each for each in found if each.first < line < each.end]
    return max(inside, key=lambda each: each.first, default=None)


def _with_comment(lines: Sequence[str], first: int) -> int:
    """Where a definition begins together with the comment and the attributes right above it, up to a bound: many
    definitions may share one comment."""
    last = max(first - _MOST_COMMENT, 0)
    while first > last and is_comment(lines[first - 1]):
        first -= 1
    return first


def _by_lines(lines: Sequence[str]) -> Iterator[Cut]:
    for first, end in pieces_of(lines):
        names = (found.group(1) for line in lines[first:end] if (found := _NAMED.match(line)))
        yield from (Cut(*trimmed, tuple(dict.fromkeys(names))) for trimmed in _screens(lines, first, end))


def is_definition(line: str) -> bool:
    """Whether a line looks like the beginning of a definition, or of what decorates one."""
    return _DEFINITION.match(line) is not None


def is_comment(line: str) -> bool:
    """Whether a line begins as a comment, or as what decorates a definition."""
    return _COMMENT.match(line) is not None


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
