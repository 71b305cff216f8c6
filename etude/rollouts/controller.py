"""The single controller: keeps rollouts in flight, groups complete, the trainer fed and the engines fresh.

Owns desired state (how many rollouts should be out, on which tasks) and reconciles it with what is; owns the run's
clock, counters and the state that a resumed run needs. Never touches a token or a weight: actors do the work. The
algorithm that drives it is `rollouts.loop`; where every sample is, `rollouts.slots` knows; the rules of groups are
`rollouts.groups`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from etude.errors import DeadlineExceeded, EtudeError
from etude.records import Group, InfraFailed, Task, Trajectory, Version
from etude.rollouts.cluster import Cluster
from etude.rollouts.config import RunConfig
from etude.rollouts.groups import GroupPool
from etude.rollouts.session import Order
from etude.rollouts.slots import Slot, Slots, group_id
from etude.rollouts.stats import RunStats


class TaskStream:
    """Which task comes next: those a resumed run still owes, then fresh ones by index."""

    def __init__(self, make: Callable[[int], Task], next_index: int = 0, owed: list[int] | None = None) -> None:
        self.make, self.next_index = make, next_index
        self.owed = deque(owed or [])

    def draw(self) -> tuple[int, Task]:
        if self.owed:
            index = self.owed.popleft()
        else:
            index = self.next_index
            self.next_index += 1
        return index, self.make(index)

    def still_owed(self) -> list[int]:
        return list(self.owed)


class Controller:
    """Drives one run of reinforcement learning. Create it inside a running event loop, then `start` it."""

    def __init__(
        self, config: RunConfig, cluster: Cluster, tasks: TaskStream, stats: RunStats, elapsed_s: float = 0.0
    ) -> None:
        """`elapsed_s` is the training time a resumed run has behind it."""
        self.config, self.cluster, self.tasks, self.stats = config, cluster, tasks, stats
        self.slots = Slots(config.seed, stats.ended)
        self.pool = GroupPool(config.groups, self.slots, stats.dropped)
        self.version = Version(0)
        self.stopping = False
        self.changed = asyncio.Event()
        self.rollouts: dict[str, asyncio.Task[None]] = {}
        self.deliveries: set[asyncio.Task[None]] = set()
        self.failure: EtudeError | None = None
        self.infra_failures_in_a_row = 0
        self.reconciler: asyncio.Task[None] | None = None
        self.elapsed_s, self.started_at = elapsed_s, time.monotonic()
        self.trainer_busy_s = 0.0

    # --- what the loop uses -------------------------------------------------------------------------------------------

    def finished(self) -> bool:
        budget = self.config.rollouts
        return self.stopping or self.stats.steps >= budget.max_steps or self.elapsed() >= budget.max_minutes * 60

    def elapsed(self) -> float:
        """Seconds of training, over all the run's lives."""
        return self.elapsed_s + time.monotonic() - self.started_at

    def progress(self) -> float:
        """How much of the budget is spent, by the clock or by steps, whichever is further."""
        budget = self.config.rollouts
        return max(self.elapsed() / (budget.max_minutes * 60), self.stats.steps / budget.max_steps)

    async def take_groups(self) -> list[Group] | None:
        """Wait for enough fresh groups; None when asked to stop or out of time meanwhile."""
        deadline = time.monotonic() + self.config.rollouts.batch_deadline_s
        while True:
            if self.failure is not None:
                raise self.failure
            self.cluster.fleet.raise_if_failed()
            groups = self.pool.take(self.config.rollouts.groups_per_step, self.version)
            if groups is not None:
                return groups
            if self.finished():
                return None
            if time.monotonic() > deadline:
                ready, dropped = len(self.pool.ready), dict(self.pool.dropped)
                state = f"{len(self.rollouts)} rollouts out, {ready} groups ready, dropped {dropped}"
                raise DeadlineExceeded("enough scored groups for a step", self.config.rollouts.batch_deadline_s, state)
            await self._wait_for_change(1.0)

    async def step(self, groups: list[Group]) -> dict[str, Any]:
        """One optimizer step; returns its line. The trainer saves the resume state with the weights, so neither is
        ever ahead of the other.
        """
        line = self.stats.before_step(groups, self.pool, self.version, self.elapsed())
        samples = [member.id for group in groups for member in group.trajectories]
        state = {
            "next_task": self.tasks.next_index,
            "pending": [*self.pool.pending(), *self.tasks.still_owed()],
            "stats": self.stats.state() | {"ended": self.slots.after_step(samples)},
            "elapsed_s": self.elapsed(),
            "progress": self.progress(),
            "line": line,
        }
        metrics = await self.cluster.step(groups, state)
        self.pool.trained(groups)
        self.trainer_busy_s += metrics["step_s"]
        self.version = Version(metrics["version"])
        return line | metrics

    def publish(self) -> None:
        """The trainer puts the version into the store by itself; once it is there, tell the engines. Waits for
        neither.
        """
        delivery = asyncio.create_task(self._deliver(self.version))
        self.deliveries.add(delivery)
        delivery.add_done_callback(self.deliveries.discard)

    async def _deliver(self, version: Version) -> None:
        try:
            published = await self.cluster.published(version)
            self.stats.published(published)
            swaps = await self.cluster.fleet.deliver(published)
            self.stats.swapped(published, swaps)
        except EtudeError as error:
            self.failure = error
            self.changed.set()
            return
        self.stats.delivered(published, swaps)

    def record(self, line: dict[str, Any]) -> None:
        self.stats.stepped(line)

    # --- reconciling --------------------------------------------------------------------------------------------------

    async def start(self, version: Version) -> None:
        self.version = version
        self.started_at = time.monotonic()
        self.reconciler = asyncio.create_task(self._reconcile())
        self.reconciler.add_done_callback(self._on_reconciler_end)

    async def stop(self) -> None:
        """Stop dispatching, cancel what is out, wait for deliveries. What was trained stays trained."""
        self.stopping = True
        self.changed.set()
        if self.reconciler is not None:
            await self.reconciler
        await self.cluster.cancel(list(self.rollouts))
        await asyncio.gather(*self.rollouts.values(), return_exceptions=True)
        await asyncio.gather(*self.deliveries, return_exceptions=True)

    def _on_reconciler_end(self, task: asyncio.Task[None]) -> None:
        """An error there must end the run: nothing would be dispatched any more, and everybody would wait."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = error if isinstance(error, EtudeError) else EtudeError(f"the reconciler failed: {error!r}")
            self.changed.set()

    async def _reconcile(self) -> None:
        while not self.stopping:
            while self._wants_another_group():
                index, task = self.tasks.draw()
                self.pool.start(index, task)
                self._dispatch()
            self._dispatch()
            cancelled = self.pool.close_stragglers(time.monotonic())
            if cancelled:
                await self.cluster.cancel(cancelled)
                for slot_id in cancelled:
                    self.cluster.trajectories.remove(slot_id)
                self.changed.set()
            await self._wait_for_change(0.5)

    def _wants_another_group(self) -> bool:
        """Room for a whole group, and not so much in stock already that it would be stale when trained on."""
        budget = self.config.rollouts
        stock = len(self.pool.ready) + len(self.pool.open)
        return (
            len(self.rollouts) + self.config.groups.size <= budget.concurrency
            and stock < budget.groups_per_step * (1 + self.config.groups.max_staleness)
            and not self.finished()
        )

    def _dispatch(self) -> None:
        """Send out what is queued, as far as there is room."""
        for slot in self.slots.within("queued"):
            if len(self.rollouts) >= self.config.rollouts.concurrency or self.stopping:
                return
            self.slots.move(slot.id, "starting")
            self.rollouts[slot.id] = asyncio.create_task(self._follow(slot, self.pool.task_of(slot)))

    async def _follow(self, slot: Slot, task: Task) -> None:
        """One attempt at a slot, to its end."""
        attempt = slot.attempts
        kept = self.cluster.trajectories.directory if self.config.rollouts.trajectory_every else None
        order = Order(slot.id, group_id(slot.index), task, slot.seed, self.config.rollouts.temperature, attempt, kept)
        try:
            trajectory = await self.cluster.play(order, lambda at: self.slots.observe(slot.id, attempt, at))
        except EtudeError as error:
            trajectory = None
            self.failure = error
        finally:
            self.rollouts.pop(order.id, None)
            self.changed.set()
        if trajectory is not None and slot.id in self.slots:
            self._take_in(slot, trajectory)

    def _take_in(self, slot: Slot, trajectory: Trajectory) -> None:
        self.stats.rolled_out(trajectory)
        if not isinstance(trajectory.outcome, InfraFailed):
            self.infra_failures_in_a_row = 0
            self.slots.observe(slot.id, slot.attempts, "scored")
            self.pool.add(trajectory, time.monotonic())
            self.cluster.trajectories.remove(slot.id)
            return
        if trajectory.outcome.retryable and slot.attempts < self.config.rollouts.attempts:
            self.slots.lose(slot.id)
        else:
            self.pool.add(trajectory, time.monotonic())
        self.infra_failures_in_a_row += 1
        if self.infra_failures_in_a_row >= self.config.rollouts.max_infra_failures:
            self.failure = EtudeError(
                f"{self.infra_failures_in_a_row} rollouts in a row failed for infrastructure; "
                f"the last: {trajectory.outcome.what}"
            )

    async def _wait_for_change(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):  # a tick: clocks have moved even if nothing else has
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        self.changed.clear()
