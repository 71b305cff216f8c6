"""Etude's own search as the benchmarks ask it: with vectors, and by words alone.

Owns `ours`, the index in memory, brought up to date from one question's tree to the next. All that ask share it: what
they ask with is no part of it.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from searching.peers import PIECES, Searcher, indexable
from searching.sets import Question

from etude.search import Hit, Index, Store
from etude.search.ranking import WEIGHTS, Weights


class Indexes:
    """By repository."""

    def __init__(self) -> None:
        self._store = Store(None)
        self._indexes: dict[str, Index] = {}
        self._tree: dict[str, bytes] | None = None

    def of(self, question: Question) -> Index:
        """As the question's tree is."""
        index = self._indexes.setdefault(question.repository, Index(self._store, question.repository))
        if self._tree is not question.tree:
            self._tree, files = question.tree, indexable(question)
            stamps = {path: str(hash(data)) for path, data in files.items()}
            index.update(stamps, [(path, files[path]) for path in index.stale(stamps)])
        return index


@functools.cache
def indexes() -> Indexes:
    return Indexes()


def ours(weights: Weights = WEIGHTS) -> Searcher:
    """As it ships."""

    def find(question: Question) -> list[Hit]:
        return indexes().of(question).search(question.text, PIECES, weights=weights)

    return Searcher(find)


def by_words() -> Searcher:
    """The same without vectors."""
    return ours(replace(WEIGHTS, near=0.0))
