"""Which pieces of a body of code a question is about.

Owns `Corpus`: the files of one workspace as arrays, and `rank`, which scores their pieces. A piece is scored by the
words it shares with the question (BM25), more for those it defines, and by how near its vector is to the question's;
its file by the words of its path and by what its other pieces score; and what is a test, an example or prose counts for
less unless it is asked for. Where a file has many pieces in an answer each further one counts for less, and so does
each further piece of the same text: an answer of one file or of one line says little. How rare a word is counts within
the workspace alone, so the same files give the same answer, whatever else a store holds.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.search.base import Hit, Vectors
from etude.search.postings import DEFINED, WORD, Numbers, Tags
from etude.search.store import Facts
from etude.search.words import words_of

RANKING_VERSION = 5
Find = Callable[[bytes], tuple[Numbers, Tags]]
"""Where a term stands: `Store.find`."""
Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Weights:
    """Chosen on the development part of `benchmarks/search.py`."""

    k1: float = 1.2
    b: float = 0.75
    defined: float = 1.0
    path: float = 1.0
    file: float = 0.4
    near: float = 40.0
    """Of a piece alone: a file's other pieces gain nothing by it, which did worse."""
    near_from: float = 0.25
    """Cosines of pieces that have nothing to do with a question reach so far."""
    tests: float = 0.5
    prose: float = 0.6
    same_file: float = 0.1
    same_file_from: int = 7
    """So many pieces of a file count in full, each further one less than the one before."""
    same_text: float = 1.0
    same_text_from: int = 2


WEIGHTS = Weights()
_TESTS = ("tests?", "testing", "specs?", "mocks?", "fixtures?", "conftest")
_SMALL, _LARGE = "|".join(_TESTS), "|".join(each.capitalize() for each in _TESTS)
_OF_TESTS = re.compile(rf"(?<![^\W_])({_SMALL})(?![a-z])|({_LARGE})(?![a-z])")
"""Whole words of a path, in FooTest.java too: special.py holds no specs."""
_TESTS_ASKED = frozenset(words_of("test spec mock fixture conftest"))
_TO_TEST = re.compile(r"\btest(s|ed|ing)?(?= (whether|if|that)\b)", re.I)
"""A verb: who asks so asks for no tests."""
_PROSE = re.compile(
    r"(\.(md|rst|txt|adoc|html?|po|json|ya?ml|toml|cfg|ini)|(^|/)(change|news|history|authors)[^/]*)$", re.I
)
_OF_PROSE = frozenset(
    word for name in ["docs", "documentation", "changelog", "readme", "config"] for word in words_of(name)
)


