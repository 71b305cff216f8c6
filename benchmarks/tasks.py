"""What mining tasks costs, and how much of a history becomes tasks.

    python benchmarks/tasks.py REPO [REPO …] [--most N] [--jobs N] [--out DIR]

Mines the newest N commits of every repository for real, into DIR (a run that was cut goes on there), and reads every
task that was kept back. A candidate is a commit that changes source and tests within the limits. Candidates an hour are
for one core: the wall time of the run times the jobs, installing included. Prints the funnels, and last a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from etude.environments.backends import open_backend
from etude.environments.namespace import NamespaceConfig
from etude.rewards.mining.journal import Funnel
from etude.rewards.mining.mine import MineConfig, mine
from etude.tasks.harbor import read_task
from etude.tasks.mined.environment import PLACE, Environments, default_root

BY_THE_LIST_OF_FILES = {"no source", "no tests", "too many files", "too many lines", "binary change", "source removed"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", type=Path, nargs="+", metavar="REPO")
    parser.add_argument("--most", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="etude-mining-") as scratch:
        found = asyncio.run(_mine_all(options, options.out or Path(scratch)))
    hours = (time.monotonic() - started) / 3600 * options.jobs
    candidates = sum(_candidates(one) for one in found)
    kept = sum(len(one.kept) for one in found)
    print(
        json.dumps(
            {
                "tasks": kept,
                "repos": len(found),
                "candidates": candidates,
                "candidates_per_hour": round(candidates / hours, 1),
                "kept_share": round(kept / candidates, 4) if candidates else 0.0,
                "sandbox_s_per_task": round(sum(one.sandbox_s for one in found) / kept, 3) if kept else None,
                "undecided": sum(len(one.undecided) for one in found),
            }
        )
    )


async def _mine_all(options: argparse.Namespace, out: Path) -> list[Funnel]:
    environments = Environments(default_root())
    backend = open_backend(NamespaceConfig(binds={PLACE: environments.root}))
    found = []
    try:
        for number, repository in enumerate(options.repositories):
            directory = out / f"{number}-{repository.name}"
            config = MineConfig(most=options.most, jobs=options.jobs)
            found.append(await mine(repository, directory, backend, environments, config))
            print("\n".join([str(repository), *found[-1].lines(), ""]))
            for task in found[-1].kept:
                read_task(directory / task)
    finally:
        await backend.close()
    return found


def _candidates(found: Funnel) -> int:
    return found.commits - sum(count for reason, count in found.dropped.items() if reason in BY_THE_LIST_OF_FILES)


if __name__ == "__main__":
    main()
