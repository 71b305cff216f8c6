"""What the index of a large tree costs: to be made, to be asked first, and to be kept up.

    python benchmarks/large_tree.py [--files 50000] [--also DIRECTORY] [--at DIRECTORY]

In a tree of Python's library and the packages beside it, and of the files below each --also. `cold_cpu_s_10k` is the
CPU time of taking in 10,000 files; `first_query_ms` a question that a fresh process asks of a store that knows them
all, with finding out that nothing has changed; `query_ms_p50` the later ones, with the same; `changed_ms` a question
after 100 files were changed; `second_worktree_embeds` how many pieces a second worktree of the same commit embeds (it
takes in no content either); `memory_mb` the largest size of the process that built. Times are CPU times of the process
and wall times, since other work on the machine stretches the second alone. With `--at` the tree and its store are kept
for the next run. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from searching.trees import directory, git, source_tree

from etude.search import Index
from etude.search.workspace import build, listing, open_store, search

_QUESTIONS = (
    "how is a header parsed", "where are sessions saved", "convert an array to another dtype",
    "raise an error for an invalid shape", "retry a failed request", "compile a regular expression",
    "load weights of a checkpoint", "read a configuration file", "cache of compiled functions", "parse command line",
)  # fmt: skip
_CHANGED = 100
_Answer = TypeVar("_Answer")


def timed(do: Callable[[], _Answer]) -> tuple[_Answer, float, float]:
    """The answer, and the milliseconds of CPU and of the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    answer = do()
    return answer, 1000 * (time.process_time() - cpu), 1000 * (time.perf_counter() - wall)


def asked(root: Path) -> dict[str, float]:
    """In a process of its own, that has only just begun: the first question and the later ones."""
    store = open_store()
    _, cpu, wall = timed(lambda: search(root, store, _QUESTIONS[0], 8))
    index = Index(store, str(root))

    def again(text: str) -> int:
        assert not index.stale(listing(root).stamps), "nothing was changed"
        return len(index.search(text, 20))

    again("anything")
    later = [timed(lambda text=text: again(text))[1:] for text in _QUESTIONS]
    return {
        "first_query_ms": round(wall, 1), "first_query_cpu_ms": round(cpu, 1),
        "query_ms_p50": round(median(wall for _, wall in later), 1),
        "query_cpu_ms_p50": round(median(cpu for cpu, _ in later), 1),
        "query_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }  # fmt: skip


def after_changes(root: Path) -> dict[str, float]:
    """A question about what 100 files have only just come to hold."""
    store = open_store()
    index = Index(store, str(root))
    build(root, store)
    index.stale(listing(root).stamps)
    index.search("anything", 8)
    for path in sorted(root.rglob("*.py"))[:_CHANGED]:
        path.write_bytes(path.read_bytes() + f"\n\ndef changed_just_now():\n    return {time.time_ns()}\n".encode())

    def again() -> int:
        there = listing(root)
        stale = index.stale(there.stamps)
        index.update(there.stamps, [(path, (root / path).read_bytes()) for path in stale])
        return sum(hit.score > 0 for hit in index.search("changed just now", _CHANGED))

    found, cpu, wall = timed(again)
    git(root, "checkout", "-q", ".")
    return {"changed_ms": round(wall, 1), "changed_cpu_ms": round(cpu, 1), "changed_found": found}


def in_tree(files: int, kept_at: Path | None = None, also: Sequence[Path] = ()) -> dict[str, object]:
    """All figures, of a tree of so many files; with `kept_at` it stays there for the next time."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        at = kept_at or Path(place)
        root = source_tree(at, files, also)
        os.environ["XDG_CACHE_HOME"] = str(at / "cache")
        built, cpu, _ = timed(lambda: build(root, open_store()))
        line: dict[str, object] = {"files": built.files + built.too_long, "taken": built.taken}
        if 2 * built.taken > built.files:
            line["cold_cpu_s_10k"] = round(cpu / 1000 / built.taken * 10_000, 1)
        line["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        other = at / "second"
        git(root, "worktree", "add", "-q", "--force", str(other))
        second = build(other, open_store())
        assert second.taken == 0, f"a second worktree took {second.taken} contents in anew"
        line["second_worktree_embeds"] = second.embedded
        git(root, "worktree", "remove", "--force", str(other))
        fresh = [sys.executable, __file__, "--asked", str(root)]
        line |= json.loads(subprocess.run(fresh, check=True, capture_output=True, text=True, timeout=600).stdout)
        line |= after_changes(root)
        print(f"{line['files']} files, {built.bytes >> 20} MiB of store")
        return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--also", type=directory, action="append", default=[], metavar="DIRECTORY")
    parser.add_argument("--at", type=Path)
    parser.add_argument("--asked", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    print(json.dumps(asked(options.asked) if options.asked else in_tree(options.files, options.at, options.also)))


if __name__ == "__main__":
    main()
