"""The processes that judge sealed sessions, each verdict in sandboxes of its own, where the agent never was.

A worker is told which session to judge, reads what it left where it is kept, and hands back its `Sample` with the
outcome; it keeps nothing in between, so that what one had begun another can begin anew. What it has judged is in the
run's archive before anybody hears of it. Calls nobody. Talks to: environments, archive, rollouts.session.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from etude.archive.writer import ArchiveWriter
from etude.environments.backends import open_when_there
from etude.environments.base import Backend
from etude.environments.cluster.calls import actor
from etude.rewards.judgement import Judges
from etude.rollouts.config import RunConfig
from etude.rollouts.ray_process import OrderActor
from etude.rollouts.sample import Sample
from etude.rollouts.session import RolloutRequest, judge_as_blocked, judge_kept, judge_sealed
from etude.tasks.mined.shown import showing


@actor(num_cpus=0, max_concurrency=1000)
class RewardWorker(OrderActor[Sample, tuple[Backend, Judges]]):
    """One process of concurrent verdicts. If it dies, its pool starts another, and its verdicts are given again."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        super().__init__()
        self.config, self.judged = config, 0
        self.archive = ArchiveWriter(directory)

    async def open(self, closing: AsyncExitStack) -> tuple[Backend, Judges]:
        closing.callback(self.archive.close)
        backend = await open_when_there(showing(self.config.environment))
        closing.push_async_callback(backend.close)
        return backend, await closing.enter_async_context(self.config.rewards.judges())

    async def judge(self, request: RolloutRequest) -> Sample | None:
        """None for a verdict that was cancelled."""
        backend, judges = await self.opened()
        try:
            return await self.done(
                request.id,
                judge_kept(request, lambda rollout: judge_sealed(rollout, self.config, backend, judges), self.archive),
            )
        finally:
            self.judged += 1

    async def judge_as_blocked(self, request: RolloutRequest, why: str) -> Sample:
        """Of what no judge came to the end with: at the floor, or InfraFailed where the control fails too."""
        backend, _ = await self.opened()
        return await judge_kept(
            request, lambda rollout: judge_as_blocked(rollout, why, self.config, backend), self.archive
        )

    async def stats(self) -> dict[str, Any]:
        await self.opened()
        return {"pid": os.getpid(), "judging": len(self.under_way), "judged": self.judged}
