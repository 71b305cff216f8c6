"""Queries that semble (MinishLab) has published with the places that are right, and NDCG@10 as its benchmark counts it.

Owns `published`, which reads them, and `scored`. They are others' texts, as the sources are that they ask about, so
neither is in this tree. A directory holds them:

    annotations/NAME.json    as semble's benchmarks/annotations has it
    sources/NAME/            of the revision that its benchmarks/repos.json pins, the benchmark_root at its path

A right place is a file or a span of its lines; those that semble calls secondary count as the others do. A place is
found at the rank of the first piece that shares a line with it. So a piece of a file that was found before takes a
rank and gains nothing, and one rank gains once, whatever it finds. Ten pieces count. `ndcg_files` counts ranks in files
instead, each once, of all pieces that a search gives: ten files count.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from searching.peers import TEN, Searcher
from searching.sets import Question, Span, files_below

from etude.search import Hit

Published = dict[str, list[Question]]
"""By repository. What a question's `functions` are here is its right places: of a whole file, all lines."""
Values = dict[str, list[float]]
"""By repository, of each question."""
Scores = dict[str, Values]
"""By figure."""


def published(directory: str) -> Published:
    """Of all repositories that have annotations there, for an option of argparse, which tells the error."""
    annotated = sorted(Path(directory, "annotations").glob("*.json"))
    if not annotated:
        raise argparse.ArgumentTypeError(f"{directory}/annotations has no NAME.json; put semble's there")
    return {path.stem: list(_questions(path, Path(directory, "sources", path.stem))) for path in annotated}


def _questions(annotated: Path, source: Path) -> Iterator[Question]:
    tree = files_below(source)
    for text, places in _read(annotated):
        for path, first, last in places:
            lines = len(tree.get(path, b"").splitlines())
            if path not in tree or (last < sys.maxsize and not 1 <= first <= last <= lines):
                lacking = f"{path} as {annotated} names it" if path not in tree else f"{path}:{first}-{last}"
                raise argparse.ArgumentTypeError(
                    f"{source} lacks {lacking}; put the revision there that semble's benchmarks/repos.json pins"
                )
        yield Question(annotated.stem, tree, text, frozenset(path for path, _, _ in places), places)


def _read(annotated: Path) -> list[tuple[str, tuple[Span, ...]]]:
    """Queries with their right places."""
    try:
        return [_query(each) for each in json.loads(annotated.read_text())]
    except (ValueError, KeyError, TypeError) as error:
        raise argparse.ArgumentTypeError(
            f"{annotated} is no list of annotated queries as semble's: {error!r}"
        ) from None


def _query(told: Mapping[str, Any]) -> tuple[str, tuple[Span, ...]]:
    places = tuple(map(_place, [*told["relevant"], *told.get("secondary", [])]))
    if not places:
        raise ValueError(f"{told['query']} has no right place")
    return told["query"], places


def _place(target: str | Mapping[str, Any]) -> Span:
    if isinstance(target, str):
        return target, 1, sys.maxsize
    return target["path"], int(target.get("start_line") or 1), int(target.get("end_line") or sys.maxsize)


def scored(searcher: Searcher, asked: Published) -> Scores:
    """Each figure of each question."""
    find = searcher.ten or searcher.find
    found = {name: [(each, find(each)) for each in questions] for name, questions in asked.items()}
    return {
        key: {name: [ndcg(*each, files=files) for each in pairs] for name, pairs in found.items()}
        for key, files in (("ndcg", False), ("ndcg_files", True))
    }


def ndcg(question: Question, hits: Sequence[Hit], files: bool = False) -> float:
    """What the first ten pieces or files gain, as a share of what the best order of the right places would."""
    firsts = (_first(place, hits) for place in question.functions)
    ranks = {len({hit.path for hit in hits[:at]}) if files else at for at in firsts if at is not None}
    return _gain(ranks) / _gain(range(1, len(question.functions) + 1))


def _first(place: Span, hits: Sequence[Hit]) -> int | None:
    """The rank, from 1, of the first piece that shares a line with the place."""
    path, first, last = place
    found = (rank for rank, hit in enumerate(hits, 1) if hit.path == path and hit.first <= last and first <= hit.last)
    return next(found, None)


def _gain(ranks: set[int] | range) -> float:
    return sum(1 / math.log2(1 + rank) for rank in ranks if rank <= TEN)
