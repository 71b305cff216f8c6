"""Starts, reaches and stops the processes of a run.

Owns Ray's life, or the run's part in a Ray of several machines (`machines`), and the workers of all kinds; the
controller knows processes only through this. A rollout is played by one worker and judged by another. When a judge
dies, another judges the rollout again, which is sealed on the disk. After `rollouts.attempts` judges have died or met
their deadline, the rollout counts as one that cannot be judged: it gets the lowest reward, provided that the state its
task begins with can be judged. Every wait has a deadline that says what it waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import ray
from ray.exceptions import RayError

from etude.deadlines import scaled
from etude.environments.cluster.config import ClusterConfig
from etude.errors import DeadlineExceeded
from etude.records import InfraFailed
from etude.rewards.fresh import ATTEMPTS
from etude.rewards.verifier import PATIENCE
from etude.rollouts.actors import rewards, sessions
from etude.rollouts.config import RunConfig
from etude.rollouts.faults import Restarts
from etude.rollouts.fleet import Fleet
from etude.rollouts.machines.head import HeadWatch
from etude.rollouts.machines.joining import join, placed, require_shared
from etude.rollouts.own_ray import start_ray, stop_ray
from etude.rollouts.router import FleetView
from etude.rollouts.sample import Sample, failed
from etude.rollouts.session import VERDICT_PENDING, RolloutRequest
from etude.rollouts.slots import State
from etude.rollouts.trainer_worker import TrainerWorker
from etude.rollouts.trajectory_store import TrajectoryStore
from etude.rollouts.worker import WorkerGone
from etude.rollouts.worker_pool import WorkerPool

if TYPE_CHECKING:
    from etude.environments.cluster.launch import Launched

PLAYED_S = 420.0
"""For the sandbox of a session to start and end, 120, and for engines to write its messages, 300: its own limit counts
only what its tools take."""
JUDGED_S = 180.0
"""For the sandboxes of a verdict to start and end, the auditor to read and a rubric's judge to answer."""
_PARTS = {
    "EngineActor": "engine", "TrainerActor": "trainer", "RankActor": "trainer", "SessionWorker": "sessions",
    "RewardWorker": "rewards", "AgentActor": "sandboxes", "SchedulerActor": "sandboxes", "ControlActor": "control",
}  # fmt: skip
"""What the process of an actor does, by the name of its class."""
LOST = (WorkerGone, RayError, DeadlineExceeded)
"""What the process met that had a request, and not what was asked for."""


