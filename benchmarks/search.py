"""How well the agent's search finds the code, what it costs, and whether it helps: all figures of search in one line.

    python benchmarks/search.py                            # all parts, on the development repositories
    python benchmarks/search.py --only ranking,answers     # some of them
    python benchmarks/search.py --only ranking --part sealed --peers words,bm25s    # asked once, for what is published
    python benchmarks/search.py --only ranking,intake --peers semble,e5 --vectors ../e5    # others', installed first
    python benchmarks/search.py --only published --published ../semble --peers words,bm25s    # on semble's queries
    python benchmarks/search.py --only agent --clone ../sympy@e950d313a932 --most 40

The sets are made of `benchmarks/mined` (searching/sets.py). **ranking**: ours beside ours by words alone and other
rankings (PEERS, each with what it needs), of all questions and, as `unnamed`, of those that do not name a right
function. A file is found at the rank of its first piece; a function is hit where a piece shares a line with it, so ten
long pieces hit more than ten short ones: `doc_r200` is recall within the first 200 lines that pieces cover, whatever
their length. **intake**: what it costs to take a tree in (searching/intake.py). **answers**: `tokens_ratio` is what an
answer costs beside one of the form before; `held` is the share of answers in which a right function is named, with its
lines or in the outline, and `shown` of those that show lines of it. `tokens_ratio_read` is with one look at the file
wherever an answer names a right function and does not show it, and at nothing else. **agent**: a scripted agent with
the search and without (searching/seeking.py), of mined tasks and of those of a clone that --clone names. **grep** and
**large** are benchmarks/grep.py and large_tree.py in a tree of --files, which the files below each --also join.
**published** is NDCG@10 of ours and of each peer on queries that semble has published, by repository and in the mean of
these, which for ours is `pub_ndcg`; it needs --published (searching/published.py says what lies there) and is left out
without. Keys of parts that were not asked for or left out are null. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import grep
import large_tree
from searching import answers
from searching.e5_peer import e5, e5_alone, words_and_e5
from searching.figures import Answer, ahead, answered, compared, figures, mean
from searching.intake import intake
from searching.own import by_words, ours
from searching.peers import Searcher, before, bm25s
from searching.published import Scores, Values, published, scored
from searching.seeking import WAYS, sought
from searching.semble_peer import semble
from searching.sets import PARTS, Question, doc, locate, names_its_answer, of_clone, unpacked
from searching.trees import directory

from etude.search import index_version

_OF_A_CLONE = 40

PEERS: dict[str, Callable[[argparse.Namespace], Searcher]] = {
    "words": lambda options: by_words(),
    "before": lambda options: before(),
    "bm25s": lambda options: bm25s(),
    "semble": lambda options: semble(options.semble_model),
    "semble-flat": lambda options: semble(options.semble_model, rerank=False),
    "semble-words": lambda options: semble(options.semble_model, alpha=0.0),
    "e5": lambda options: e5(options.vectors),
    "words+e5": lambda options: words_and_e5(options.vectors),
    "e5-alone": lambda options: e5_alone(options.vectors),
}


def told(searcher: Searcher, asked: Sequence[Question]) -> dict[str, object]:
    """What answers cost and hold, now and in the form before, of the same pieces in the same order; and what that form
    costs and shows with fewer pieces."""
    found = [(question, searcher.find(question)) for question in asked if question.functions]
    line = _costs([answers.now(*each) for each in found])
    whole = {most: _costs([answers.before(*each, most) for each in found]) for most in range(1, answers.MOST_WHOLE + 1)}
    before = whole[answers.MOST_WHOLE]
    ratios = {"tokens_ratio": "tokens", "tokens_ratio_read": "tokens_read"}
    line |= {key: round(line[of] / before[of], 4) for key, of in ratios.items()}
    print("  ".join(f"{key} {value:.3f}" for key, value in line.items()))
    return line | {"answers_whole": whole, "answers": len(found)}


def _costs(of: Sequence[answers.Told]) -> dict[str, float]:
    return {key: round(fmean(float(getattr(each, key)) for each in of), 4) for key in answers.KEYS}


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
    searchers = {"ours": ours(), **dict(made(options))}
    sets = asked(options)
    print(f"{options.part}: {len(sets[0])} commits, {len(sets[1])} docstrings; {index_version()}", flush=True)
    found = [answered(searchers, each) for each in sets]
    for name, searcher in searchers.items():
        if said := searcher.told():
            print(f"{name}: {said}")
    named = [round(fmean(map(names_its_answer, each)), 4) for each in sets]
    apart = [{name: [each for each in own if not names_its_answer(each[0])] for name, own in some.items()}
             for some in found]  # fmt: skip
    return side_by_side(*found) | {"named": named, "unnamed": side_by_side(*apart, title=" (unnamed)")}


def side_by_side(
    located: dict[str, list[Answer]], documented: dict[str, list[Answer]], title: str = ""
) -> dict[str, object]:
    """Ours, and below `peers` each peer with how far ours is ahead."""
    values = {name: figures(located[name], documented[name]) for name in located}
    own = values.pop("ours")
    line: dict[str, object] = {key: mean(each) for key, each in own.items()} | {"peers": {}}
    for name, theirs in values.items():
        pairs = {key: (each, theirs[key]) for key, each in own.items() if each}
        differences = {key: ahead(pair) for key, pair in pairs.items()}
        for key, pair in pairs.items():
            print(f"{key + title:26} ours {compared(name, differences[key], pair)}", flush=True)
        line["peers"][name] = {key: mean(each) for key, each in theirs.items()} | {"ours_ahead": differences}
    return line


def made(options: argparse.Namespace) -> Iterator[tuple[str, Searcher]]:
    """The peers that were asked for, before anything is measured: one whose package is missing says so at once."""
    for name in options.peers:
        try:
            yield name, PEERS[name](options)
        except (ImportError, OSError) as error:
            print(f"{name} cannot run here and is left out: {error}", flush=True)


def on_published(options: argparse.Namespace) -> dict[str, object]:
    """Of ours and of each peer; nothing where no queries are at hand."""
    if options.published is None:
        return {}
    peers = dict(made(options))
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
        key: {name: mean(values) for name, values in found.items()} | {"mean": mean([*map(fmean, found.values())])}
        for key, found in scores.items()
    }


def beside(peer: str, key: str, own: Values, theirs: Values) -> dict[str, tuple[float, float, float]]:
    """How far ours is ahead in each repository and in the mean of them, which is printed too."""
    pairs = {name: (own[name], values) for name, values in theirs.items()}
    apart = {name: (pair,) for name, pair in pairs.items()} | {"mean": tuple(pairs.values())}
    differences = {name: ahead(*some) for name, some in apart.items()}
    for name, some in apart.items():
        print(f"{key:10} {name:10} ours {compared(peer, differences[name], *some)}", flush=True)
    return differences


def agent(options: argparse.Namespace) -> dict[str, object]:
    """What the scripted agent read, with the search and without; keys end with which of the two."""
    line: dict[str, object] = {}
    found = asyncio.run(sought(tasks(options)))
    for key, values in found["with"].items():
        pairs = [each for each in zip(values, found["without"][key], strict=True) if not any(map(math.isnan, each))]
        for way, own in zip(WAYS, zip(*pairs, strict=True), strict=True):
            line[f"agent_{key}_{way}"] = round(fmean(own), 4)
        pair = tuple(zip(*pairs, strict=True))
        print(f"agent {key:16} with {compared('without', ahead(pair), pair)}")
    return line | {"agent_tasks": len(values)}


def tasks(options: argparse.Namespace) -> Iterator[Question]:
    """Of the clones that are named; where none is, of the mined repositories."""
    if not options.clone:
        yield from asked(options)[0]
    for named in options.clone:
        place, _, revision = named.rpartition("@")
        yield from of_clone(Path(place), revision, options.most or _OF_A_CLONE)


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
    parser.add_argument("--intake-files", type=int, default=600, help="of the tree that intake takes in")
    parser.add_argument("--files", type=int, default=30_000, help="of the tree in which grep and large are timed")
    parser.add_argument(
        "--also", type=directory, action="append", default=[], metavar="DIRECTORY", help="its files too"
    )
    options = parser.parse_args()
    options.peers = [name for name in options.peers.split(",") if name]
    if unknown := [name for name in options.peers if name not in PEERS]:
        parser.error(f"--peers: there is no {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if options.vectors is None and (of_e5 := [name for name in options.peers if "e5" in name]):
        parser.error(
            f"--peers {of_e5[0]}: name a directory with --vectors; a vector costs 0.3 s of CPU and is kept there"
        )
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
    "intake": intake,
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
