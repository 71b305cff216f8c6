"""How well the agent's search finds the code: today's ranking, the one before the store, and bm25s, side by side.

    python benchmarks/search.py                      # the development repositories
    python benchmarks/search.py --part sealed        # the others: asked once, for a figure that is published

The sets are made of `benchmarks/mined` (searching/sets.py). A file is found at the rank of its first piece; a function
is hit where a piece shares a line with it. bm25s (`pip install bm25s`) gets the same pieces, names split, and paths.
`tokens_ratio` is what an answer costs beside one of the form before; `held` is the share of answers in which a right
function is named, with its lines or in the outline, and `shown` of those that show its lines: a piece in the outline
costs a look at the file before it is read. Not measured here: vectors, semble and its annotations, and what an agent
does with the answers; benchmarks/grep.py and large_tree.py have the times.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

from searching import answers
from searching.lexical import LexicalIndex
from searching.sets import PARTS, Question, doc, locate, unpacked

from etude.search import Hit, Index, Store, index_version
from etude.search.content import MAX_BYTES, is_code, read, text_of
from etude.search.ranking import WEIGHTS, Weights
from etude.search.words import words_of

_PIECES = 50
_RESAMPLED = 2000
Searcher = Callable[[Question], list[Hit]]


def ours(weights: Weights = WEIGHTS) -> Searcher:
    """The index as it is, in memory; a tree is brought up to date from the one before."""
    store = Store(None)
    indexes: dict[str, Index] = {}

    def search(question: Question) -> list[Hit]:
        index = indexes.setdefault(question.repository, Index(store, question.repository))
        files = _indexable(question)
        stamps = {path: str(hash(data)) for path, data in files.items()}
        index.update(stamps, [(path, files[path]) for path in index.stale(stamps)])
        return index.search(question.text, _PIECES, weights=weights)

    return search


def before() -> Searcher:
    """What there was before the store."""
    indexes: dict[str, tuple[LexicalIndex, dict[str, bytes]]] = {}

    def search(question: Question) -> list[Hit]:
        index, known = indexes.setdefault(question.repository, (LexicalIndex(), {}))
        files = _indexable(question)
        for path in known.keys() - files.keys():
            index.drop(path)
            del known[path]
        for path, data in files.items():
            if known.get(path) != data:
                known[path] = data
                text = text_of(data)
                index.drop(path) if text is None else index.put(path, text)
        return index.search(question.text, _PIECES)

    return search


def bm25s() -> Searcher:
    """The library, over our pieces. Raises ImportError where it is not installed."""
    import bm25s as library

    pieces: dict[tuple[str, bytes], list[tuple[int, int, list[str]]]] = {}
    made: list[tuple[int, object, list[Hit]]] = []

    def corpus(question: Question) -> tuple[object, list[Hit]]:
        if not made or made[-1][0] != id(question.tree):
            texts, hits = [], []
            for path, data in _indexable(question).items():
                if (path, data) not in pieces:
                    cut = read(path, data, grams=False).pieces
                    pieces[path, data] = [(each.first, each.end, list(each.words.elements())) for each in cut]
                for first, end, words in pieces[path, data]:
                    texts.append([*words, *words_of(path)])
                    hits.append(Hit(path, first + 1, end, 0.0))
            index = library.BM25()
            index.index(texts, show_progress=False)
            made[:] = [(id(question.tree), index, hits)]
        return made[-1][1], made[-1][2]

    def search(question: Question) -> list[Hit]:
        index, hits = corpus(question)
        found, scores = index.retrieve([list(words_of(question.text))], k=min(_PIECES, len(hits)), show_progress=False)
        return [hits[at] for at, score in zip(found[0], scores[0], strict=True) if score > 0]

    return search


def _indexable(question: Question) -> dict[str, bytes]:
    return {path: data for path, data in question.tree.items() if is_code(path) and len(data) <= MAX_BYTES}


def file_rank(question: Question, hits: Sequence[Hit]) -> float:
    """One over the rank of the first right file."""
    paths = list(dict.fromkeys(hit.path for hit in hits))
    return next((1 / rank for rank, path in enumerate(paths, 1) if path in question.files), 0.0)


def function_rank(question: Question, hits: Sequence[Hit]) -> float:
    """One over the rank of the first piece that shares a line with a right function."""
    return next((1 / rank for rank, hit in enumerate(hits, 1) if _hits(question, hit)), 0.0)


def _hits(question: Question, hit: Hit) -> bool:
    return any(hit.path == path and hit.first <= last and first <= hit.last for path, first, last in question.functions)


def measured(search: Searcher, located: Sequence[Question], documented: Sequence[Question]) -> dict[str, list[float]]:
    """Each figure of each question."""
    places = [(question, search(question)) for question in located]
    docs = [(question, search(question)) for question in documented]
    ranks = [function_rank(*each) for each in docs]
    return {
        "locate_mrr": [file_rank(*each) for each in places],
        "locate_fn_hit10": [float(function_rank(*each) >= 0.1) for each in places if each[0].functions],
        "doc_r10": [float(rank >= 0.1) for rank in ranks],
        "doc_mrr": ranks,
    }


def told(search: Searcher, asked: Sequence[Question]) -> dict[str, float]:
    """What answers cost and hold, now and in the form before, of the same pieces in the same order."""
    found = [(question, search(question)) for question in asked if question.functions]
    now, before = ([way(*each) for each in found] for way in (answers.now, answers.before))
    figures = {}
    for name, of in (("", now), ("_before", before)):
        for at, key in enumerate(("tokens", "held", "shown")):
            figures[key + name] = round(fmean(float(each[at]) for each in of), 4)
    print("  ".join(f"{key} {value:.3f}" for key, value in figures.items()))
    return {"tokens_ratio": round(figures["tokens"] / figures["tokens_before"], 4), **figures}


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Of the mean, 95%, by resampling questions."""
    chance = random.Random(0)
    means = sorted(fmean(chance.choices(differences, k=len(differences))) for _ in range(_RESAMPLED))
    return means[int(0.025 * _RESAMPLED)], means[int(0.975 * _RESAMPLED)]


