"""What the index of a large tree costs: to be made, to be asked first, and to be kept up.

    python benchmarks/large_tree.py [--files 50000] [--also DIRECTORY] [--at DIRECTORY]

In a tree of Python's library and the packages beside it, and of the files below each --also. `cold_cpu_s_10k` is the
CPU time of taking in 10,000 files; `second_worktree_embeds` how many pieces a second worktree of the same commit embeds
(it takes in no content either); `memory_mb` the largest size of the process that built. Then a process that has just
begun asks a store that knows all files: by the command (`command_ms`), and as an agent's session, which finds out by
its sandbox what has changed: `first_query_ms` its first question, `query_ms_p50` the later ones, `answer_ms_p50` whole
answers of `codebase_search`, `changed_ms` a question after 100 files were changed, and `changed_found` in how many of
them it found that. Each time stands as the clock's and as CPU time of the process (`*_cpu_ms`, without the sandbox's
part), since other work on the machine stretches the first alone. With `--at` the tree and its store are kept for the
next run. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from searching.trees import directory, git, source_tree

from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.tools import ToolConfig
from etude.harness.tools.agent.codebase import CODEBASE_SEARCH
from etude.harness.tools.agent.indexed import keep_on_disk
from etude.search import Hit
from etude.search.answer import FORM
from etude.search.workspace import build, open_store, search

_QUESTIONS = (
    "how is a header parsed", "where are sessions saved", "convert an array to another dtype",
    "raise an error for an invalid shape", "retry a failed request", "compile a regular expression",
    "load weights of a checkpoint", "read a configuration file", "cache of compiled functions", "parse command line",
)  # fmt: skip
_CHANGED = 100
_Answer = TypeVar("_Answer")


async def timed(done: Awaitable[_Answer]) -> tuple[_Answer, float, float]:
    """The answer, and the milliseconds of this process's CPU and of the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    answer = await done
    return answer, 1000 * (time.process_time() - cpu), 1000 * (time.perf_counter() - wall)


async def in_a_session(root: Path) -> dict[str, float]:
    """A session's questions, from its first, and after files have changed."""
    sandbox = await open_workspace(root, WorkspaceConfig())
    try:
        await sandbox.exec("true")
        indexed, config = keep_on_disk(sandbox, root), ToolConfig()

        async def hits(text: str, limit: int = FORM.pieces) -> list[Hit]:
            return (await indexed.search(sandbox, config, text, limit, "")).hits

        _, cpu, wall = await timed(hits(_QUESTIONS[0]))
        later = [(await timed(hits(text)))[1:] for text in _QUESTIONS]
        answers = [(await timed(CODEBASE_SEARCH.run(sandbox, config, {"query": text})))[2] for text in _QUESTIONS]
        for path in sorted(root.rglob("*.py"))[:_CHANGED]:
            new = f"\n\ndef changed_just_now():\n    return {time.time_ns()}\n"
            path.write_bytes(path.read_bytes() + new.encode())
        found, changed_cpu, changed_wall = await timed(hits("changed just now", 5 * _CHANGED))
        return {
            "first_query_ms": round(wall, 1), "first_query_cpu_ms": round(cpu, 1),
            "query_ms_p50": round(median(wall for _, wall in later), 1),
            "query_cpu_ms_p50": round(median(cpu for cpu, _ in later), 1), "answer_ms_p50": round(median(answers), 1),
            "changed_ms": round(changed_wall, 1), "changed_cpu_ms": round(changed_cpu, 1),
            "changed_found": len({hit.path for hit in found if _says_so(root, hit)}),
            "query_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }  # fmt: skip
    finally:
        await sandbox.destroy()
        git(root, "checkout", "-q", ".")


def by_the_command(root: Path) -> dict[str, float]:
    """What `etude index search` does when it has begun."""
    begun, cpu = time.perf_counter(), time.process_time()
    search(root, open_store(), _QUESTIONS[0], 8)
    return {
        "command_ms": round(1000 * (time.perf_counter() - begun), 1),
        "command_cpu_ms": round(1000 * (time.process_time() - cpu), 1),
    }


def _says_so(root: Path, hit: Hit) -> bool:
    lines = (root / hit.path).read_text("utf-8", "replace").split("\n")[hit.first - 1 : hit.last]
    return any("changed_just_now" in line for line in lines)


def in_tree(files: int, kept_at: Path | None = None, also: Sequence[Path] = ()) -> dict[str, object]:
    """All figures, of a tree of so many files; with `kept_at` it stays there for the next time."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        at = kept_at or Path(place)
        root = source_tree(at, files, also)
        os.environ["XDG_CACHE_HOME"] = str(at / "cache")
        cpu = time.process_time()
        built = build(root, open_store())
        cpu = time.process_time() - cpu
        line: dict[str, object] = {"files": built.files + built.too_long, "taken": built.taken}
        if 2 * built.taken > built.files:
            line["cold_cpu_s_10k"] = round(cpu / built.taken * 10_000, 1)
        line["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        other = at / "second"
        git(root, "worktree", "add", "-q", "--force", str(other))
        second = build(other, open_store())
        assert second.taken == 0, f"a second worktree took {second.taken} contents in anew"
        line["second_worktree_embeds"] = second.embedded
        git(root, "worktree", "remove", "--force", str(other))
        for way in ("command", "session"):
            fresh = [sys.executable, __file__, "--asked", str(root), "--by", way]
            line |= json.loads(subprocess.run(fresh, check=True, capture_output=True, text=True, timeout=600).stdout)
        print(f"{line['files']} files, {built.bytes >> 20} MiB of store")
        return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--also", type=directory, action="append", default=[], metavar="DIRECTORY")
    parser.add_argument("--at", type=Path)
    parser.add_argument("--asked", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--by", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.asked is None:
        line: object = in_tree(options.files, options.at, options.also)
    else:
        session = options.by == "session"
        line = asyncio.run(in_a_session(options.asked)) if session else by_the_command(options.asked)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
