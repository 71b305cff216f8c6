"""Whether the reward path keeps its head when many trajectories end at once.

    python benchmarks/reward_path.py [--count 100]

So many final states are judged at the same time, in sandboxes of their own: half of them right, half untouched, of the
ladder's tasks and of the real-code set. What each should score is known. A right state that scores 0 is a failure
scored as 0, whatever the cause; what our machinery loses must say so, as InfraFailed. Prints the outcomes, and last a
line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.records import InfraFailed, Task
from etude.rewards.verifier import Verdict, verify
from etude.tasks.ladder import ladder_task
from etude.tasks.realcode import suite_tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    count = parser.parse_args().count
    real = suite_tasks()
    tasks = [real[n % len(real)] if n % 4 == 3 else ladder_task(n % 5 + 1, "eval", n) for n in range(count)]
    started = time.monotonic()
    ended = asyncio.run(_judge(tasks))
    wall = time.monotonic() - started
    lost = [one for _, one, _ in ended if isinstance(one, InfraFailed)]
    verdicts = [(right, one, seconds) for right, one, seconds in ended if isinstance(one, Verdict)]
    said = {
        "judged_at_once": count,
        "scored_1": sum(one.reward == 1.0 for _, one, _ in verdicts),
        "failures_scored_as_0": sum(right and one.reward == 0.0 for right, one, _ in verdicts),
        "successes_made_up": sum(not right and one.reward > 0.0 for right, one, _ in verdicts),
        "infra_failed": len(lost),
        "wall_s": round(wall, 3),
        "median_s": round(statistics.median(seconds for *_, seconds in ended), 3),
        "slowest_s": round(max(seconds for *_, seconds in ended), 3),
    }
    print(f"{count} states at once: {said['scored_1']} scored 1, {len(lost)} lost: {[one.what for one in lost[:3]]}")
    print(json.dumps(said))


async def _judge(tasks: list[Task]) -> list[tuple[bool, Verdict | InfraFailed, float]]:
    """(whether the state was right, what came of it, seconds)"""
    backend = NamespaceBackend(NamespaceConfig())

    async def one(task: Task, right: bool) -> tuple[bool, Verdict | InfraFailed, float]:
        started = time.monotonic()
        ended = await verify(task, {**task.files, **(task.solution if right else {})}, backend)
        return right, ended, time.monotonic() - started

    try:
        return await asyncio.gather(*(one(task, number % 2 == 0) for number, task in enumerate(tasks)))
    finally:
        await backend.close()


if __name__ == "__main__":
    main()
