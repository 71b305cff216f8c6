"""Evaluation beside training: a few development tasks, played now and then by what the engines hold at that moment.

Owns when that happens, the fixed set, and what is told of it: one line "development" an evaluation, and `dev_pass1` in
the lines of the steps that follow. It takes the workers and the time that training has, and is never waited for: a step
that comes while the last evaluation goes on begins none. What it plays is no sample of a group, and no evaluation of a
report plays it, so choices may be made by it. Where our machinery fails it, the run goes on and the line says why.
Talks to: cluster, evaluate and stats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from etude.errors import EtudeError
from etude.rollouts.cluster import Cluster
from etude.rollouts.config import EvaluationConfig
from etude.rollouts.evaluate import RETRIES, evaluate, pass_rate, slot_of
from etude.rollouts.sample import Sample
from etude.rollouts.stats import RunStats
from etude.tasks.families import family as family_of

FIRST = 700_000
"""The number of the first task of each rung: no other evaluation has it, nor has training, whose split is another."""
CONCURRENCY = 8
"""Sessions of an evaluation under way at once: training keeps most of the room."""


class DevelopmentEvaluations:
    """Those of one life of a run."""

    def __init__(self, config: EvaluationConfig, family: str, cluster: Cluster, stats: RunStats) -> None:
        self.every, self.tasks = 0, []
        if config.beside is not None:
            self.every = config.beside.max_steps
            self.tasks = family_of(family).evaluation("eval", config.beside.per_rung, FIRST)
        self.config = config.model_copy(update={"concurrency": min(config.concurrency, CONCURRENCY)})
        self.cluster, self.stats = cluster, stats
        self._playing: asyncio.Task[None] | None = None
        self._label = ""

    def after_step(self, step: int) -> None:
        """Begin one where it is time, and none goes on."""
        if self.every and step % self.every == 0 and (self._playing is None or self._playing.done()):
            self._label = f"development-{step}"
            self._playing = asyncio.create_task(self._play(step))

    async def stop(self) -> None:
        """Break off what goes on: of half an evaluation nothing is told."""
        if self._playing is None:
            return
        self._playing.cancel()
        await asyncio.wait([self._playing])
        await self.cluster.cancel([slot_of(self._label, task, at) for task in self.tasks for at in range(RETRIES + 1)])
        await self._forget()

    async def _play(self, step: int) -> None:
        began = time.monotonic()
        told: dict[str, Any] = {"step": step}
        try:
            await self._forget()  # a life before may have left half of it, by other weights
            results, samples = await evaluate(self.cluster, self.tasks, self.config, self._label)
            passed, played = pass_rate(results)
            told |= {"solved": passed, "played": played, "versions": _versions(samples)}
        except EtudeError as error:
            told["failed"] = str(error)
        self.stats.evaluated_beside(told | {"seconds": round(time.monotonic() - began, 1)})
        await self._forget()

    async def _forget(self) -> None:
        """The archive has what was judged."""
        await asyncio.to_thread(self.cluster.evaluated.remove_group, self._label)


def _versions(samples: Sequence[Sample]) -> list[int]:
    """The oldest and the newest that sampled a token."""
    of_all = [version for sample in samples for version in sample.versions]
    return [int(min(of_all)), int(max(of_all))] if of_all else []
