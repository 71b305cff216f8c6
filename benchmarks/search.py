"""How well the agent's search finds the code, what it costs, and whether it helps: all figures of search in one line.

    python benchmarks/search.py                            # all parts, on the development repositories
    python benchmarks/search.py --only ranking,answers     # some of them
    python benchmarks/search.py --only ranking --part sealed --peers words,bm25s    # asked once, for what is published
    python benchmarks/search.py --only ranking --peers semble,e5 --vectors ../e5    # others' searches, installed first
    python benchmarks/search.py --only published --published ../semble --peers words,bm25s    # on semble's queries
    python benchmarks/search.py --only agent --clone ../sympy@e950d313a932 --most 40

The sets are made of `benchmarks/mined` (searching/sets.py). **ranking**: ours beside ours by words alone and other
rankings (searching/peers.py, each with what it needs). A file is found at the rank of its first piece; a function is
hit where a piece shares a line with it, so ten long pieces hit more than ten short ones: `doc_r200` is recall within
the first 200 lines that pieces cover, whatever their length. `piece_ms` is the CPU time of a piece where a tree is
taken in from nothing, and null where that had been paid for before: e5's vectors are kept below --vectors. **answers**:
`tokens_ratio` is what an answer costs beside one of the form before; `held` is the share of answers in which a right
function is named, with its lines or in the outline, and `shown` of those that show its lines: a piece in the outline
costs a look at the file before it is read. **agent**: a scripted agent with the search and without
(searching/seeking.py), of mined tasks and of those of a clone that --clone names. **grep** and **large** are
benchmarks/grep.py and large_tree.py in a tree of --files, which the files below each --also join. **published** is
NDCG@10 of ours and of each peer on queries that semble has published, by repository and in the mean of these, which for
ours is `pub_ndcg`; it needs --published (searching/published.py says what lies there) and is left out without. Keys of
parts that were not asked for or left out are null. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import grep
import large_tree
from searching import answers
from searching.peers import PIECES, Searcher, before, bm25s, e5, indexable
from searching.published import MOST, Scores, Values, published, scored
from searching.seeking import WAYS, sought
from searching.semble_peer import semble
from searching.sets import PARTS, Question, doc, locate, of_clone, unpacked
from searching.trees import directory

from etude.search import Hit, Index, Store, index_version
from etude.search.ranking import WEIGHTS, Weights

Pair = tuple[Sequence[float], Sequence[float]]
"""Ours and theirs, of the same questions."""
_RESAMPLED = 2000
_LINES = 200
_OF_A_CLONE = 40
_WARM = Question("warm", {"warm.py": b"def warm(cold):\n    return cold + 1\n\n\n" * 9}, "warm", frozenset(), ())


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

    return Searcher(find, lambda: sum(index.embedded for index in indexes.values()))


def by_words() -> Searcher:
    """The same without vectors."""
    return ours(replace(WEIGHTS, near=0.0))


PEERS: dict[str, Callable[[argparse.Namespace, int], Searcher]] = {
    "words": lambda options, pieces: by_words(),
    "before": lambda options, pieces: before(),
    "bm25s": lambda options, pieces: bm25s(),
    "semble": lambda options, pieces: semble(options.semble_model, pieces),
    "e5": lambda options, pieces: e5(options.vectors),
}
"""How each is made, from which so many pieces will be taken."""


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


def measured(searcher: Searcher, located: Sequence[Question], documented: Sequence[Question]) -> dict[str, list[float]]:
    """Each figure of each question, and what a piece cost in each repository's first tree."""
    timed = Timed(searcher)
    places = [(question, timed(question)) for question in located]
    docs = [(question, timed(question)) for question in documented]
    ranks = [function_rank(*each) for each in docs]
    return {
        "locate_mrr": [file_rank(*each) for each in places],
        "locate_fn_hit10": [float(function_rank(*each) >= 0.1) for each in places if each[0].functions],
        "doc_r10": [float(rank >= 0.1) for rank in ranks],
        "doc_mrr": ranks,
        "doc_r200": [float(within_lines(*each, _LINES)) for each in docs],
        "piece_ms": timed.of_pieces(),
    }


