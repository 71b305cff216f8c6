"""What guessing is worth on real code: mends drawn blindly from the table that the bugs were made by.

    python benchmarks/blind_mends.py eval|exam [--sample 200] [--tries 1 2 3 5 8] [--beside RUN]

The rival of a model that has learned from the script that hunts bugs (`etude/tasks/hunter.py`). It knows what that
script knows, the kinds of changes and which function has the bug, and nothing else: each mend of the function is as
likely as another. A session draws without putting back, tries each on the file as it was found, and ends with the
first that check.py passes; the task's verifier says whether that one is paid. Reading, copying and calling, in which a
model fails, cost it nothing. Every mend of every task is run once, in sandboxes; what so many tries solve then follows
exactly. --beside takes the attempts of `etude bench run` on the same tasks away from it: the difference is paired by
task, with a bootstrapped interval. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from etude.bench.config import TaskSetConfig
from etude.bench.measures import bootstrap
from etude.bench.results import read_run
from etude.bench.tasks import load_tasks
from etude.environments.backends import open_backend
from etude.environments.base import WORKSPACE, Backend, SandboxSpec
from etude.records import InfraFailed, Task
from etude.rewards.verifier import verify
from etude.tasks.check import CHECK
from etude.tasks.hunter import known_mends

_AT_ONCE, _CHECK_S = 2, 10.0


class Mends(NamedTuple):
    """Of one task: how many there are, how many of them check.py passes, and how many of those the verifier pays."""

    task: str
    all: int
    passing: int
    paid: int
    authors: bool
    """Whether the author's text is among them."""

    def solved(self, tries: int) -> float:
        """How likely a session of so many tries is paid: the first passing one that it draws may be any of them."""
        if not self.passing:
            return 0.0
        none_drawn = comb(self.all - self.passing, min(tries, self.all)) / comb(self.all, min(tries, self.all))
        return (1 - none_drawn) * self.paid / self.passing

    @property
    def right(self) -> float:
        """How likely one draw is the author's text."""
        return 1 / self.all if self.authors else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("set", choices=("eval", "exam"))
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--tries", type=int, nargs="+", default=[1, 2, 3, 5, 8])
    parser.add_argument("--beside", type=Path, metavar="RUN", help="a directory that `etude bench run` has written")
    options = parser.parse_args()
    tasks = load_tasks(TaskSetConfig(real=options.set, sample=options.sample))
    found = asyncio.run(played(tasks))
    print(json.dumps(figures(found, options.tries, solved_by(options.beside) if options.beside else {})))


async def played(tasks: list[Task]) -> list[Mends]:
    """All mends of all tasks."""
    backend, gate = open_backend(), asyncio.Semaphore(_AT_ONCE)

    async def one(task: Task) -> Mends:
        async with gate:
            return await _mends(task, backend)

    try:
        return await asyncio.gather(*map(one, tasks))
    finally:
        await backend.close()


async def _mends(task: Task, backend: Backend) -> Mends:
    path = task.provenance["path"]
    text, right = task.files[path].decode(), task.solution[path].decode()
    mended = [each.apply(text) for each in known_mends(text, task.provenance["function"])]
    passing = await _passing(task, path, mended, backend)
    paid = [await _paid(task, path, each, backend) for each in passing]
    return Mends(task.id, len(mended), len(passing), sum(paid), right in mended)


async def _passing(task: Task, path: str, mended: list[str], backend: Backend) -> list[str]:
    """Those that check.py passes, in time."""
    sandbox = await backend.create(SandboxSpec(files=task.files, image=task.image))
    passing = []
    try:
        for text in mended:
            await sandbox.write_file(f"{WORKSPACE}/{path}", text.encode())
            # -B: two mends of one length within a second would be one to the cache of compiled files
            ran = await sandbox.exec(f"python3 -B {CHECK}", timeout_s=_CHECK_S)
            passing += [text] if ran.exit_code == 0 else []
    finally:
        await sandbox.destroy()
    return passing


async def _paid(task: Task, path: str, text: str, backend: Backend) -> bool:
    verdict = await verify(task, {**task.files, path: text.encode()}, backend)
    if isinstance(verdict, InfraFailed):
        raise SystemExit(f"no verdict: {verdict.what}")
    return verdict.reward == 1.0


def solved_by(run: Path) -> dict[str, float]:
    """The share of each task's attempts that were solved; those that nobody judged are left out."""
    of: dict[str, list[bool]] = {}
    for each in read_run(run).attempts:
        if each.solved is not None:
            of.setdefault(each.task, []).append(each.solved)
    return {task: fmean(solved) for task, solved in of.items()}


def figures(found: list[Mends], tries: list[int], model: dict[str, float]) -> dict[str, Any]:
    both = [each for each in found if each.task in model]
    said: dict[str, Any] = {"tasks": len(found), "mends": fmean(each.all for each in found)}
    said["authors_line"] = _rate([each.right for each in found])
    for count in tries:
        solved = [each.solved(count) for each in found]
        said[f"tries_{count}"] = _rate(solved) | {"of_four": round(fmean(1 - (1 - each) ** 4 for each in solved), 4)}
        if both:
            more = [each.solved(count) - model[each.task] for each in both]
            said[f"tries_{count}"]["more_than_model"] = _rate(more)
    if both:
        said["model"] = _rate([model[each.task] for each in both])
    return said


def _rate(values: list[float]) -> dict[str, float]:
    low, high = bootstrap(values)
    return {"rate": round(fmean(values), 4), "low": round(low, 4), "high": round(high, 4)}


if __name__ == "__main__":
    main()