def questions(repositories: Sequence[str]) -> tuple[list[Question], list[Question]]:
    """Both sets of these repositories."""
    located, documented = [], []
    with tempfile.TemporaryDirectory() as place:
        for repository in repositories:
            tasks = unpacked(repository, Path(place))
            located += locate(repository, tasks)
            documented += doc(repository, tasks)
    return located, documented


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", choices=PARTS, default="development")
    options = parser.parse_args()
    located, documented = questions(PARTS[options.part])
    print(f"{options.part}: {len(located)} commits, {len(documented)} docstrings; {index_version()}")
    found = {"ours": measured(ours(), located, documented), "before": measured(before(), located, documented)}
    try:
        found["bm25s"] = measured(bm25s(), located, documented)
    except ImportError:
        print("bm25s is not installed, and left out: pip install bm25s")
    line: dict[str, object] = {"part": options.part, "version": index_version(), "peers": {}}
    for key in found["ours"]:
        line[key] = round(fmean(found["ours"][key]), 4)
        for peer in found.keys() - {"ours"}:
            differences = [a - b for a, b in zip(found["ours"][key], found[peer][key], strict=True)]
            low, high = interval(differences)
            value = round(fmean(found[peer][key]), 4)
            line["peers"].setdefault(peer, {})[key] = value
            apart = f"difference {fmean(differences):+.3f} [{low:+.3f}, {high:+.3f}]"
            print(f"{key:16} ours {line[key]:.3f}  {peer} {value:.3f}  {apart}")
    print("left out: pub_ndcg, agent_*; grep_* are of benchmarks/grep.py, times of benchmarks/large_tree.py")
    print(json.dumps(line | told(ours(), [*located, *documented])))


if __name__ == "__main__":
    main()
