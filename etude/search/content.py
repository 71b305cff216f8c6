"""What a search knows of one file's content, and the key that content has.

Owns `key_of`, `text_of` and `read`: the pieces of a text with their words, and the grams of its bytes. All of it
depends on the content and on the language that a path names, on nothing else: whoever has the same bytes knows the
same, in whatever workspace, worktree or session. Reads no disk.
"""

from __future__ import annotations

import codecs
import hashlib
import zlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.search.pieces import cut, is_definition
from etude.search.syntax import cutter, language_of
from etude.search.words import names_of, words_of_name

MOST_BY_LINES = 200_000
"""Longer files that are cut by lines have no pieces: they are data as a rule."""
MOST_BYTES = 1_000_000
"""Longer ones are not indexed at all: a grep always reads them."""
WORDS_VERSION = 3
"""Of what a content is cut into and of its words: with another, every file is taken in anew."""
_DEFINED_WEIGHT = 3
_NOT_CODE = (".lock", ".min.js", ".min.css", ".svg", ".map", ".csv", ".ipynb", "/package-lock.json")
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_SMALL = bytes(range(65)) + bytes(range(97, 123)) + bytes(range(91, 256))
"""Each byte, capital letters as small ones."""


@dataclass(frozen=True)
class Piece:
    """Lines `first` to `end` from 0, `end` not among them, and how often each word is in them; `defined` are the words
    of the names it defines."""

    first: int
    end: int
    words: Counter[str]
    defined: Counter[str]


@dataclass(frozen=True)
class Content:
    """`texts`: a number of each piece, the same where their lines are. `plain`: nothing but ASCII. `odd`: a searcher
    may see other bytes in it than are there, or stop in its middle. `long`: too long to have pieces."""

    pieces: tuple[Piece, ...]
    texts: tuple[int, ...]
    plain: bool
    odd: bool
    long: bool
    grams: NDArray[np.uint32]


def key_of(path: str, data: bytes) -> bytes:
    """The name of a content, for this way of taking it in. 24 bytes: nobody finds two files of one name."""
    kind = language_of(path) if is_code(path) else "-"
    way = f"{WORDS_VERSION} {kind} {cutter() if kind not in ('', '-') else ''}"
    return hashlib.blake2b(data, digest_size=24, salt=hashlib.blake2b(way.encode(), digest_size=16).digest()).digest()


def is_code(path: str) -> bool:
    """Whether a file's name does not say that a program wrote it, or that it holds data."""
    return not (path.endswith(_NOT_CODE) or path == "package-lock.json")


def most_bytes(path: str) -> int:
    """A longer file has no pieces: what is searched by words is not found in it."""
    return MOST_BYTES if language_of(path) else MOST_BY_LINES


def too_long(path: str, size: int) -> bool:
    """Whether a file has no pieces for its length alone."""
    return size > MOST_BY_LINES and is_code(path) and size > most_bytes(path)


def read(path: str, data: bytes, *, grams: bool, pieces: tuple[Piece, ...] | None = None) -> Content:
    """Take a file in; without `grams` there are none. `pieces` where they are known."""
    long = len(data) > most_bytes(path)
    text = (text_of(data) or "") if is_code(path) and not long else ""
    lines = lines_of(text)
    if pieces is None:
        pieces = _pieces(path, text, lines) if text.strip() else ()
    texts = tuple(_number_of(lines[each.first : each.end]) for each in pieces)
    odd = b"\0" in data or data.startswith(_WIDE)
    none = np.empty(0, np.uint32)
    return Content(pieces, texts, data.isascii(), odd, long, grams_of(data) if grams and not odd else none)


def text_of(data: bytes) -> str | None:
    """Bytes as text; None for what is none. Bytes that fit no encoding are no reason: they become `\\ufffd`."""
    for mark, encoding in zip(_WIDE[2:] + _WIDE[:2], ("utf-32", "utf-32", "utf-16", "utf-16"), strict=True):
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    if b"\0" in data[:8192]:
        return None
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError:
        older = data.decode("utf-8", "ignore").isascii()  # nothing in it is UTF-8
        return data.decode("latin-1") if older else data.decode("utf-8", "replace")


def lines_of(text: str) -> list[str]:
    """As pieces count them; what ends a line in Windows ends it here too."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def grams_of(data: bytes) -> NDArray[np.uint32]:
    """All three bytes that follow each other in a line, capital letters as small ones; sorted, each once."""
    each = np.frombuffer(data.translate(_SMALL), np.uint8).astype(np.uint32)
    if len(each) < 3:
        return np.empty(0, np.uint32)
    grams = np.sort(each[:-2] << 16 | each[1:-1] << 8 | each[2:])
    grams = grams[np.append(True, grams[1:] != grams[:-1])]
    ends = (grams & 0xFF == 10) | (grams >> 8 & 0xFF == 10) | (grams >> 16 == 10)
    return grams[~ends]


def _number_of(lines: list[str]) -> int:
    return zlib.crc32("\n".join(line.strip() for line in lines).encode("utf-8", "replace"))


def _pieces(path: str, text: str, lines: list[str]) -> tuple[Piece, ...]:
    found = []
    for each in cut(language_of(path), text):
        own = lines[each.first : each.end]
        names = Counter(names_of("\n".join(own)))
        for line in filter(is_definition, own):
            names.update(names_of(line) * (_DEFINED_WEIGHT - 1))
        names.update(each.within)
        found.append(Piece(each.first, each.end, _counted(names), _counted(Counter(each.names))))
    return tuple(found)


def _counted(names: Counter[str]) -> Counter[str]:
    words: Counter[str] = Counter()
    had = words.get  # this loop is a tenth of an index's time
    for name, times in names.items():
        for word in words_of_name(name):
            words[word] = had(word, 0) + times
    return words
