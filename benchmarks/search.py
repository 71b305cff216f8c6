"""How well the agent's search finds the code: ours, ours by words alone, and other rankings, side by side.

    python benchmarks/search.py                      # the development repositories
    python benchmarks/search.py --part sealed        # the others: asked once, for a figure that is published
    python benchmarks/search.py --peers words,bm25s --most 60

The sets are made of `benchmarks/mined` (searching/sets.py), the peers are in searching/peers.py, each with what it
needs. A file is found at the rank of its first piece; a function is hit where a piece shares a line with it, so ten
long pieces hit more than ten short ones: `doc_r200` is recall within the first 200 lines that pieces cover, whatever
their length. `tokens_ratio` is what an answer costs beside one of the form before; `held` is the share of answers in
which a right function is named, with its lines or in the outline, and `shown` of those that show its lines: a piece in
the outline costs a look at the file before it is read. Times are of a store on disk and the first question's
repository. Not measured here: what an agent does with the answers; benchmarks/grep.py has the greps, large_tree.py
large trees.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from searching import answers
from searching.peers import PIECES, Searcher, before, bm25s, indexable
from searching.sets import PARTS, Question, doc, locate, unpacked

from etude.search import Hit, Index, Store, index_version
from etude.search.ranking import WEIGHTS, Weights
from etude.search.workspace import build, search

_RESAMPLED = 2000
_LINES = 200


def ours(weights: Weights = WEIGHTS) -> Searcher:
    """The index as it is, in memory; a tree is brought up to date from the one before."""
    store = Store(None)
    indexes: dict[str, Index] = {}

    def find(question: Question) -> list[Hit]:
        index = indexes.setdefault(question.repository, Index(store, question.repository))
        files = indexable(question)
        stamps = {path: str(hash(data)) for path, data in files.items()}
        index.update(stamps, [(path, files[path]) for path in index.stale(stamps)])
        return index.search(question.text, PIECES, weights=weights)

    return find


def by_words() -> Searcher:
    """The same without vectors."""
    return ours(replace(WEIGHTS, near=0.0))


PEERS = {"words": by_words, "before": before, "bm25s": bm25s}


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
        lines -= hit.last - hit.first + 1
    return False


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
        "doc_r200": [float(within_lines(*each, _LINES)) for each in docs],
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


def times(asked: Sequence[Question]) -> dict[str, float]:
    """Of the first question's tree in a directory: until the first answer, of a warm one, and what a copy embeds."""
    of_tree = [question for question in asked if question.tree == asked[0].tree]
    with tempfile.TemporaryDirectory() as place:
        store = Store(Path(place) / "index.sqlite")
        roots = [Path(place) / name for name in ("one", "other")]
        for root in roots:
            for path, data in asked[0].tree.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(data)
        begun = time.perf_counter()
        search(roots[0], store, of_tree[0].text, PIECES)
        first = time.perf_counter() - begun
        embeds = build(roots[1], store).embedded
        index, each = Index(store, str(roots[0])), []
        for question in of_tree:
            begun = time.perf_counter()
            index.search(question.text, PIECES)
            each.append(time.perf_counter() - begun)
        store.close()
    found = {"first_query_ms": first * 1000, "query_ms_p50": median(each) * 1000, "second_worktree_embeds": embeds}
    print(f"{len(asked[0].tree)} files: " + "  ".join(f"{key} {value:.1f}" for key, value in found.items()))
    return {key: round(value, 2) for key, value in found.items()}


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
    parser.add_argument("--peers", default="words,before,bm25s", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--most", type=int, help="so many questions of each set, drawn by chance")
    options = parser.parse_args()
    located, documented = (_some(each, options.most) for each in questions(PARTS[options.part]))
    print(f"{options.part}: {len(located)} commits, {len(documented)} docstrings; {index_version()}")
    found = {"ours": measured(ours(), located, documented)}
    for name in filter(None, options.peers.split(",")):
        try:
            found[name] = measured(PEERS[name](), located, documented)
        except (ImportError, OSError) as error:
            print(f"{name} cannot run here and is left out: {error}")
    line: dict[str, object] = {"part": options.part, "version": index_version(), "peers": {}}
    for key in found["ours"]:
        line[key] = round(fmean(found["ours"][key]), 4)
        for peer in found.keys() - {"ours"}:
            differences = [a - b for a, b in zip(found["ours"][key], found[peer][key], strict=True)]
            low, high = interval(differences)
            value = round(fmean(found[peer][key]), 4)
            line["peers"].setdefault(peer, {})[key] = value
            apart = f"difference {fmean(differences):+.3f} [{low:+.3f}, {high:+.3f}]"
            print(f"{key:16} ours {line[key]:.3f}  {peer:7} {value:.3f}  {apart}")
    print("left out: pub_ndcg, agent_*; grep_* are of benchmarks/grep.py")
    print(json.dumps(line | times(documented) | told(ours(), [*located, *documented])))


def _some(asked: Sequence[Question], most: int | None) -> list[Question]:
    """In their order, so that a tree is still brought up to date from the one before."""
    drawn = set(random.Random(0).sample(range(len(asked)), min(most or len(asked), len(asked))))
    return [question for at, question in enumerate(asked) if at in drawn]


if __name__ == "__main__":
    main()
