"""The processes that judge sealed sessions, each verdict in sandboxes of its own, where the agent never was.

A worker is told which session to judge, reads what it left where it is kept, and hands back its `Sample` with the
outcome; it keeps nothing in between, so that what one had begun another can begin anew. Calls nobody. Talks to:
environments, rollouts.session.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from etude.environments.backends import open_when_there
from etude.environments.base import Backend
from etude.environments.cluster.calls import actor
from etude.rewards.judgement import Judges
from etude.rollouts.config import RunConfig
from etude.rollouts.ray_process import Living
from etude.rollouts.sample import Sample
from etude.rollouts.session import Order, blame_order, judge_kept, judge_order


@actor(num_cpus=0, max_concurrency=1000)
class RewardWorker(Living):
    """One process of concurrent verdicts. If it dies, its pool starts another, and its verdicts are given again."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._open: tuple[Backend, Judges] | None = None
        self._opening = asyncio.Lock()
        self.judging: dict[str, asyncio.Task[Sample]] = {}
        self.judged = 0

    async def opened(self) -> tuple[Backend, Judges]:
        """At first use: both belong to the event loop that uses them, here the actor's."""
        async with self._opening:
            if self._open is None:
                self._open = await open_when_there(self.config.environment), self.config.rewards.judges()
            return self._open

    async def judge(self, order: Order) -> Sample | None:
        """None for a verdict that was cancelled."""
        backend, judges = await self.opened()
        verdict = judge_kept(order, lambda rollout: judge_order(rollout, self.config, backend, judges))
        task = self.judging[order.id] = asyncio.ensure_future(verdict)
        try:
            return await task
        except asyncio.CancelledError:
            return None
        finally:
            self.judging.pop(order.id, None)
            self.judged += 1

    async def blame(self, order: Order, why: str) -> Sample:
        """Of what no judge came to the end with: at the floor, or InfraFailed where the control fails too."""
        backend, _ = await self.opened()
        return await judge_kept(order, lambda rollout: blame_order(rollout, why, self.config, backend))

    async def cancel(self, ids: list[str]) -> None:
        for rollout in ids:
            if rollout in self.judging:
                self.judging[rollout].cancel()

    async def stats(self) -> dict[str, Any]:
        await self.opened()
        return {"pid": os.getpid(), "judging": len(self.judging), "judged": self.judged}

    async def close(self) -> None:
        """Cancel what is being judged and leave no sandbox."""
        await self.cancel(list(self.judging))
        await asyncio.gather(*self.judging.values(), return_exceptions=True)
        if self._open is not None:
            backend, judges = self._open
            async with judges:
                await backend.close()
