"""What the guard of the product's workspace costs: work that makes many files, with it and without it, by turns.

    python benchmarks/guard.py [--files 20000] [--rounds 3]

Prints for each the least of the rounds, in seconds of CPU (of commands and of the guard that makes their calls, which
other work on the machine disturbs little) and on the clock, and the ratios; last, one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
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
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    best: dict[str, dict[str, tuple[float, float]]] = {"on": {}, "existing": {}}
    for _ in range(chosen.rounds):
        for guard, kept in best.items():
            directory = Path(tempfile.mkdtemp(prefix="etude-guard-", dir="/var/tmp"))
            try:
                asyncio.run(_init(directory))
                for name, (cpu, wall) in asyncio.run(measure(directory, guard, chosen.files)).items():
                    least = kept.get(name, (cpu, wall))
                    kept[name] = min(cpu, least[0]), min(wall, least[1])
            finally:
                shutil.rmtree(directory)
    ratios = {name: [best["on"][name][i] / best["existing"][name][i] for i in (0, 1)] for name in WORK}
    print(f"{'':24} {'CPU without':>12} {'with':>8} {'ratio':>6} {'clock without':>14} {'with':>8} {'ratio':>6}")
    for name, (cpu, wall) in ratios.items():
        (used, took), (used_with, took_with) = best["existing"][name], best["on"][name]
        print(f"{name:24} {used:12.2f} {used_with:8.2f} {cpu:6.2f} {took:14.2f} {took_with:8.2f} {wall:6.2f}")
    print(json.dumps({"benchmark": "guard", "files": chosen.files, "seconds": best, "ratios": ratios}))


async def _init(directory: Path) -> None:
    process = await asyncio.create_subprocess_exec("git", "init", "-q", str(directory))
    assert await process.wait() == 0


if __name__ == "__main__":
    main()
