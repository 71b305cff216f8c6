"""Code as words: names taken apart as people read them.

Owns `words_of`. `parseHTTPHeader`, `parse_http_header` and "parsing HTTP headers" share their words; a name is also a
word as a whole, for who knows it. Letters are those of every script; what is written without spaces between words, as
Chinese and Japanese are, is taken in pairs of letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_NAME = re.compile(r"[^\W\d]\w*|\d+")
_CAPITALS = "".join(letter for letter in map(chr, range(0x530)) if letter.isupper())
_SMALL = rf"[^\W\d_{_CAPITALS}]"
_PART = re.compile(rf"[{_CAPITALS}]+(?!{_SMALL})|[{_CAPITALS}]?{_SMALL}+|\d+")
_LETTER = re.compile("[a-z]")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]+")
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
    """The name, where it has several parts, and its parts; a part of one Latin letter says nothing."""
    parts = [part.lower() for part in _PART.findall(name)]
    if not name.isascii():
        parts = [each for part in parts for each in _spaced(part)]
    if len(parts) < 2:
        return tuple(stem(part) for part in parts if part not in _COMMON)
    return (name.lower(), *(stem(part) for part in parts if part not in _COMMON and not _LETTER.fullmatch(part)))


def _spaced(part: str) -> Iterator[str]:
    """A part, and of what has no spaces in it all pairs of letters."""
    at = 0
    for run in _UNSPACED.finditer(part):
        if at < run.start():
            yield part[at : run.start()]
        letters, at = run.group(), run.end()
        yield from (letters[here : here + 2] for here in range(max(len(letters) - 1, 1)))
    if at < len(part):
        yield part[at:]


def stem(word: str) -> str:
    """A word without the endings that say little: just enough that a question meets the code."""
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ers", ""), ("ed", ""), ("er", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word.removesuffix(ending) + instead
            break
    if len(word) > 3 and word[-1] == word[-2]:
        return word[:-1]  # planned, planning, plan
    return word.removesuffix("e") if len(word) > 3 else word
