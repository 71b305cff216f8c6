"""How long the agent's grep takes where its index is warm, beside itself without one, GNU grep, ripgrep and glep.

    python benchmarks/grep.py [--files 30000] [--also DIRECTORY] [--rounds 15] [--at DIRECTORY]

In a tree of Python's library and the packages beside it, and of the files below each --also, one after the other in
each round, so that all meet the same noise: `indexed`, the tool with its index; `whole`, the tool without, which is the
same searcher over the files that git lists; `grep`, GNU grep -rnIP; `rg`, ripgrep with its own walk; `glep` (PyPI),
ripgrep's searcher behind an index of its own, which looks for changed files at each call as it does by default. The
last two are left out where the sandbox has no such program, as of one that lies in /tmp. Each is a whole call as a
session makes it, in the sandbox; medians are told, and of `indexed` the 95th of a hundred too. After every round a file
is changed, as a session does. `grep_mismatches` counts answers of `indexed` that are not those of `whole`; where a
search was cut, since it printed too much, both are asked once more after the rounds and compared uncut;
`grep_not_compared` counts patterns that print too much for that too. Both indexes are built before, and the first grep,
which looks at all files once, stands as `grep_first_ms`. With `--at` the tree and the indexes are kept there for the
next run. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median

from searching.trees import directory, source_tree

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.tools import ToolConfig
from etude.harness.tools.agent import find
from etude.harness.tools.agent.find import GREP
from etude.harness.tools.agent.indexed import Indexed, index_of, keep_on_disk
from etude.search.workspace import build, open_store

PATTERNS = {
    "rare": (
        "_canonicalize_bounds",
        "HTTPSConnectionPool",
        r"def \w+_header\(",
        "ConvergenceWarning",
        "nowhere_at_all",
    ),
    "common": ("return None", "raise NotImplementedError", "import numpy as np", "isinstance\\(self"),
    "unselective": (r"\d{7}", "[A-Z]{12}", "x.y", "=="),
}
_SHOWN = 400_000
_UNCUT = 1 << 28
_CUT = "[many more;"
_BUILD_S = 600.0
_GREP = "-rnIP --exclude-dir=.git --exclude-dir=.glep"
"""The others leave out .glep as well, where glep keeps its index."""
Way = Callable[[str], Awaitable[str]]


async def asked(sandbox: Sandbox, pattern: str, indexed: Indexed, config: ToolConfig | None = None) -> str:
    """The tool's answer, by this index."""
    index_of(sandbox)
    from etude.harness.tools.agent import indexed as kept

    kept._INDEXES[sandbox] = indexed
    return await GREP.run(sandbox, config or ToolConfig(), {"pattern": pattern})


async def same_uncut(sandbox: Sandbox, pattern: str, *indexes: Indexed) -> bool | None:
    """Whether all rows are the same by each index; None where they are more than a sandbox prints at once."""
    shown, find._MAX_OUTPUT_BYTES = find._MAX_OUTPUT_BYTES, _UNCUT
    try:
        every = ToolConfig(max_observation_bytes=_UNCUT, command_timeout_s=600)
        answers = [await asked(sandbox, pattern, each, every) for each in indexes]
    finally:
        find._MAX_OUTPUT_BYTES = shown
    return None if any(_CUT in answer for answer in answers) else len(set(answers)) == 1


async def printed(sandbox: Sandbox, command: str, timeout_s: float = 120) -> str:
    """Nothing found is no error; anything else would be timed as if it had searched."""
    done = await sandbox.exec(command, timeout_s=timeout_s, max_output_bytes=_SHOWN)
    output = done.output.decode("utf-8", "replace")
    if done.timed_out or done.exit_code > 1:
        ended = f"did not end in {timeout_s:g} s" if done.timed_out else f"ended with {done.exit_code}"
        raise RuntimeError(f"{command} {ended}: {output[-500:]}")
    return output


async def has(sandbox: Sandbox, program: str) -> bool:
    return (await sandbox.exec(f"command -v {program}", timeout_s=60)).exit_code == 0


