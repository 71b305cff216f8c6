"""`etude tasks generate|validate`: generated tasks as Harbor directories, and whether tasks are sound."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    generate = actions.add_parser("generate", help="write tasks of the ladder as Harbor directories")
    generate.add_argument("--rung", type=int, choices=range(1, 6), default=1)
    generate.add_argument("--split", choices=["train", "eval", "heldout"], default="train")
    generate.add_argument("--seed", type=int, default=0, help="first seed")
    generate.add_argument("--count", type=int, default=1)
    generate.add_argument("--out", type=Path, required=True, help="directory that gets one directory a task")
    validate = actions.add_parser("validate", help="the solution must score 1, doing nothing 0, again and again")
    validate.add_argument("tasks", type=Path, nargs="+", help="Harbor task directories")
    for action in (generate, validate):
        action.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    return _generate(options) if options.action == "generate" else asyncio.run(_validate(options))


def _generate(options: argparse.Namespace) -> int:
    from etude.tasks.harbor import write_task
    from etude.tasks.ladder import ladder_task

    written = []
    for seed in range(options.seed, options.seed + options.count):
        task = ladder_task(options.rung, options.split, seed)
        write_task(task, options.out / task.id)
        written.append(str(options.out / task.id))
    print(json.dumps(written) if options.json else "\n".join(written))
    return 0


async def _validate(options: argparse.Namespace) -> int:
    from etude.environments.backends import open_backend
    from etude.rewards.validate import validate
    from etude.tasks.harbor import read_task

    backend = open_backend()
    try:
        found = {str(path): await validate(read_task(path), backend) for path in options.tasks}
    finally:
        await backend.close()
    if options.json:
        print(json.dumps({path: {"sound": one.sound, "problems": list(one.problems)} for path, one in found.items()}))
    else:
        for path, one in found.items():
            print(f"{'✓' if one.sound else '✗'} {path}" + "".join(f"\n    {problem}" for problem in one.problems))
    return 0 if all(one.sound for one in found.values()) else 1
