"""Plays a benchmark: every task, several attempts each, many at once.

Owns `run_bench`. Attempts are taken up in the plan's order, all first ones before any second; each is kept the moment
it ends. Cancelling it, or killing the process, loses only what is under way. Talks to: environments, and this room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from etude import __version__
from etude.bench.attempts import Played, Table, play_attempt
from etude.bench.config import BenchConfig
from etude.bench.policies import Policy, identity, judge_identity, open_policy
from etude.bench.results import SCHEMA, Key, Results, Run, read_run
from etude.bench.tasks import fingerprint, load_tasks
from etude.environments.backends import open_backend
from etude.errors import ConfigError, EtudeError
from etude.records import Task
from etude.tasks.mined.shown import install_missing, showing


def head_of(config: BenchConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """What decides a result: the first line of the result file."""
    return {
        "schema": SCHEMA,
        "name": config.name,
        "etude": __version__,
        "policy": identity(config.policy),
        "attempts": config.attempts,
        "seed": config.seed,
        "audit": config.audit,
        "quality": config.quality,
        "judge": None if config.judge is None else judge_identity(config.judge),
        "harness": config.harness.identity(),
        "tasks": {task.id: fingerprint(task) for task in tasks},
    }


async def run_bench(
    config: BenchConfig,
    directory: Path,
    *,
    resume: bool = False,
    on_done: Callable[[Played | None, int, int], None] = lambda played, done, planned: None,
) -> Run:
    """Play what is missing in `directory`. `on_done` is told every attempt, how many have ended and how many there
    are; first of all, with None, where the run stands. Raises EtudeError where nothing gets a verdict any more."""
    tasks = load_tasks(config.tasks, config.limits)
    plan: list[Key] = [(task.id, number) for number in range(config.attempts) for task in tasks]
    with Results(directory, head_of(config, tasks), plan, resume) as results:
        on_done(None, len(results.attempts), len(plan))
        if results.missing:
            await install_missing(tasks, config.environment)
            backend = open_backend(showing(config.environment))
            try:
                async with open_policy(config.policy, config.harness, config.seed) as policy, config.judges() as judges:
                    for task in tasks:
                        _require_room(policy, task)
                    table = Table(policy, backend, judges, config)
                    await _Play(table, {task.id: task for task in tasks}, results, on_done).all()
            finally:
                await backend.close()
        await results.finish()
    return read_run(directory)


def _require_room(policy: Policy, task: Task) -> None:
    try:
        policy.check(task)
    except ConfigError as error:
        raise ConfigError(f"{task.id}: {error}") from None


class _Play:
    def __init__(
        self,
        table: Table,
        tasks: dict[str, Task],
        results: Results,
        on_done: Callable[[Played | None, int, int], None],
    ) -> None:
        self.table, self.config, self.tasks, self.results, self.on_done = table, table.config, tasks, results, on_done
        self._left = iter(results.missing)
        self._failed: list[Played] = []
        """Attempts without a verdict since the last one with: named when one with a verdict comes, for then it was
        they that failed, and not everything."""

    async def all(self) -> None:
        await _together([self._worker() for _ in range(self.config.concurrency)])
        for failed in self._failed:
            await self._keep(failed)

    async def _worker(self) -> None:
        for task, number in self._left:
            played = await play_attempt(self.tasks[task], number, self.table)
            if played.attempt.solved is None:
                self._failed.append(played)
                self._refuse_to_go_on()
                continue
            named, self._failed = self._failed, []
            for each in (*named, played):
                await self._keep(each)

    async def _keep(self, played: Played) -> None:
        await self.results.add(played)
        self.on_done(played, len(self.results.attempts), len(self.tasks) * self.config.attempts)

    def _refuse_to_go_on(self) -> None:
        if len(self._failed) >= self.config.failures_in_a_row:
            raise EtudeError(
                f"{len(self._failed)} attempts in a row got no verdict, the last for this: "
                f"{self._failed[-1].attempt.why}; mend that, and go on with --resume: none of them counts"
            )


async def _together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Until all have ended; where one fails, the others are cancelled and its error raised."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