async def ways(sandbox: Sandbox, warm: Indexed) -> dict[str, Way]:
    """By name, how a pattern may be searched for."""
    cold = Indexed()
    found: dict[str, Way] = {
        "indexed": lambda pattern: asked(sandbox, pattern, warm),
        "whole": lambda pattern: asked(sandbox, pattern, cold),
        "grep": lambda pattern: printed(sandbox, f"grep {_GREP} -e {shlex.quote(pattern)} ."),
    }
    if await has(sandbox, "rg"):
        found["rg"] = lambda pattern: printed(sandbox, f"rg --no-config -n -e {shlex.quote(pattern)}")
    if await has(sandbox, "glep"):
        await printed(sandbox, "glep index", _BUILD_S)
        found["glep"] = lambda pattern: printed(sandbox, f"glep -n -e {shlex.quote(pattern)}")
    return found


async def measured(root: Path, rounds: int) -> dict[str, object]:
    sandbox = await open_workspace(root, WorkspaceConfig())
    try:
        warm = keep_on_disk(sandbox, root)
        every = await ways(sandbox, warm)
        begun = time.perf_counter()
        await every["indexed"]("HTTPSConnectionPool")
        first_ms = 1000 * (time.perf_counter() - begun)
        times: dict[tuple[str, str, str], list[float]] = {}
        mismatches, cut = 0, dict[str, None]()
        changed = sorted(root.rglob("*.py"))[:rounds]
        for number in range(rounds):
            for kind, patterns in PATTERNS.items():
                for pattern in patterns:
                    answers = {}
                    for name, way in every.items():
                        begun = time.perf_counter()
                        answers[name] = await way(pattern)
                        times.setdefault((kind, pattern, name), []).append(1000 * (time.perf_counter() - begun))
                    if _CUT in answers["whole"]:
                        cut[pattern] = None
                    else:
                        mismatches += answers["indexed"] != answers["whole"]
            changed[number % len(changed)].open("a").write(f"# round {number}\n")
        uncut = [await same_uncut(sandbox, pattern, warm, Indexed()) for pattern in cut]
        return told(times, list(every)) | {
            "grep_mismatches": mismatches + uncut.count(False),
            "grep_not_compared": uncut.count(None),
            "grep_first_ms": round(first_ms, 1),
        }
    finally:
        await sandbox.destroy()


def told(times: dict[tuple[str, str, str], list[float]], names: list[str]) -> dict[str, object]:
    """Medians by pattern, printed; and of each kind of pattern the worst."""
    line: dict[str, object] = {}
    print(f"{'ms, median':42}" + "".join(f"{name:>10}" for name in names) + f"{'p95':>10}")
    for kind, patterns in PATTERNS.items():
        of_kind = []
        for pattern in patterns:
            middle = {name: median(times[kind, pattern, name]) for name in names}
            own = sorted(times[kind, pattern, "indexed"])
            of_kind.append(middle)
            row = "".join(f"{middle[name]:10.1f}" for name in names) + f"{own[int(0.95 * (len(own) - 1))]:10.1f}"
            print(f"{kind:12} {pattern:29}" + row)
        line[f"grep_{kind}_ms"] = round(max(each["indexed"] for each in of_kind), 1)
        for name in names[1:]:
            line[f"grep_{kind}_to_{name}"] = round(max(each["indexed"] / each[name] for each in of_kind), 3)
    return line


def in_tree(files: int, rounds: int = 15, kept_at: Path | None = None, also: Sequence[Path] = ()) -> dict[str, object]:
    """All figures, of a tree of so many files; with `kept_at` it stays there for the next time."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        at = kept_at or Path(place)
        root = source_tree(at, files, also)
        os.environ["XDG_CACHE_HOME"] = str(at / "cache")
        begun = time.process_time()
        built = build(root, open_store())
        cpu_s = time.process_time() - begun
        print(f"{built.files + built.too_long} files, {built.taken} taken in, {cpu_s:.1f} s of CPU")
        return {"grep_files": built.files + built.too_long, **asyncio.run(measured(root, rounds))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--also", type=directory, action="append", default=[], metavar="DIRECTORY")
    parser.add_argument("--at", type=Path)
    options = parser.parse_args()
    print(json.dumps(in_tree(options.files, options.rounds, options.at, options.also)))


if __name__ == "__main__":
    main()