class Corpus:
    """The files of a workspace. Made anew where any of them has changed; remembers nothing of a question."""

    def __init__(self, contents: Mapping[str, int], facts: Mapping[int, Facts]) -> None:
        self.paths = sorted(contents)
        of_file = [facts[contents[path]] for path in self.paths]
        counts = np.array([len(each.pieces) for each in of_file], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        rows = np.concatenate([each.pieces for each in of_file]) if of_file else np.empty((0, 4), np.uint32)
        self.first, self.end, self.length, self.text = rows.T.astype(np.int64)
        self.file = np.repeat(np.arange(len(self.paths)), counts)
        self._mean = max(float(self.length.mean()), 1.0) if len(rows) else 1.0
        self._files_by_first(np.array([each.first for each in of_file], np.int64), counts)
        self._of_path: dict[str, list[int]] = {}
        lower = [path.lower() for path in self.paths]
        self._lower = "\n".join(lower)
        self._begin = [0, *itertools.accumulate(len(each) + 1 for each in lower[:-1])]
        self._tests = np.array([_OF_TESTS.search(path) is not None for path in self.paths], bool)
        self._prose = np.array([_PROSE.search(path) is not None for path in self.paths], bool)

    def rank(
        self, question: str, find: Find, limit: int, under: str = "", weights: Weights = WEIGHTS,
        near: Floats | None = None,
    ) -> list[Hit]:  # fmt: skip
        """The best pieces, best first, of all files or of those below a directory. `near` is the cosine of each piece's
        vector with the question's, where there are vectors."""
        asked = Counter(words_of(question))
        scores = np.zeros(len(self.file))
        for word, times in asked.items():
            self._add_words(scores, word, times, find, weights)
        close = np.zeros(len(scores)) if near is None else weights.near * np.maximum(near - weights.near_from, 0)
        if not (scores.any() or close.any()):
            return []
        places = np.flatnonzero(scores + close > 0)  # of a large workspace most pieces have no word of a question
        scores = self._by_file(places, scores[places], self._of_paths(asked), weights) + close[places]
        files = np.ones(len(self.paths))
        if _TESTS_ASKED.isdisjoint(words_of(_TO_TEST.sub("", question))):
            files[self._tests] *= weights.tests
        if not asked.keys() & _OF_PROSE:
            files[self._prose] *= weights.prose
        if under:
            files *= [f"{path}/".startswith(f"{under.rstrip('/')}/") for path in self.paths]
        scores = scores * files[self.file[places]]
        scores /= 1 + weights.same_text * _beyond(weights.same_text_from, self.text[places], scores)
        scores /= 1 + weights.same_file * _beyond(weights.same_file_from, self.file[places], scores)
        scores = np.round(scores, 9)
        if len(scores) > limit:
            best = scores >= np.partition(scores, -limit)[-limit]
            places, scores = places[best], scores[best]
        order = np.lexsort((self.first[places], self.file[places], -scores))[:limit]  # files are in the order of paths
        return [self._hit(places[at], scores[at]) for at in order if scores[at] > 0]

    def in_order(self, vectors: Mapping[int, Vectors], contents: Mapping[str, int], width: int) -> Vectors:
        """A row for each piece of this corpus, of the vectors of contents; zero where there is none."""
        counts = np.diff(self._starts)
        rows = (
            found if (found := vectors.get(contents[path])) is not None and found.shape == (count, width)
            else np.zeros((count, width), np.int8)
            for path, count in zip(self.paths, counts, strict=True)
        )  # fmt: skip
        return np.concatenate([np.empty((0, width), np.int8), *rows])

    def _hit(self, place: int, score: float) -> Hit:
        return Hit(self.paths[self.file[place]], int(self.first[place]) + 1, int(self.end[place]), float(score))

    def _files_by_first(self, firsts: Places, counts: Places) -> None:
        """Contents in the order of their pieces' numbers, and the files of each: several may have one content."""
        having = np.flatnonzero(counts)
        order = having[np.argsort(firsts[having], kind="stable")]
        self._firsts, at = np.unique(firsts[order], return_index=True)
        self._ends = self._firsts + counts[order][at]
        self._files, self._at = order, np.append(at, len(order))

    def _expanded(self, numbers: Numbers, tags: Tags) -> tuple[Places, Floats]:
        """Pieces of this corpus by their numbers in the store; those of other workspaces fall out."""
        if not len(self._firsts) or not len(numbers):
            return np.empty(0, np.int64), np.empty(0)
        content = np.searchsorted(self._firsts, numbers, "right") - 1
        ours = (content >= 0) & (numbers < self._ends[content])
        content, inside, times = content[ours], numbers[ours] - self._firsts[content[ours]], tags[ours]
        files = self._at[content + 1] - self._at[content]
        which = np.repeat(np.arange(len(content)), files)
        nth = np.arange(len(which)) - np.repeat(np.cumsum(files) - files, files)
        file = self._files[self._at[content[which]] + nth]
        return self._starts[file] + inside[which], times[which].astype(np.float64)

    def _add_words(self, scores: Floats, word: str, asked: int, find: Find, weights: Weights) -> None:
        term = word.encode("utf-8", "replace")
        places, times = self._expanded(*find(WORD + term))
        rarity = _rarity(len(self.file), len(places))
        around = weights.k1 * (1 - weights.b + weights.b * self.length[places] / self._mean)
        scores[places] += asked * rarity * times * (weights.k1 + 1) / (times + around)
        if weights.defined:
            places, _ = self._expanded(*find(DEFINED + term))
            scores[places] += asked * weights.defined * rarity

    def _of_paths(self, asked: Mapping[str, int]) -> Floats:
        """What each file's path shares with the question."""
        found = np.zeros(len(self.paths))
        for word, times in asked.items():
            if (files := self._of_path.get(word)) is None:
                files = self._of_path[word] = [
                    at for at in self._having(word) if word in _words_of_path(self.paths[at])
                ]
            if files:
                found[files] += times * _rarity(len(self.paths), len(files))
        return found

    def _having(self, word: str) -> Iterator[int]:
        """The files whose paths may have a word: an ending that was taken off has changed its last letter at most."""
        at, stem = 0, word[:-1] if len(word) > 2 else word
        while (at := self._lower.find(stem, at)) >= 0:
            file = bisect_right(self._begin, at) - 1
            yield file
            if file + 1 == len(self._begin):
                return
            at = self._begin[file + 1]

    def _by_file(self, places: Places, scores: Floats, paths: Floats, weights: Weights) -> Floats:
        """A piece's own score, its path's, and some of what its file's pieces have together. What shares no word
        with the question and is not near it is no answer."""
        files = self.file[places]
        summed = np.sqrt(np.bincount(files, scores**2, len(self.paths)))
        return scores + weights.path * paths[files] + weights.file * summed[files]


def _beyond(most: int, groups: Places, scores: Floats) -> Places:
    """The place of each in its group beyond the first so many, best first."""
    order = np.lexsort((-scores, groups))
    ordered = groups[order]
    begins = np.append(True, ordered[1:] != ordered[:-1])
    at = np.arange(len(order))
    found = np.empty_like(at)
    found[order] = at - np.maximum.accumulate(np.where(begins, at, 0))
    return np.maximum(found - (most - 1), 0)


def _rarity(all_of_them: int, having: int) -> float:
    return math.log(1 + (all_of_them - having + 0.5) / (having + 0.5))


def _words_of_path(path: str) -> frozenset[str]:
    return frozenset(word for part in path.split("/") for word in words_of(part))
