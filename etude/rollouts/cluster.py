"""Starts, reaches and stops the processes of a run.

Owns Ray's life and the handles of all actors; the controller knows processes only through this. Every wait has a
deadline that says what it waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import ray
from ray.exceptions import RayError

from etude.deadlines import scaled
from etude.environments.cluster.config import ClusterConfig
from etude.errors import DeadlineExceeded
from etude.records import InfraFailed, Version
from etude.rollouts.actors import sessions
from etude.rollouts.config import RunConfig
from etude.rollouts.faults import DRAIN_S, Restarts
from etude.rollouts.fleet import Fleet
from etude.rollouts.health import Health, Patient
from etude.rollouts.pool import Member, Pool
from etude.rollouts.reward_pool import RewardPool
from etude.rollouts.router import View
from etude.rollouts.sample import Sample, SampleGroup, failed
from etude.rollouts.session import UNJUDGED, Order
from etude.rollouts.slots import State
from etude.rollouts.trainer_process import TrainerProcess
from etude.rollouts.trajectory_store import TrajectoryStore
from etude.rollouts.waiting import DIED, STOP_S

if TYPE_CHECKING:
    from etude.environments.cluster.launch import Launched

_NO_SPARE_WORKERS = ("prestart_worker_first_driver", "enable_worker_prestart")
"""Workers that Ray starts before anybody asks are of no use to actors with an environment of their own."""

_BESIDE_S = 120.0
"""For what a rollout does beside its session, whose own limit ends it first: a sandbox to start, its state to keep."""


class Cluster:
    """Handles of the actors. Make one with `Cluster.start`."""

    def __init__(self, config: RunConfig, directory: Path, sandboxes: Launched | None) -> None:
        self.config, self.sandboxes = config, sandboxes
        store = config.store_of(directory)
        self.restarts = Restarts(config.faults, directory / "metrics.jsonl")
        self.fleet = Fleet(config, store, self.restarts)
        self.fleet.listeners.append(self._tell)
        self.routed: Counter[str] = Counter()
        """What session workers count of the ways of their sessions to engines."""
        self.trainer = TrainerProcess(config, store, directory, self.restarts)

        def worker(number: int) -> Any:
            del number
            made = sessions.SessionWorker.remote(config)
            made.see.remote(self.fleet.view())
            return made

        self.sessions = Pool("sessions", worker, config.rollouts.workers, config.faults.spare_sessions, self.restarts)
        self.rewards = RewardPool(config, self.restarts)
        self.trajectories = TrajectoryStore(directory / "trajectories")
        self.evaluated = TrajectoryStore(directory / "evaluated")
        """Sessions of evaluations: they stay there, to be read."""
        self.placed: dict[str, Member] = {}
        self.health = Health(self._patients)
        self._looking: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: RunConfig, directory: Path) -> Cluster:
        """Start Ray on this machine and all actors; returns when each has answered."""
        os.environ |= {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        config.deadlines.apply()
        root = str(Path(__file__).parents[2])
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=256 * 1024 * 1024,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            _system_config=dict.fromkeys(_NO_SPARE_WORKERS, False),
            runtime_env={
                "env_vars": {
                    "PYTHONPATH": root,
                    "OMP_NUM_THREADS": "1",
                    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
                    **config.deadlines.variables(),
                }
            },
        )
        sandboxes = None
        if config.cluster is not None and isinstance(config.environment, ClusterConfig):
            from etude.environments.cluster.launch import launch  # most runs have none, and load none of it

            sandboxes = await launch(config.environment.name, config.cluster.agent(), config.cluster.service())
        cluster = cls(config, directory, sandboxes)
        await asyncio.gather(cluster.sessions.start(), cluster.rewards.pool.start(), cluster.fleet.start())
        cluster._looking = asyncio.create_task(cluster.health.run())
        return cluster

    def _patients(self) -> list[Patient]:
        """Whom the health checks look after."""
        trainer = Patient("the trainer", self.trainer.actor, self.trainer.identity, "health")
        return [trainer, *self.sessions.patients(), *self.rewards.pool.patients()]

    def _tell(self, view: View) -> None:
        """Every session worker, of the engines that there are."""
        for member in (*self.sessions.members, *self.sessions.spares):
            member.actor.see.remote(view)

    async def play(self, order: Order, moved: Callable[[State], object] = lambda at: None) -> Sample | None:
        """Run a rollout on the least loaded worker, and have it judged by another; `moved` is told how far it is. The
        order must say where it is kept.
        """
        self.fleet.raise_if_failed()
        sample = await self._played(order, moved)
        if sample is None or sample.outcome != UNJUDGED:
            return sample
        moved("sealed")
        return await self.rewards.judge(order, sample, moved)

    async def _played(self, order: Order, moved: Callable[[State], object]) -> Sample | None:
        member = await self.sessions.place()
        self.placed[order.id] = member
        patience_s = order.task.limits.wall_s + scaled(_BESIDE_S)
        try:
            playing = self.sessions.call(member, "play", order, seconds=patience_s, what=f"rollout {order.id}")
            beginning = asyncio.ensure_future(_told(member.actor.begins.remote(order.id), moved, "running"))
            try:
                return await playing
            finally:
                beginning.cancel()
        except (RayError, DeadlineExceeded) as error:  # a process died or hangs: the rollout failed, not its task
            if not isinstance(error, DIED):
                member.actor.cancel.remote([order.id])  # or it would hold what the next attempt goes on from
            why = InfraFailed(f"{type(error).__name__}: {error}", lost=isinstance(error, DIED))
            return failed(order.id, order.task, order.group_id, why)
        finally:
            del self.placed[order.id]

    async def cancel(self, ids: list[str]) -> None:
        """Stop rollouts where they run: their sandboxes are destroyed, and engines drop what they sample for them."""
        for member in {member for rollout in ids if (member := self.placed.get(rollout)) is not None}:
            here = [rollout for rollout in ids if self.placed.get(rollout) is member]
            what = "a session worker to cancel rollouts"
            with contextlib.suppress(DIED):  # then they have ended
                await self.sessions.call(member, "cancel", here, seconds=scaled(STOP_S), what=what)
        await self.rewards.cancel(ids)

    async def step(self, groups: list[SampleGroup], state: dict[str, Any]) -> dict[str, Any]:
        return await self.trainer.step(groups, state)

    async def published(self, version: Version) -> dict[str, Any]:
        """Wait until the trainer has put that version, or a later one in its place, into the store."""
        return await self.trainer.published(version)

    async def replace(self, kind: str) -> int:
        """Let processes of a kind that start now take over from those there are; returns how many there were. Sessions
        and verdicts under way are finished where they began, within `faults.DRAIN_S`.
        """
        if kind == "trainer":
            await self.trainer.replace()
            return 1
        if kind == "engine":
            return await self.fleet.replace(scaled(DRAIN_S))
        pools = {"sessions": self.sessions, "rewards": self.rewards.pool}
        return await pools[kind].replace(scaled(DRAIN_S))

    async def stats(self) -> dict[str, Any]:
        """Of all engines together, what workers count of their sessions' ways among it, and of each session worker."""
        workers = await self.sessions.each("stats", what="a session worker's statistics")
        judges = await self.rewards.pool.each("stats", what="a reward worker's statistics")
        for worker in workers:
            self.routed.update(worker["routed"])
        return {"engine": {**await self.fleet.stats(), **self.routed}, "workers": workers, "judges": judges}

    async def close(self) -> None:
        """Close sandboxes and engines in order, then the machines of sandboxes, then Ray."""
        if self._looking is not None:
            self._looking.cancel()
        try:
            await self.sessions.close()
            await self.rewards.pool.close()
            await self.fleet.close()
            if self.sandboxes is not None:
                await self.sandboxes.close()
        finally:
            ray.shutdown()


async def _told(reached: Awaitable[None], moved: Callable[[State], object], at: State) -> None:
    with contextlib.suppress(RayError):  # the rollout itself will say so
        await reached
        moved(at)


def cpu_by_part() -> dict[str, float]:
    """CPU seconds so far of this process and all below it, by what they do. Reaped children count with their parent."""
    parts = {
        "controller": 0.0,
        "engine": 0.0,
        "trainer": 0.0,
        "sessions": 0.0,
        "rewards": 0.0,
        "sandboxes": 0.0,
        "control": 0.0,
        "ray": 0.0,
    }
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
    actors = {
        "EngineActor": "engine",
        "TrainerActor": "trainer",
        "SessionWorker": "sessions",
        "RewardWorker": "rewards",
        "ControlActor": "control",
        "AgentActor": "sandboxes",
        "SchedulerActor": "sandboxes",
    }
    for actor, part in actors.items():
        if actor in name:
            return part
    return "ray" if "ray" in name or "raylet" in name or "gcs_server" in name else "sandboxes"