class Cluster:
    """The workers of a run. Make one with `Cluster.start`."""

    def __init__(
        self, config: RunConfig, directory: Path, sandboxes: Launched | None, head: HeadWatch | None = None
    ) -> None:
        from etude.models.checkpoint import shape_of  # torch, which preflight has loaded by now

        self.directory, self.head = directory, head
        self.config, self.sandboxes, self.model = config, sandboxes, shape_of(config.model.path)
        store = config.store_of(directory)
        self.restarts = Restarts(config.faults, directory / "metrics.jsonl")
        self.fleet = Fleet(config, store, self.restarts)
        self.fleet.listeners.append(self._tell)
        self.routed: Counter[str] = Counter()
        """What session workers count of the ways of their sessions to engines."""
        self.trainer = TrainerWorker(config, store, directory, self.restarts)
        rollouts, spares = config.rollouts, config.faults.spares
        self.sessions = WorkerPool("sessions", self._session_worker, rollouts.workers, spares, self.restarts)
        self.rewards = WorkerPool("rewards", self._reward_worker, rollouts.workers, 0, self.restarts)
        self.trajectories = TrajectoryStore(directory / "trajectories")
        self.evaluated = TrajectoryStore(directory / "evaluated")
        """Sessions of evaluations: they stay there, to be read."""
        self.quarantined = TrajectoryStore(directory / "quarantine")
        """Sessions that cheated, where those are in quarantine: they stay there too."""

    @classmethod
    async def start(
        cls, config: RunConfig, directory: Path, gone: Callable[[str], object] = lambda why: None
    ) -> Cluster:
        """Start Ray on this machine, or join that of several, and start all workers; returns when those that play,
        judge and sample are ready. `gone` is told, in a thread of its own, when the head of several machines is no
        more: nothing can be asked then, nor closed.
        """
        os.environ |= {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        config.deadlines.apply()
        variables = {"OMP_NUM_THREADS": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", **config.deadlines.variables()}
        sandboxes = head = None
        if config.machines is not None:
            join(config.machines, variables)
            head = HeadWatch(config.machines.url, ray.get_runtime_context().get_node_id(), gone)
            directory, config = directory.resolve(), _anywhere(config)
            await require_shared(config, directory)
        else:
            start_ray(directory, variables)
        if config.cluster is not None and isinstance(config.environment, ClusterConfig):
            from etude.environments.cluster.launch import launch  # most runs have none, and load none of it

            sandboxes = await launch(config.environment.name, config.cluster.agent(), config.cluster.service())
        cluster = cls(config, directory, sandboxes, head)
        await asyncio.gather(cluster.sessions.start(), cluster.rewards.start(), cluster.fleet.start())
        return cluster

    def _session_worker(self) -> Any:
        made = placed(sessions.SessionWorker, "sessions", self.config).remote(self.config)
        made.see.remote(self.fleet.view())
        return made

    def _reward_worker(self) -> Any:
        return placed(rewards.RewardWorker, "rewards", self.config).remote(self.config, self.directory)

    def _tell(self, view: FleetView) -> None:
        """Every session worker, of the engines that there are."""
        for worker in self.sessions.ready:
            worker.process.tell("see", view)

    # --- a rollout ----------------------------------------------------------------------------------------------------

    async def play_and_judge(
        self, request: RolloutRequest, moved: Callable[[State], object] = lambda at: None
    ) -> Sample | None:
        """Run a rollout on the least loaded worker, and have it judged by another; None if it was cancelled. `moved` is
        told how far it is. The request must say where it is kept. No context is longer than the model's own.
        """
        self.fleet.raise_if_failed()
        request = replace(
            request, task=replace(request.task, limits=request.task.limits.within(self.model.max_context))
        )
        sample = await self._played(request, moved)
        if sample is None or sample.outcome != VERDICT_PENDING:
            return sample
        moved("sealed")
        return await self._judged(request, sample, moved)

    async def _played(self, request: RolloutRequest, moved: Callable[[State], object]) -> Sample | None:
        async with self.sessions.given(request.id) as process:
            seconds = request.task.limits.wall_s + scaled(PLAYED_S)
            playing = self.sessions.call(process, "play", request, seconds=seconds, what=f"rollout {request.id}")
            beginning = asyncio.ensure_future(_told(process.tell("begins", request.id), moved, "running"))
            try:
                return await playing
            except LOST as error:  # the rollout failed, not its task
                if not isinstance(error, WorkerGone):
                    process.tell("cancel", [request.id])  # or it would hold what the next attempt goes on from
                why = InfraFailed(f"{type(error).__name__}: {error}", lost=isinstance(error, WorkerGone))
                return failed(request.id, request.task, request.group_id, why)
            finally:
                beginning.cancel()

    async def _judged(self, request: RolloutRequest, sample: Sample, moved: Callable[[State], object]) -> Sample | None:
        seconds, lost = ATTEMPTS * (1 + PATIENCE) * request.task.verifier.timeout_s + scaled(JUDGED_S), ""
        for _ in range(self.config.rollouts.attempts):
            async with self.rewards.given(request.id) as process:
                moved("rewarding")
                what = f"a verdict on {request.id}"
                try:
                    return await self.rewards.call(process, "judge", request, seconds=seconds, what=what)
                except LOST as error:  # the judge was lost, and not what it judged
                    lost = f"{type(error).__name__}: {error}"
                    if not isinstance(error, WorkerGone):
                        process.tell("cancel", [request.id])
                    moved("sealed")
        return await self._judged_as_blocked(request, sample, f"{request.id} could not be judged: {lost}")

    async def _judged_as_blocked(self, request: RolloutRequest, sample: Sample, why: str) -> Sample | None:
        async with self.rewards.given(request.id) as process:
            what = f"a control of {request.id}"
            try:
                return await self.rewards.call(
                    process, "judge_as_blocked", request, why, seconds=scaled(JUDGED_S), what=what
                )
            except LOST as error:
                what = f"{why}; nor does its control end: {error}"
                return replace(sample, outcome=InfraFailed(what, retryable=False))

    async def cancel(self, ids: list[str]) -> None:
        """Stop rollouts where they run: their sandboxes are destroyed, and engines drop what they sample for them."""
        await self.sessions.cancel(ids)
        await self.rewards.cancel(ids)

    # --- all of them --------------------------------------------------------------------------------------------------

    async def renew(self, kind: str) -> int:
        """Let processes of a kind that start now take over from those there are; returns how many there were. Sessions
        and verdicts under way are finished where they began, within `faults.Patience.drain_s`.
        """
        if kind == "trainer":
            await self.trainer.renew()
            return 1
        if kind == "engine":
            return await self.fleet.replace(self.restarts.drain_s)
        pool = self.sessions if kind == "sessions" else self.rewards
        return await pool.renew(pool.drained)

    async def stats(self) -> dict[str, Any]:
        """Of all engines together, what workers count of their sessions' ways among it, and of each session worker."""
        workers = await self.sessions.each("stats")
        for worker in workers:
            self.routed.update(worker["routed"])
        return {"engine": {**await self.fleet.stats(), **self.routed}, "workers": workers}

    async def close(self) -> None:
        """Close sandboxes and engines in order, then the machines of sandboxes, then Ray."""
        if self.head is not None:
            self.head.close()
        try:
            await self.sessions.close()
            await self.rewards.close()
            await self.fleet.close()
            if self.sandboxes is not None:
                await self.sandboxes.close()
        finally:
            self.trainer.worker.release()
            if self.config.machines is None:
                stop_ray(self.directory)
            else:
                ray.shutdown()


def _anywhere(config: RunConfig) -> RunConfig:
    """The same, of whose paths every machine makes the same: elsewhere a process starts in another directory."""
    model = config.model.model_copy(update={"path": config.model.path.resolve()})
    return config.model_copy(update={"model": model})


async def _told(reached: Awaitable[None], moved: Callable[[State], object], at: State) -> None:
    with contextlib.suppress(RayError):  # the rollout itself will say so
        await reached
        moved(at)


def cpu_by_part() -> dict[str, float]:
    """CPU seconds so far of this process and all below it, by what they do. Reaped children count with their parent."""
    parts = dict.fromkeys(("controller", *_PARTS.values(), "ray"), 0.0)
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            name, times = " ".join(process.cmdline()[:2]), process.cpu_times()
        except psutil.Error:
            continue  # it ended while we looked; its parent has its times
        part = _part_of(process.pid == own.pid, name)
        parts[part] += times.user + times.system
        if part in ("sandboxes", "sessions", "rewards"):
            parts["sandboxes"] += times.children_user + times.children_system
    return parts


def _part_of(is_controller: bool, name: str) -> str:
    if is_controller:
        return "controller"
    for actor, part in _PARTS.items():
        if actor in name:
            return part
    return "ray" if "ray" in name or "raylet" in name or "gcs_server" in name else "sandboxes"
