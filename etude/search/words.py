"""Code as words: names taken apart as people read them.

Owns `words_of`. `parseHTTPHeader`, `parse_http_header` and "parsing HTTP headers" share their words; a name is also a
word as a whole, for who knows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_NAME = re.compile(r"[^\W\d]\w*|\d+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_MOST_KEPT = 1 << 16
_COMMON = frozenset(
    _NAME.findall(
        "a an and are as at be by can do does for from how if in into is it its of on or that the this to was we what "
        "when where which who why with self"
    )
)


def words_of(text: str) -> Iterator[str]:
    """Words in order, small and without their endings."""
    for name in names_of(text):
        yield from words_of_name(name)


def names_of(text: str) -> list[str]:
    """As they are written."""
    return _NAME.findall(text)


@lru_cache(_MOST_KEPT)  # the same names come again and again in a body of code
def words_of_name(name: str) -> tuple[str, ...]:
    """The name, where it has several parts, and its parts."""
    parts = [part.lower() for part in _PART.findall(name)]
    whole = (name.lower(),) if len(parts) > 1 else ()
    return (*whole, *(stem(part) for part in parts if part not in _COMMON))


def stem(word: str) -> str:
    """A word without the endings that say little: just enough that a question meets the code."""
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ers", ""), ("ed", ""), ("er", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word.removesuffix(ending) + instead
            break
    if len(word) > 3 and word[-1] == word[-2]:
        return word[:-1]  # planned, planning, plan
    return word.removesuffix("e") if len(word) > 3 else word
