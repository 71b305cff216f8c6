"""What search.py measures ours beside: other rankings of the same trees, each as a function from a question to hits.

Owns `Searcher`, what such a function is, and the peers `before` and `bm25s`; those with vectors of e5 are in
`searching.e5_peer`, the one with a pipeline of its own in `searching.semble_peer`. They need packages that nothing else
of Etude needs: where one is not installed, making the peer raises ImportError, which says what to install, and the
benchmark leaves it out by name.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from searching.lexical import LexicalIndex
from searching.sets import Question

from etude.search import Hit
from etude.search.content import is_code, lines_of, most_bytes, read, text_of
from etude.search.words import words_of

PIECES = 50
TEN = 10


@dataclass(frozen=True)
class Searcher:
    """`find` gives 50 pieces; `ten` gives ten, of a searcher whose first ten depend on how many it is asked for.
    `told` is what there is to say at the end."""

    find: Callable[[Question], list[Hit]]
    ten: Callable[[Question], list[Hit]] | None = None
    told: Callable[[], str] = lambda: ""


@dataclass(frozen=True)
class Piece:
    """One of ours, with the words by which it is found."""

    hit: Hit
    words: Sequence[str]
    text: str


def needed(module: str, install: str) -> Any:
    """A module that a peer needs. Raises ImportError, which says how it is had."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{error}: `{install}` installs what it needs") from None


def indexable(question: Question) -> dict[str, bytes]:
    return {path: data for path, data in question.tree.items() if is_code(path) and len(data) <= most_bytes(path)}


def before() -> Searcher:
    """What there was before the store."""
    indexes: dict[str, tuple[LexicalIndex, dict[str, bytes]]] = {}

    def search(question: Question) -> list[Hit]:
        index, known = indexes.setdefault(question.repository, (LexicalIndex(), {}))
        files = indexable(question)
        for path in known.keys() - files.keys():
            index.drop(path)
            del known[path]
        for path, data in files.items():
            if known.get(path) != data:
                known[path] = data
                text = text_of(data)
                index.drop(path) if text is None else index.put(path, text)
        return index.search(question.text, PIECES)

    return Searcher(search)


class Pieces:
    """Our pieces of a tree, each content cut once; knows the last tree."""

    def __init__(self) -> None:
        self._cut: dict[tuple[str, bytes], list[Piece]] = {}
        self._tree: dict[str, bytes] | None = None

    def of(self, question: Question) -> list[Piece]:
        if self._tree is not question.tree:
            self._tree = question.tree
            self._here = [piece for each in indexable(question).items() for piece in self._of(*each)]
        return self._here

    def _of(self, path: str, data: bytes) -> list[Piece]:
        if (path, data) not in self._cut:
            lines = lines_of(text_of(data) or "")
            self._cut[path, data] = [
                Piece(
                    Hit(path, each.first + 1, each.end, 0.0),
                    [*each.words.elements(), *words_of(path)],
                    "\n".join(lines[each.first : each.end]),
                )
                for each in read(path, data, grams=False).pieces
            ]
        return self._cut[path, data]


@functools.cache
def pieces() -> Pieces:
    """All peers that rank our pieces share them."""
    return Pieces()


class SplitBm25:
    """The library bm25s over our pieces, names split as we split them. Knows the last tree."""

    def __init__(self) -> None:
        self._library = needed("bm25s", "pip install bm25s")
        self._tree: dict[str, bytes] | None = None

    def best(self, question: Question) -> list[int]:
        """Which of the tree's pieces, best first and of equal ones the first; those that share no word are left out."""
        if self._tree is not question.tree:
            self._tree, self._index = question.tree, self._library.BM25()
            self._index.index([piece.words for piece in pieces().of(question)], show_progress=False)
        asked = list(words_of(question.text))
        scores = self._index.get_scores(asked) if asked else np.zeros(0)
        return [int(at) for at in np.argsort(-scores, kind="stable") if scores[at] > 0]


@functools.cache
def split_bm25() -> SplitBm25:
    return SplitBm25()


def bm25s() -> Searcher:
    """The library alone."""
    index = split_bm25()

    def search(question: Question) -> list[Hit]:
        here = pieces().of(question)
        return [here[at].hit for at in index.best(question)[:PIECES]]

    return Searcher(search)
