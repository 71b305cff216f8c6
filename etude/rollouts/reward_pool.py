"""Has sealed sessions judged, by whichever of the reward workers is least loaded.

Owns the pool of reward workers, and where each verdict is being found. A verdict that was with a process when it died
is found again by another: what is judged is sealed, so nothing of it is lost. What has cost `rollouts.attempts` judges
their lives or their deadline is not judged any more: it is at the floor, if what its task begins with fares better.
Talks to: pool, actors.rewards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ray.exceptions import RayError

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded
from etude.records import InfraFailed
from etude.rewards.fresh import ATTEMPTS
from etude.rewards.verifier import PATIENCE
from etude.rollouts.actors import rewards
from etude.rollouts.config import RunConfig
from etude.rollouts.faults import Restarts
from etude.rollouts.pool import Member, Pool
from etude.rollouts.sample import Sample
from etude.rollouts.session import Order
from etude.rollouts.slots import State
from etude.rollouts.waiting import DIED, STOP_S

MARGIN_S = 180.0
"""For the sandboxes of a verdict to start and end, the auditor to read and a rubric's judge to answer."""


class RewardPool:
    """The reward workers of a run. Open it by its pool's `start`, and end it with its `close`."""

    def __init__(self, config: RunConfig, restarts: Restarts) -> None:
        def worker(number: int) -> Any:
            del number
            return rewards.RewardWorker.remote(config)

        self.config = config
        self.pool = Pool("rewards", worker, config.rollouts.workers, 0, restarts)
        self.placed: dict[str, Member] = {}

    async def judge(self, order: Order, sample: Sample, moved: Callable[[State], object]) -> Sample | None:
        """The sample with its outcome, None if it was cancelled; `moved` is told whether a worker has it."""
        lost = ""
        seconds = ATTEMPTS * (1 + PATIENCE) * order.task.verifier.timeout_s + MARGIN_S
        for _ in range(self.config.rollouts.attempts):
            member = self.placed[order.id] = await self.pool.place()
            moved("rewarding")
            try:
                what = f"a verdict on {order.id}"
                return await self.pool.call(member, "judge", order, seconds=seconds, what=what)
            except (RayError, DeadlineExceeded) as error:  # the judge was lost, and not what it judged
                lost = f"{type(error).__name__}: {error}"
                if not isinstance(error, DIED):
                    member.actor.cancel.remote([order.id])
                moved("sealed")
            finally:
                del self.placed[order.id]
        return await self._blamed(order, sample, f"{order.id} could not be judged: {lost}")

    async def _blamed(self, order: Order, sample: Sample, why: str) -> Sample | None:
        member = self.placed[order.id] = await self.pool.place()
        try:
            what = f"a control of {order.id}"
            return await self.pool.call(member, "blame", order, why, seconds=MARGIN_S, what=what)
        except (RayError, DeadlineExceeded) as error:
            return replace(sample, outcome=InfraFailed(f"{why}; nor does its control end: {error}", retryable=False))
        finally:
            del self.placed[order.id]

    async def cancel(self, ids: list[str]) -> None:
        """Stop verdicts where they are being found."""
        for member in {member for rollout in ids if (member := self.placed.get(rollout)) is not None}:
            here = [rollout for rollout in ids if self.placed.get(rollout) is member]
            with contextlib.suppress(DIED):  # then they have ended
                what = "a reward worker to cancel verdicts"
                await self.pool.call(member, "cancel", here, seconds=scaled(STOP_S), what=what)
