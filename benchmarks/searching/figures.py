"""How well questions are answered, and how far one search is ahead of another.

Owns `answered`, `figures` and `ahead`. A file is found at the rank of its first piece; a function is hit where a piece
shares a line with it. Intervals are of the questions that were asked: other questions on the same repositories. How
other repositories differ they do not say.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from searching.peers import TEN, Searcher
from searching.sets import Question

from etude.search import Hit

Answer = tuple[Question, Sequence[Hit], Sequence[Hit]]
"""What was asked, the pieces that were found, and the first ten."""
Pair = tuple[Sequence[float], Sequence[float]]
"""Ours and theirs, of the same questions."""
_RESAMPLED = 2000
_LINES = 200


def answered(searchers: Mapping[str, Searcher], asked: Sequence[Question]) -> dict[str, list[Answer]]:
    """Question by question, so that what searchers share of a question is done once."""
    found: dict[str, list[Answer]] = {name: [] for name in searchers}
    for question in asked:
        for name, searcher in searchers.items():
            hits = searcher.find(question)
            found[name].append((question, hits, (searcher.ten(question) if searcher.ten else hits)[:TEN]))
    return found


def figures(located: Sequence[Answer], documented: Sequence[Answer]) -> dict[str, list[float]]:
    """Each figure of each question; `ten_files` and `ten_lines` are what ten pieces are of."""
    return {
        "locate_mrr": [file_rank(question, hits) for question, hits, _ in located],
        "locate_fn_hit10": [
            float(function_rank(question, ten) > 0) for question, _, ten in located if question.functions
        ],
        "doc_r10": [float(function_rank(question, ten) > 0) for question, _, ten in documented],
        "doc_mrr": [function_rank(question, hits) for question, hits, _ in documented],
        "doc_r200": [float(within_lines(question, hits, _LINES)) for question, hits, _ in documented],
        "ten_files": [float(len({hit.path for hit in ten})) for _, _, ten in [*located, *documented]],
        "ten_lines": [float(sum(_length(hit) for hit in ten)) for _, _, ten in [*located, *documented]],
    }


def file_rank(question: Question, hits: Sequence[Hit]) -> float:
    """One over the rank of the first right file."""
    paths = list(dict.fromkeys(hit.path for hit in hits))
    return next((1 / rank for rank, path in enumerate(paths, 1) if path in question.files), 0.0)


def function_rank(question: Question, hits: Sequence[Hit]) -> float:
    """One over the rank of the first piece that shares a line with a right function."""
    return next((1 / rank for rank, hit in enumerate(hits, 1) if _hits(question, hit)), 0.0)


def within_lines(question: Question, hits: Sequence[Hit], lines: int) -> bool:
    """Whether a right function is in what so many lines of pieces show."""
    for hit in hits:
        shown = replace(hit, last=min(hit.last, hit.first + lines - 1))
        if lines > 0 and _hits(question, shown):
            return True
        lines -= _length(hit)
    return False


def _hits(question: Question, hit: Hit) -> bool:
    return any(hit.path == path and hit.first <= last and first <= hit.last for path, first, last in question.functions)


def _length(hit: Hit) -> int:
    return hit.last - hit.first + 1


def mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 4) if values else None


def ahead(*pairs: Pair) -> tuple[float, float, float]:
    """The mean of the differences and its interval; of several pairs the mean of theirs."""
    differences = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
    return tuple(round(each, 4) for each in (fmean(map(fmean, differences)), *interval(*differences)))


def interval(*groups: Sequence[float]) -> tuple[float, float]:
    """Of the mean of the groups' means, 95%, by resampling questions within each."""
    chance = random.Random(0)
    means = sorted(fmean(fmean(chance.choices(each, k=len(each))) for each in groups) for _ in range(_RESAMPLED))
    return means[int(0.025 * _RESAMPLED)], means[int(0.975 * _RESAMPLED)]


def compared(peer: str, difference: tuple[float, float, float], *pairs: Pair) -> str:
    """A line that tells how far ours is ahead, which is `ahead` of the pairs."""
    ours, theirs = (fmean(map(fmean, each)) for each in zip(*pairs, strict=True))
    middle, low, high = difference
    return f"{ours:.3f}  {peer:8} {theirs:.3f}  difference {middle:+.3f} [{low:+.3f}, {high:+.3f}]"
