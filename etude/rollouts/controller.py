"""The single controller: keeps rollouts in flight, groups complete, the trainer fed and the engines fresh.

Owns desired state (how many rollouts should be out, on which tasks) and what is; owns the run's clock, counters and the
state that a resumed run needs. Never touches a token or a weight: actors do the work, and samples pass by reference
(`rollouts.sample`). The algorithm is `rollouts.loop`, which calls what stands here; where every sample is,
`rollouts.slots` knows; the rules of groups are `rollouts.groups`, those of what may go on beside what
`rollouts.schedule`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, EtudeError
from etude.records import InfraFailed, Version, in_quarantine, solved
from etude.rollouts.cluster import Cluster
from etude.rollouts.config import RunConfig
from etude.rollouts.development import DevelopmentEvaluations
from etude.rollouts.ledger import GroupLedger
from etude.rollouts.restore import account, restored
from etude.rollouts.sample import Sample, SampleGroup
from etude.rollouts.schedule import schedule_of
from etude.rollouts.session import RolloutRequest
from etude.rollouts.slots import Slot, group_id
from etude.rollouts.stats import RunStats
from etude.rollouts.stream import TaskStream

BATCH_S = 700.0
"""Longest wait for enough groups for one step, beside what the tools of a task may take (`Limits.wall_s`): longer than
the longest session, and than a worker that hangs while it starts (`faults.Patience`), its replacement and a session
together."""
FAILURES = 10
"""Times `rollouts.attempts`: so many failures in a row are no accident, and end the run."""
LOST_ATTEMPTS = 8
"""Attempts at a sample that may be lost with the process that had it, beside those that may fail: a death is nobody's
verdict on the sample, but what always kills its process must not go on for ever."""
CHECKPOINT_S = 10.0
"""How old a checkpoint of a session is, from which another worker can go on with it, before there is another: reading
all files each turn costs far more than playing some seconds again where a worker has died."""


class _Step(NamedTuple):
    """One that was made."""

    number: int
    groups: list[str]
    ended: list[int]
    """Groups that were dropped before it."""


class Controller:
    """Drives one run of reinforcement learning. Create it inside a running event loop, then `start` it."""

    def __init__(
        self,
        config: RunConfig,
        cluster: Cluster,
        tasks: TaskStream,
        stats: RunStats,
        ledger: GroupLedger,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`saved` is the controller's state in the newest checkpoint; None where there is none."""
        saved = saved or {}
        self.config, self.cluster, self.tasks, self.stats, self.ledger = config, cluster, tasks, stats, ledger
        self.schedule = schedule_of(config, saved)
        self.groups = restored(config, ledger, cluster.trajectories, tasks, stats, saved)
        self.slots = self.groups.slots
        self.development = DevelopmentEvaluations(config.evaluation, config.rollouts.family, cluster, stats)
        self.version = Version(0)
        self.stopping = False
        self.changed = asyncio.Event()
        self.rollouts: dict[str, asyncio.Task[None]] = {}
        self.beside: set[asyncio.Task[None]] = set()
        """What goes on while the next step does: deliveries of versions, removals of samples."""
        self._forgetting = asyncio.Lock()
        self.failure: EtudeError | OSError | None = None
        self.infra_failures_in_a_row = 0
        self.making: asyncio.Task[None] | None = None
        self.elapsed_s, self.started_at = float(saved.get("elapsed_s", 0.0)), time.monotonic()
        self.trainer_busy_s = 0.0
        self.last_step = stats.steps
        self._unsaved: list[_Step] = []

    # --- what the loop uses -------------------------------------------------------------------------------------------

    def finished(self) -> bool:
        return self.stopping or self.schedule.over(self.elapsed(), self.stats.steps)

    def elapsed(self) -> float:
        """Seconds of training, over all the run's lives."""
        return self.elapsed_s + time.monotonic() - self.started_at

    async def take_groups(self) -> list[SampleGroup] | None:
        """Wait for enough fresh groups; None when asked to stop or out of time meanwhile."""
        began = time.monotonic()
        while True:
            if self.failure is not None:
                raise self.failure
            self.cluster.fleet.raise_if_failed()
            groups = self.schedule.take(self.groups, self.version)
            if groups is not None:
                return groups
            if self.finished():
                return None
            patience_s = scaled(BATCH_S) + self.groups.longest_wall_s()
            if time.monotonic() - began > patience_s:
                counts = {name: count for name, count in self.slots.counts().items() if count}
                state = f"{len(self.rollouts)} rollouts out, {len(self.groups.ready)} groups ready, slots {counts}"
                held = f"; it waits for {', '.join(held)}, to be in a batch" if (held := self.groups.held_by()) else ""
                raise DeadlineExceeded("enough scored groups for a step", patience_s, f"{state}{held}")
            await self.changes(1.0)

    async def step(self, groups: list[SampleGroup]) -> dict[str, Any]:
        """One optimizer step; returns its line. The trainer saves the resume state with the weights, so neither is
        ever ahead of the other.
        """
        begun = time.monotonic()
        for counters in (self.groups.counters, self.tasks.counters):
            self.stats.counters.update(counters)
            counters.clear()
        line = self.stats.before_step(groups, self.groups, self.version, self.elapsed())
        ended = self.groups.ended()
        training = sum(len(group.samples) for group in self.groups.training.values())
        state = {
            "next": self.groups.next_index,
            "pending": self.groups.pending(),
            "scored": self.groups.scored(),
            "ended": self.slots.after_step(training, self.groups.unsettled()),
            "stream": self.tasks.state(),
            "schedule": self.schedule.state(),
            "under": await self.cluster.trainer.published(self.version) if self.schedule.deterministic else None,
            "stats": self.stats.state(),
            "elapsed_s": self.elapsed(),
            "progress": self.schedule.progress(self.elapsed(), self.stats.steps),
            "line": line,
        }
        made = _Step(line["step"], [group.id for group in groups], ended)
        await self.ledger.sync()
        metrics = await self.cluster.trainer.step(groups, state)
        self._unsaved.append(made)
        self.last_step = made.number
        self.trainer_busy_s += metrics["step_s"]
        self.version = Version(metrics["version"])
        self.schedule.stepped(self.version)
        return line | metrics | {"step_wall_s": time.monotonic() - begun}

    async def saved(self, step: int) -> float:
        """Wait for the checkpoint of a step, if one is due; returns how many milliseconds it took from its copy on.
        What nobody needs any more is removed beside the next one.
        """
        found = await self.cluster.trainer.on_disk(step)
        self.stats.counters["saved_beside"] += found["saved_beside"]
        done = [each for each in self._unsaved if each.number <= found["step"]]
        if done:
            self._unsaved = self._unsaved[len(done) :]
            trained = self.groups.trained(name for each in done for name in each.groups)
            ended = [index for each in done for index in each.ended]
            self._beside(self._forget([*ended, *trained]), "what removes samples")
        return found["saved_ms"] if found["step"] == step else 0.0

    async def _forget(self, ended: list[int]) -> None:
        async with self._forgetting:
            await asyncio.to_thread(self.cluster.trajectories.ended, list(map(group_id, ended)))

    def announce_version(self) -> None:
        """The trainer puts the version into the store by itself, and its checkpoint on the disk; once both are there,
        tell the engines: none samples with what a run that is killed now would not have. Waits for nothing.
        """
        self._beside(self._deliver(self.version, self.last_step), f"delivery of version {self.version}")

    def _beside(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = self._started(work, what)
        self.beside.add(task)
        task.add_done_callback(self.beside.discard)

    def _started(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """It goes on by itself. An error there must end the run: everybody would wait for what it does."""

        def on_end(task: asyncio.Task[None]) -> None:
            self.changed.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                known = isinstance(error, EtudeError | OSError)  # a full disk among them
                self.failure = error if known else EtudeError(f"{what} failed: {error!r}")

        task = asyncio.create_task(work)
        task.add_done_callback(on_end)
        return task

    async def _deliver(self, version: Version, step: int) -> None:
        published = await self.cluster.trainer.published(version)
        self.stats.published(published)
        published |= {"saved_ms": await self.saved(step)}
        await self._until_wanted(version)
        swaps = await self.cluster.fleet.deliver(published)
        self.stats.swapped(published, swaps)
        self.schedule.engine_version = Version(max(self.schedule.engine_version, published["version"]))
        self.changed.set()
        self.stats.delivered(published, swaps)

    async def _until_wanted(self, version: Version) -> None:
        """Until engines may have a version: in lockstep, when what they sample with the one before is done."""
        while self.schedule.target_version(self.groups) < version and not self.stopping:
            await self.changes(1.0)

    def reconfigure(self, recipe: RunConfig) -> None:
        """Go on with another recipe, as far as it may change live (`rollouts.live`); the time there is stays."""
        rollouts = recipe.rollouts.model_copy(update={"max_minutes": self.config.rollouts.max_minutes})
        self.config = recipe.model_copy(update={"rollouts": rollouts})
        self.groups.config = recipe.groups
        if not recipe.rollouts.tasks:
            self.tasks.rungs = recipe.rollouts.rungs
        self.schedule.reconfigure(self.config)
        self.changed.set()

    def record(self, line: dict[str, Any]) -> None:
        self.stats.stepped(line)
        self.development.after_step(self.stats.steps)

    # --- what makes groups --------------------------------------------------------------------------------------------

    async def start(self, version: Version, engine_version: Version) -> None:
        """`version` is the trainer's."""
        self.version, self.schedule.engine_version = version, engine_version
        self.started_at = time.monotonic()
        if engine_version != version:  # in lockstep: what was under way is sampled to its end first
            self.announce_version()

    def keep_going(self, making: Coroutine[Any, Any, None]) -> None:
        """What makes groups goes on until the run stops."""
        self.making = self._started(making, "what makes groups")

    async def stop(self) -> None:
        """Stop dispatching, cancel what is out, wait for what goes on beside. What was trained stays trained."""
        self.stopping = True
        self.changed.set()
        if self.making is not None:
            await self.making
        await self.cluster.cancel(list(self.rollouts))
        await self.development.stop()
        await asyncio.gather(*self.rollouts.values(), return_exceptions=True)
        await asyncio.gather(*self.beside, return_exceptions=True)

    async def settle(self) -> None:
        """Wait for the last checkpoint, and for what is removed with it. Raises what kept it from the disk."""
        await self.saved(self.last_step)
        await asyncio.gather(*self.beside)

    async def end(self) -> dict[str, Any]:
        """Training is over for good, and its model saved: settle what is left. Returns the accounting, which must add
        up: raises AccountingError.
        """
        self.groups.trained()
        self.slots.end()
        await self.ledger.sync()
        self.ledger.close()
        self.stats.write(
            "moves", {f"{before} to {after}": count for (before, after), count in self.slots.moves.items()}
        )
        return account(self.groups, self.stats.step_lines())

    def wants_another_group(self) -> bool:
        """Room for a whole group, and the schedule's word."""
        opens = self.schedule.opens(self.groups, len(self.rollouts), self.tasks.next_index)
        return opens and not self.finished()

    def dispatch(self, roll_out: Callable[[Controller, Slot], Coroutine[Any, Any, None]]) -> None:
        """Send out what is queued, as far as there is room."""
        for slot in [] if self.stopping else self.schedule.startable(self.groups, len(self.rollouts)):
            self.slots.move(slot.id, "starting")
            rollout = self._to_its_end(slot.id, roll_out(self, slot))
            self.rollouts[slot.id] = self._started(rollout, f"rollout {slot.id}")

    async def _to_its_end(self, slot_id: str, rollout: Coroutine[Any, Any, None]) -> None:
        try:
            await rollout
        finally:
            self.rollouts.pop(slot_id, None)

    async def close_stragglers(self) -> None:
        """Close groups that have waited long enough, and stop what they were waiting for."""
        if not self.schedule.deterministic:
            self.groups.close_stragglers(time.monotonic())
        if self.groups.late:
            late, self.groups.late = self.groups.late, []
            await self.cluster.cancel(late)
            for slot_id in late:
                self.cluster.trajectories.remove(slot_id)
            self.changed.set()

    # --- one rollout --------------------------------------------------------------------------------------------------

    async def play_and_judge(self, slot: Slot, attempt: int) -> Sample | None:
        """A session worker plays the slot, and a reward worker judges it; None where it was cancelled."""
        rollouts, begun = self.config.rollouts, time.monotonic()
        request = RolloutRequest(
            slot.id,
            group_id(slot.group_index),
            self.groups.task_of(slot),
            slot.seed,
            rollouts.temperature,
            attempt,
            self.cluster.trajectories.directory,
            CHECKPOINT_S,
        )
        sample = await self.cluster.play_and_judge(request, lambda at: self.slots.advance_to(slot.id, attempt, at))
        return None if sample is None else replace(sample, seconds=time.monotonic() - begun)

    async def commit(self, slot: Slot, attempt: int, sample: Sample) -> None:
        """A verdict is there: it is on the disk first, and in its group next."""
        self.infra_failures_in_a_row = 0
        self.slots.advance_to(slot.id, attempt, "rewarding")
        await self.cluster.trajectories.keep(sample)
        if not self.slots.advance_to(slot.id, attempt, "scored"):  # its group has closed without it meanwhile
            self.cluster.trajectories.remove(slot.id)
            return
        self.stats.rolled_out(sample)
        self.tasks.played(self.groups.open[sample.group_id].record.rung, solved(sample.outcome))
        self.groups.add(sample, time.monotonic())
        if in_quarantine(sample.outcome):  # kept to be looked at
            await asyncio.to_thread(self.cluster.trajectories.hand_over, slot.id, self.cluster.quarantined)

    def refuse(self, slot: Slot) -> None:
        """What was sampled by another version than the schedule wants: its tokens must not be gone on from."""
        self.infra_failures_in_a_row = 0
        self.stats.counters["sampled_by_another_version"] += 1
        self.cluster.trajectories.remove(slot.id)
        self.slots.requeue(slot.id)

    def failed(self, slot: Slot, sample: Sample, why: InfraFailed) -> None:
        """An attempt came to nothing: the slot has another, which goes on from what is kept, or is dropped."""
        budget = self.config.rollouts
        if why.lost and slot.died < LOST_ATTEMPTS:
            self.stats.counters["attempts_lost"] += 1
            self.slots.requeue(slot.id, died=True)
            return
        self.stats.rolled_out(sample)
        if why.retryable and slot.failed + 1 < budget.attempts:
            self.slots.requeue(slot.id, failed=True)
        else:
            self.groups.add(sample, time.monotonic())
            self.cluster.trajectories.remove(slot.id)
        self.infra_failures_in_a_row += 1
        if self.infra_failures_in_a_row >= FAILURES * budget.attempts:
            self.failure = EtudeError(
                f"{self.infra_failures_in_a_row} rollouts in a row failed for infrastructure; the last: {why.what}"
            )

    async def changes(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):  # a tick: clocks have moved even if nothing else has
            async with asyncio.timeout(timeout_s):
                await self.changed.wait()
        self.changed.clear()
