"""What the guard of the product's workspace costs: work that makes many files, with it and without it, by turns.

    python benchmarks/guard.py [--files 20000] [--rounds 4]

Whoever comes first in one round comes second in the next, so that a machine that warms up or fills up favours nobody.
Prints for each the median of the rounds with the least and the most of them, in seconds of CPU (of commands and of the
guard that makes their calls, which other work on the machine disturbs little) and on the clock, and the ratio of the
medians; last, one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace

_TREE = """
import os, sys
for number in range(int(sys.argv[1])):
    path = f"tree/d{number // 50}/f{number}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").write(f"file {number}\\n" * 20)
"""
_COMPILED = """
import sys
for number in range(40):
    open(f"c{number}.c", "w").write("#include <stdio.h>\\n#include <stdlib.h>\\n" + "".join(
        f"int f{number}_{i}(int x) {{ return x * {i} + printf(\\"%d\\", x); }}\\n" for i in range(40)))
"""
_GIT = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b;"
_OPENS = "import os\nfor _ in range(20_000): os.close(os.open('loop', os.O_CREAT | os.O_WRONLY))\n"
WORK = {
    "tar x": "rm -rf x && mkdir x && tar xf /tmp/tree.tar -C x",
    "git add and commit": f"{_GIT} rm -rf .git/index && git add tree && git commit -qm tree --allow-empty",
    "git checkout": "rm -rf tree && git checkout -q -- tree",
    "compile 40 files": "for f in c*.c; do cc -O1 -c $f -o ${f%.c}.o || exit 1; done",
    "20,000 opens to write": "python3 /tmp/opens.py",
}


async def prepare(workspace: Sandbox, files: int) -> None:
    for text in (_TREE, _COMPILED):
        await workspace.write_file("/tmp/make.py", text.encode())
        assert (await workspace.exec(f"python3 /tmp/make.py {files}", timeout_s=300)).exit_code == 0
    assert (await workspace.exec("tar cf /tmp/tree.tar tree", timeout_s=300)).exit_code == 0


async def cpu_s(workspace: Sandbox) -> float:
    """Of all commands, and of process 1, which makes the guarded calls."""
    fields = (await workspace.read_file("/proc/1/stat")).decode().rpartition(")")[2].split()
    return (await workspace.metrics()).cpu_s + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(directory: Path, guard: str, files: int) -> dict[str, tuple[float, float]]:
    """CPU seconds and wall seconds of each work."""
    workspace = await open_workspace(directory, WorkspaceConfig.model_validate({"guard": guard}))
    try:
        await prepare(workspace, files)
        await workspace.write_file("/tmp/opens.py", _OPENS.encode())
        took = {}
        for name, command in WORK.items():
            begun, used = time.perf_counter(), await cpu_s(workspace)
            done = await workspace.exec(command, timeout_s=600)
            took[name] = await cpu_s(workspace) - used, time.perf_counter() - begun
            assert done.exit_code == 0, done.output.decode()
        return took
    finally:
        await workspace.destroy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=4, help="even, so that each comes first as often")
    chosen = parser.parse_args()
    if chosen.rounds < 2 or chosen.rounds % 2:
        parser.error("--rounds must be even")
    rounds: dict[str, list[dict[str, tuple[float, float]]]] = {"existing": [], "on": []}
    for number in range(chosen.rounds):
        for guard in reversed(rounds) if number % 2 else rounds:
            directory = Path(tempfile.mkdtemp(prefix="etude-guard-", dir="/var/tmp"))
            try:
                asyncio.run(_init(directory))
                rounds[guard].append(asyncio.run(measure(directory, guard, chosen.files)))
            finally:
                shutil.rmtree(directory)
    print(f"{'':24} {'':6} {'without':>20} {'with':>20} {'ratio':>6}")
    told = {}
    for name in WORK:
        for at, clock in enumerate(("cpu_s", "clock_s")):
            without, guarded = (spread([each[name][at] for each in rounds[guard]]) for guard in rounds)
            ratio = round(guarded["median"] / without["median"], 2)
            told[f"{name}, {clock}"] = {"without": without, "with": guarded, "ratio": ratio}
            shown = ("{median:.2f} ({least:.2f}-{most:.2f})".format(**each) for each in (without, guarded))
            print(f"{name:24} {clock:7}", *(f"{each:>20}" for each in shown), f"{ratio:6.2f}")
    print(json.dumps({"benchmark": "guard", "files": chosen.files, "rounds": chosen.rounds, "seconds": told}))


def spread(seconds: list[float]) -> dict[str, float]:
    """The median of all, the least and the most."""
    figures = {"median": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}
    return {name: round(value, 3) for name, value in figures.items()}


async def _init(directory: Path) -> None:
    process = await asyncio.create_subprocess_exec("git", "init", "-q", str(directory))
    assert await process.wait() == 0


if __name__ == "__main__":
    main()