class Timed:
    """A searcher, and the CPU time of its answers. A small question first: what is loaded once is not counted."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self._first: dict[str, tuple[float, int, int]] = {}
        self._later: list[float] = []
        searcher.find(_WARM)

    def __call__(self, question: Question) -> list[Hit]:
        taken, kept, started = self._searcher.taken(), self._searcher.kept(), time.process_time()
        hits = self._searcher.find(question)
        spent = time.process_time() - started
        if question.repository in self._first:
            self._later.append(spent)
        else:
            self._first[question.repository] = spent, self._searcher.taken() - taken, self._searcher.kept() - kept
        return hits

    def of_pieces(self) -> list[float]:
        """Milliseconds a piece in each repository's first tree, less what an answer costs; none where some of a
        tree had been paid for before."""
        if any(kept for _, _, kept in self._first.values()):
            return []
        answer = statistics.median(self._later) if self._later else 0.0
        return [1000 * (spent - answer) / taken for spent, taken, _ in self._first.values() if taken]


def told(searcher: Searcher, asked: Sequence[Question]) -> dict[str, float]:
    """What answers cost and hold, now and in the form before, of the same pieces in the same order."""
    found = [(question, searcher.find(question)) for question in asked if question.functions]
    now, before = ([way(*each) for each in found] for way in (answers.now, answers.before))
    figures = {}
    for name, of in (("", now), ("_before", before)):
        for at, key in enumerate(("tokens", "held", "shown")):
            figures[key + name] = round(fmean(float(each[at]) for each in of), 4)
    print("  ".join(f"{key} {value:.3f}" for key, value in figures.items()))
    return {"tokens_ratio": round(figures["tokens"] / figures["tokens_before"], 4), **figures}


def interval(*groups: Sequence[float]) -> tuple[float, float]:
    """Of the mean of the groups' means, 95%, by resampling questions within each."""
    chance = random.Random(0)
    means = sorted(fmean(fmean(chance.choices(each, k=len(each))) for each in groups) for _ in range(_RESAMPLED))
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


def ranking(options: argparse.Namespace) -> dict[str, object]:
    """Every figure of ours, and of each peer."""
    peers = dict(made(options))
    located, documented = asked(options)
    print(f"{options.part}: {len(located)} commits, {len(documented)} docstrings; {index_version()}")
    own = measured(ours(), located, documented)
    line: dict[str, object] = {key: _mean(values) for key, values in own.items()}
    for name, peer in peers.items():
        found = measured(peer, located, documented)
        figures: dict[str, object] = {key: _mean(values) for key, values in found.items()}
        figures["ours_ahead"] = {key: ahead((own[key], found[key])) for key in found if key != "piece_ms"}
        for key in figures["ours_ahead"]:
            print(f"{key:16} ours {compared(name, (own[key], found[key]))}")
        print(f"{'piece_ms':16} ours {line['piece_ms']}  {name:7} {figures['piece_ms']}  {peer.told()}", flush=True)
        line.setdefault("peers", {})[name] = figures
    return line


def made(options: argparse.Namespace, pieces: int = PIECES) -> Iterator[tuple[str, Searcher]]:
    """The peers that were asked for, before anything is measured: one whose package is missing says so at once."""
    for name in options.peers:
        try:
            yield name, PEERS[name](options, pieces)
        except (ImportError, OSError) as error:
            print(f"{name} cannot run here and is left out: {error}", flush=True)


def _mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 4) if values else None


def on_published(options: argparse.Namespace) -> dict[str, object]:
    """Of ours and of each peer; nothing where no queries are at hand."""
    if options.published is None:
        return {}
    peers = dict(made(options, MOST))
    print(f"published: {', '.join(f'{len(asked)} queries on {name}' for name, asked in options.published.items())}")
    own = scored(ours(), options.published)
    line = {"ours": means(own)}
    for name, peer in peers.items():
        found = scored(peer, options.published)
        line[name] = means(found) | {"ours_ahead": {key: beside(name, key, own[key], found[key]) for key in own}}
    return {"pub_ndcg": line["ours"]["ndcg"]["mean"], "published": line}


def means(scores: Scores) -> dict[str, dict[str, object]]:
    """Of each figure by repository, and the mean of these."""
    return {
        key: {name: _mean(values) for name, values in found.items()} | {"mean": _mean([*map(fmean, found.values())])}
        for key, found in scores.items()
    }


def beside(peer: str, key: str, own: Values, theirs: Values) -> dict[str, tuple[float, float, float]]:
    """How far ours is ahead in each repository and in the mean of them, which is printed too."""
    pairs = {name: (own[name], values) for name, values in theirs.items()}
    apart = {name: (pair,) for name, pair in pairs.items()} | {"mean": tuple(pairs.values())}
    for name, some in apart.items():
        print(f"{key:10} {name:10} ours {compared(peer, *some)}", flush=True)
    return {name: ahead(*some) for name, some in apart.items()}


