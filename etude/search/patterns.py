"""What a line must hold to match a regular expression, as far as that can be said for sure.

Owns `required`: literals joined by all and any. It reads what Rust's expressions, PCRE and POSIX's extended ones have
in common, and gives up on everything else: then any line may match, and all files are searched. It may ask for less
than an expression does, and never for more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_META = r".*+?()[]{}|^$\/-:\"#@,;=&%"
_CLASSES = "wWdDsS"
_ESCAPED = _META + _CLASSES + "tnr"
_CLASS = re.compile(r":[a-z]+:\]")
_EDGES = "bB"
_MOST_CHARS, _MOST_DEPTH, _MOST_REPEATS, _MOST_IN_A_ROW = 2000, 40, 1000, 8


@dataclass(frozen=True)
class Literal:
    """These bytes, capital letters as small ones."""

    data: bytes


@dataclass(frozen=True)
class All:
    """Every part; without parts, anything."""

    parts: tuple[Literal | All | Any, ...]


@dataclass(frozen=True)
class Any:
    """One of the parts at least."""

    parts: tuple[Literal | All | Any, ...]


Need = Literal | All | Any
ANYTHING = All(())


class _Unknown(Exception):
    """Something that is not read here."""


def required(pattern: str, ignore_case: bool = False) -> Need:
    """What every matching line holds. With `ignore_case` letters beyond ASCII say nothing: some of them are the other
    form of an ASCII letter, so a file that holds any such must be looked into as well."""
    if len(pattern) > _MOST_CHARS or any(char in pattern for char in "\n\r\0") or pattern.startswith("(*"):
        return ANYTHING
    reader = _Reader(pattern, ignore_case)
    try:
        need = reader.alternatives(0)
        return need if reader.at == len(pattern) else ANYTHING
    except (_Unknown, UnicodeEncodeError):
        return ANYTHING


def selective(pattern: str, ignore_case: bool = False) -> bool:
    """Whether it needs three bytes in a row at least: with fewer, grams say nothing."""
    return _is_selective(required(pattern, ignore_case))


def _is_selective(need: Need) -> bool:
    match need:
        case Literal():
            return len(need.data) >= 3
        case All():
            return any(map(_is_selective, need.parts))
        case Any():
            return all(map(_is_selective, need.parts))


class _Reader:
    def __init__(self, pattern: str, ignore_case: bool) -> None:
        self.pattern, self.ignore_case, self.at = pattern, ignore_case, 0

    def alternatives(self, depth: int) -> Need:
        if depth > _MOST_DEPTH:
            raise _Unknown
        found = [self._sequence(depth)]
        while self._peek() == "|":
            self.at += 1
            found.append(self._sequence(depth))
        return found[0] if len(found) == 1 else Any(tuple(found))

    def _sequence(self, depth: int) -> Need:
        parts: list[Need] = []
        run = b""
        while (char := self._peek()) and char not in "|)":
            literal, need = self._atom(depth)
            low, high = self._repeats()
            if literal is not None and low == high and low <= _MOST_IN_A_ROW:
                run += literal * low
                continue
            if literal is not None and low >= 1:  # in `ab{2,}c` stand `abb` and `bc`
                parts.append(Literal(run + literal * min(low, _MOST_IN_A_ROW)))
                run = literal if literal.isascii() else b""
                continue
            parts.append(Literal(run))
            run = b""
            if literal is None and need is not None and low >= 1:
                parts.append(need)
        parts.append(Literal(run))
        return All(tuple(part for part in parts if part not in (Literal(b""), ANYTHING)))

    def _atom(self, depth: int) -> tuple[bytes | None, Need | None]:
        """Bytes that must be there, or what a group needs; neither for what may be anything."""
        char = self._take()
        if char == "(":
            return None, self._group(depth)
        if char == "[":
            self._bracket()
            return None, None
        if char == ".":
            return None, None
        if char in "^$":
            return b"", None
        if char == "\\":
            return self._escape()
        if char in "*+?{":
            raise _Unknown  # what it repeats, or whether it is itself, differs between dialects
        return self._literal(char), None

    def _group(self, depth: int) -> Need:
        if self._peek() == "?":
            self.at += 1
            if self._take() != ":":
                raise _Unknown
        elif self._peek() == "*":
            raise _Unknown
        need = self.alternatives(depth + 1)
        if self._take() != ")":
            raise _Unknown
        return need

    def _bracket(self) -> None:
        """To its end; what is in it says nothing."""
        if self._peek() == "^":
            self.at += 1
        first = True
        while (char := self._take()) != "]" or first:
            if char == "[" and (found := _CLASS.match(self.pattern, self.at)):
                self.at = found.end()
            elif char in "[&~" or (char == "-" and self._peek() == "-") or char == "]":
                raise _Unknown  # classes in classes, what Rust makes of pairs, and a bracket that comes first
            elif char == "\\" and (escaped := self._take()) and (escaped == "]" or escaped not in _ESCAPED):
                raise _Unknown  # to POSIX a backslash is one here, and ends nothing
            first = False

    def _escape(self) -> tuple[bytes | None, None]:
        char = self._take()
        if char in _CLASSES:
            return None, None
        if char in _EDGES:
            if self._peek() == "{":
                raise _Unknown  # Rust's \b{start}
            return b"", None
        if char == "t" or char not in _META:
            raise _Unknown  # `\t` is a tab to two of them, and a `t` to the third
        return self._literal(char), None

    def _literal(self, char: str) -> bytes | None:
        """None where it may be written otherwise in a file."""
        if self.ignore_case and not char.isascii():
            return None
        return char.encode().lower() if char.isascii() else char.encode()

    def _repeats(self) -> tuple[int, int]:
        """How often at least and at most; the most is beside the point where it is large."""
        low, high = 1, 1
        while (char := self._peek()) and char in "*+?{":
            self.at += 1
            if char == "{":
                low, high = self._counted(low, high)
            elif char == "*":
                low, high = 0, _MOST_REPEATS
            elif char == "?":
                low = 0
            else:
                high = _MOST_REPEATS
        return low, high

    def _counted(self, low: int, high: int) -> tuple[int, int]:
        end = self.pattern.find("}", self.at)
        least, comma, most = self.pattern[self.at : max(end, self.at)].partition(",")
        if not least.isascii() or not least.isdecimal() or (most and not (most.isascii() and most.isdecimal())):
            raise _Unknown
        self.at = end + 1
        at_least, at_most = int(least), int(most) if most else _MOST_REPEATS if comma else int(least)
        return min(low * at_least, _MOST_REPEATS), min(max(high, 1) * at_most, _MOST_REPEATS)

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise _Unknown
        self.at += 1
        return char
