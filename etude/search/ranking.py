"""Which pieces of a body of code a question is about.

Owns `rank`, which scores the pieces of a workspace (`corpus`). A piece is scored by the words it shares with the
question (BM25), more for those it defines, and by how near its vector is to the question's; its file by the words of
its path and by what its other pieces score; and what is a test, an example or prose counts for less unless it is asked
for. Where a file has many pieces in an answer each further one counts for less, and so does each further piece of the
same text: an answer of one file or of one line says little. How rare a word is counts within the workspace alone, so
the same files give the same answer, whatever else a store holds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.search.base import Hit
from etude.search.corpus import Corpus, Find, Floats, Places
from etude.search.postings import DEFINED, WORD
from etude.search.words import words_of

RANKING_VERSION = 5
_AT_FIRST = 50
"""So many times the pieces that are wanted are looked at, and more where too many of them are of few files."""
_DIGITS = 9


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
    r"(\.(md|rst|txt|adoc|html?|po|json|ya?ml|toml|cfg|ini)|^(change|news|history|authors)[^/]*)$", re.I
)
_OF_PROSE = frozenset(
    word for name in ["docs", "documentation", "changelog", "readme", "config"] for word in words_of(name)
)


def rank(
    corpus: Corpus, question: str, find: Find, limit: int, under: str = "", weights: Weights = WEIGHTS,
    near: tuple[Places, Floats] | None = None,
) -> list[Hit]:  # fmt: skip
    """The best pieces, best first, of all files or of those below a directory. `near` are the pieces whose vectors are
    nearer to the question's than `near_from`, with their cosines, where there are vectors."""
    asked = Counter(words_of(question))
    scores, close = np.zeros(len(corpus.file)), np.zeros(len(corpus.file))
    for word, times in asked.items():
        _add_word(scores, corpus, word, times, find, weights)
    if near is not None:
        close[near[0]] = weights.near * (near[1] - weights.near_from)
    places = np.flatnonzero((scores > 0) | (close > 0))  # of a large workspace most pieces have no word of a question
    places = places[corpus.alive[corpus.file[places]]]
    scores = _by_file(corpus, places, scores[places], asked, weights) + close[places]
    scores *= _of_files(corpus, question, asked, under, weights)[corpus.file[places]]
    places, scores = places[scores > 0], scores[scores > 0]
    most = _AT_FIRST * limit
    while True:
        some = _best(scores, most)
        hits = _spread(corpus, places[some], scores[some], limit, weights)
        # who is left out scores less than each of these did before any further piece counted for less
        if len(some) == len(scores) or (len(hits) == limit and hits[-1].score > round(scores[some].min(), _DIGITS)):
            return hits
        most *= 4


def _add_word(scores: Floats, corpus: Corpus, word: str, asked: int, find: Find, weights: Weights) -> None:
    term = word.encode("utf-8", "replace")
    places, times, rarity = corpus.with_word(WORD + term, find)
    around = weights.k1 * (1 - weights.b + weights.b * corpus.rows[places, 2] / corpus.mean)
    scores[places] += asked * rarity * times * (weights.k1 + 1) / (times + around)
    if weights.defined:
        places, _, _ = corpus.with_word(DEFINED + term, find)
        scores[places] += asked * weights.defined * rarity


def _by_file(corpus: Corpus, places: Places, scores: Floats, asked: Mapping[str, int], weights: Weights) -> Floats:
    """A piece's own score, its path's, and some of what its file's pieces have together. What shares no word with the
    question and is not near it is no answer."""
    files = corpus.file[places]
    summed = np.sqrt(np.bincount(files, scores**2, len(corpus.paths)))
    of_paths = np.zeros(len(corpus.paths))
    for word, times in asked.items():
        having, rarity = corpus.with_path(word)
        of_paths[having] += times * rarity
    return scores + weights.path * of_paths[files] + weights.file * summed[files]


def _of_files(corpus: Corpus, question: str, asked: Mapping[str, int], under: str, weights: Weights) -> Floats:
    """By what the pieces of each file are multiplied."""
    files = np.ones(len(corpus.paths))
    if _TESTS_ASKED.isdisjoint(words_of(_TO_TEST.sub("", question))):
        files[corpus.marked(_is_of_tests, folders=True)] *= weights.tests
    if not asked.keys() & _OF_PROSE:
        files[corpus.marked(_is_prose, folders=False)] *= weights.prose
    if under:
        files *= [f"{path}/".startswith(f"{under.rstrip('/')}/") for path in corpus.paths]
    return files


def _best(scores: Floats, most: int) -> Places:
    """Which are the best so many, with all that score as the last of them does."""
    if len(scores) <= most:
        return np.arange(len(scores))
    return np.flatnonzero(scores >= np.partition(scores, -most)[-most])


def _spread(corpus: Corpus, places: Places, scores: Floats, limit: int, weights: Weights) -> list[Hit]:
    """The best of these, where each further piece of one text and of one file counts for less."""
    files, which = np.unique(corpus.file[places], return_inverse=True)
    paths = [corpus.paths[number] for number in files.tolist()]
    by_path = np.empty(len(paths), np.int64)
    by_path[sorted(range(len(paths)), key=paths.__getitem__)] = np.arange(len(paths))
    order = np.lexsort((corpus.rows[places, 0], by_path[which]))
    places, scores = places[order], scores[order]
    scores = scores / (1 + weights.same_text * _beyond(weights.same_text_from, corpus.rows[places, 3], scores))
    scores /= 1 + weights.same_file * _beyond(weights.same_file_from, corpus.file[places], scores)
    scores = np.round(scores, _DIGITS)
    best = [(places[at], float(scores[at])) for at in np.argsort(-scores, kind="stable")[:limit]]
    return [_hit(corpus, place, score) for place, score in best if score > 0]


def _hit(corpus: Corpus, place: int, score: float) -> Hit:
    first, end, _, _ = corpus.rows[place].tolist()
    return Hit(corpus.paths[corpus.file[place]], first + 1, end, score)


def _is_of_tests(part: str) -> bool:
    return _OF_TESTS.search(part) is not None


def _is_prose(name: str) -> bool:
    return _PROSE.search(name) is not None


def _beyond(most: int, groups: NDArray[np.integer], scores: Floats) -> Places:
    """The place of each in its group beyond the first so many, best first."""
    order = np.lexsort((-scores, groups))
    ordered = groups[order]
    begins = np.append(True, ordered[1:] != ordered[:-1])
    at = np.arange(len(order))
    found = np.empty_like(at)
    found[order] = at - np.maximum.accumulate(np.where(begins, at, 0))
    return np.maximum(found - (most - 1), 0)