def agent(options: argparse.Namespace) -> dict[str, object]:
    """What the scripted agent read, with the search and without; keys end with which of the two."""
    line: dict[str, object] = {}
    figures = asyncio.run(sought(tasks(options)))
    for key, values in figures["with"].items():
        pairs = [each for each in zip(values, figures["without"][key], strict=True) if not any(map(math.isnan, each))]
        for way, own in zip(WAYS, zip(*pairs, strict=True), strict=True):
            line[f"agent_{key}_{way}"] = round(fmean(own), 4)
        print(f"agent {key:16} with {compared('without', tuple(zip(*pairs, strict=True)))}")
    return line | {"agent_tasks": len(values)}


def tasks(options: argparse.Namespace) -> Iterator[Question]:
    """Of the clones that are named; where none is, of the mined repositories."""
    if not options.clone:
        yield from asked(options)[0]
    for named in options.clone:
        place, _, revision = named.rpartition("@")
        yield from of_clone(Path(place), revision, options.most or _OF_A_CLONE)


def ahead(*pairs: Pair) -> tuple[float, float, float]:
    """The mean of the differences and its interval; of several pairs the mean of theirs."""
    differences = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
    return tuple(round(each, 4) for each in (fmean(map(fmean, differences)), *interval(*differences)))


def compared(peer: str, *pairs: Pair) -> str:
    difference, low, high = ahead(*pairs)
    ours, theirs = (fmean(map(fmean, each)) for each in zip(*pairs, strict=True))
    return f"{ours:.3f}  {peer:7} {theirs:.3f}  difference {difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(RUNS), help=f"of {', '.join(RUNS)}")
    parser.add_argument("--part", choices=PARTS, default="development")
    parser.add_argument("--peers", default="words,before,bm25s", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--vectors", type=Path, metavar="DIRECTORY", help="where e5's vectors are and are kept")
    parser.add_argument("--semble-model", type=Path, metavar="DIRECTORY", help="as model2vec writes one")
    parser.add_argument("--published", type=published, metavar="DIRECTORY", help="semble's queries and their sources")
    parser.add_argument("--most", type=int, help="so many questions of each set, drawn by chance; or of each clone")
    parser.add_argument("--clone", action="append", default=[], metavar="DIRECTORY@COMMIT", help="tasks of its history")
    parser.add_argument("--files", type=int, default=30_000, help="of the tree in which grep and large are timed")
    parser.add_argument(
        "--also", type=directory, action="append", default=[], metavar="DIRECTORY", help="its files too"
    )
    options = parser.parse_args()
    options.peers = [name for name in options.peers.split(",") if name]
    if unknown := [name for name in options.peers if name not in PEERS]:
        parser.error(f"--peers: there is no {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if "e5" in options.peers and options.vectors is None:
        parser.error("--peers e5: name a directory with --vectors; a vector costs 0.3 s of CPU and is kept there")
    line: dict[str, object] = dict.fromkeys(KEYS) | {"part": options.part, "version": index_version(), "peers": {}}
    for name in options.only.split(","):
        line |= RUNS[name](options)
    print(json.dumps(line))


def asked(options: argparse.Namespace) -> tuple[list[Question], list[Question]]:
    located, documented = questions(PARTS[options.part])
    return _some(located, options.most), _some(documented, options.most)


def _some(asked: Sequence[Question], most: int | None) -> list[Question]:
    """In their order, so that a tree is still brought up to date from the one before."""
    drawn = set(random.Random(0).sample(range(len(asked)), min(most or len(asked), len(asked))))
    return [question for at, question in enumerate(asked) if at in drawn]


RUNS = {
    "ranking": ranking,
    "published": on_published,
    "answers": lambda options: told(ours(), [each for some in asked(options) for each in some]),
    "agent": agent,
    "grep": lambda options: grep.in_tree(options.files, also=options.also),
    "large": lambda options: large_tree.in_tree(options.files, also=options.also),
}
KEYS = (
    "locate_mrr", "locate_fn_hit10", "doc_r10", "doc_mrr", "pub_ndcg", "published", "first_query_ms", "query_ms_p50",
    "second_worktree_embeds", "grep_mismatches", "grep_rare_ms", "grep_common_ms", "tokens_ratio",
    "agent_files_found_with", "agent_files_found_without",
)  # fmt: skip

if __name__ == "__main__":
    main()
