"""Code as words: names taken apart as people read them.

Owns `words_of`. `parseHTTPHeader`, `parse_http_header` and "parsing HTTP headers" share their words; a name is also a
word as a whole, for who knows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_NAME = re.compile(r"[^\W\d]\w*|\d+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")
_COMMON = frozenset(
    _NAME.findall(
        "a an and are as at be by can do does for from how if in into is it its of on or that the this to was we what "
        "when where which who why with self"
    )
)


def words_of(text: str) -> Iterator[str]:
    """Words in order, small and without their endings."""
    for found in _NAME.finditer(text):
        name = found.group()
        parts = [part.lower() for part in _PART.findall(name)]
        if len(parts) > 1:
            yield name.lower()
        yield from (stem(part) for part in parts if part not in _COMMON)


def stem(word: str) -> str:
    """A word without the endings that say little: just enough that a question meets the code."""
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ers", ""), ("ed", ""), ("er", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word.removesuffix(ending) + instead
            break
    if len(word) > 3 and word[-1] == word[-2]:
        return word[:-1]  # planned, planning, plan
    return word.removesuffix("e") if len(word) > 3 else word
