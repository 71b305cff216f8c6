"""A pattern of paths: `*` and `?` stop at a slash, `**` does not; `**/` may be nothing, and `DIR/**` is DIR too.

Owns `Glob`. A pattern may come with a repository, and the names that it is matched with do. So every way in which it
could match is followed at once, as a set of places in it that are bits of one number, and a step once taken is kept:
no pattern takes longer than its text is long. Knows no files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKENS = re.compile(r"\*\*/|/\*\*\Z|\*\*|.", re.DOTALL)
_MOST_KEPT = 1_024


class Glob:
    """One pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._left: list[int] = []
        """Where in the pattern begins what is left of it, by place."""
        self._by_letter: dict[str, int] = {}
        """The places from which a letter leads one further."""
        self._by_any = self._stays = self._stays_in_name = self._skips = self._skips_two = 0
        for token, begins in _tokens(pattern):
            self._add(token, begins)
        self._end = 1 << len(self._left)
        self._left.append(len(pattern))
        self._kept: dict[tuple[int, str], int] = {}
        self._start = self._with_skipped(1)

    def matches(self, text: str) -> bool:
        """Whether the whole of it is matched."""
        places, kept = self._start, self._kept
        for letter in text:
            after = kept.get((places, letter))
            if after is None:
                if len(kept) >= _MOST_KEPT:
                    kept.clear()
                after = kept[places, letter] = self._with_skipped(self._met(places, letter))
            if not after:
                return False
            places = after
        return bool(places & self._end)

    def left_after(self, text: str) -> Iterator[str]:
        """What of the pattern is left to be matched once it has matched this, in each of the ways in which it can."""
        places = 1
        for letter in text:
            places = self._met(self._with_skipped(places), letter)
        yield from (self._pattern[left:] for at, left in enumerate(self._left) if places >> at & 1)

    def _add(self, token: str, left: int) -> None:
        here = 1 << len(self._left)
        self._left.append(left)
        match token:
            case "**/":  # past it, or anywhere within it up to a slash
                self._skips |= here
                self._skips_two |= here
                self._add_within(here << 1, left)
                self._by_letter["/"] = self._by_letter.get("/", 0) | here << 1
            case "/**":  # past it, or a slash and anywhere
                self._skips_two |= here
                self._by_letter["/"] = self._by_letter.get("/", 0) | here
                self._add_within(here << 1, left + 1)
                self._skips |= here << 1
            case "**":
                self._stays |= here
                self._skips |= here
            case "*":
                self._stays_in_name |= here
                self._skips |= here
            case "?":
                self._by_any |= here
            case letter:
                self._by_letter[letter] = self._by_letter.get(letter, 0) | here

    def _add_within(self, here: int, left: int) -> None:
        self._left.append(left)
        self._stays |= here

    def _with_skipped(self, places: int) -> int:
        """These, and those reached past what may stand for nothing."""
        while True:
            more = places | (places & self._skips) << 1 | (places & self._skips_two) << 2
            if more == places:
                return places
            places = more

    def _met(self, places: int, letter: str) -> int:
        """Where one more letter leads."""
        moves, stays = self._by_letter.get(letter, 0), self._stays
        if letter != "/":
            moves, stays = moves | self._by_any, stays | self._stays_in_name
        return (places & moves) << 1 | (places & stays)


def _tokens(pattern: str) -> list[tuple[str, int]]:
    """Each with where it begins. Without those that say nothing beside the one before, so that few which may be empty
    stand beside each other."""
    found: list[tuple[str, int]] = []
    for match in _TOKENS.finditer(pattern):
        token = match[0]
        before = found[-1][0] if found else ""
        if token == "**" and before == "**/":
            found.pop()
            before = found[-1][0] if found else ""
        if not (before == "**" and token in ("**", "**/", "*")) and not (before == token == "**/"):
            found.append((token, match.start()))
    return found
