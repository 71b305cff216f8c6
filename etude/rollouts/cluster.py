"""Starts, reaches and stops the processes of a run.

Owns Ray's life and the handles of all actors; the controller knows processes only through this. Every wait has a
deadline that says what it waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from etude.environments.cluster.config import ClusterConfig
from etude.errors import DeadlineExceeded, EtudeError
from etude.records import Group, InfraFailed, Trajectory, Version
from etude.rollouts.actors.engine import EngineActor
from etude.rollouts.actors.sessions import SessionWorker
from etude.rollouts.actors.trainer import TrainerActor
from etude.rollouts.config import RunConfig
from etude.rollouts.session import Order
from etude.rollouts.slots import State

if TYPE_CHECKING:
    from etude.environments.cluster.launch import Launched

T = TypeVar("T")
START_S, STEP_S, STOP_S = 180.0, 600.0, 60.0


async def within(waiting: Awaitable[T], seconds: float, what: str) -> T:
    """Await with a deadline that names what it waits for. Our own errors cross processes unchanged.

    Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes together with the result.
    """
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError:
        raise DeadlineExceeded(what, seconds) from None
    except RayTaskError as error:
        if isinstance(error.cause, EtudeError | OSError):
            raise error.cause from None
        raise


class Cluster:
    """Handles of the actors. Make one with `Cluster.start`."""

    def __init__(self, config: RunConfig, directory: Path, sandboxes: Launched | None) -> None:
        self.config, self.sandboxes = config, sandboxes
        store = config.store_of(directory)
        names = [f"engine-{replica}" for replica in range(config.engine.replicas)]
        self.engines = [EngineActor.options(name=name).remote(config, store, at) for at, name in enumerate(names)]
        self.trainer = TrainerActor.remote(config, store, directory)
        self.workers = [
            SessionWorker.remote(config, names[index % len(names)]) for index in range(config.rollouts.workers)
        ]
        self.load = [0] * len(self.workers)
        self.placed: dict[str, int] = {}

    @classmethod
    async def start(cls, config: RunConfig, directory: Path) -> Cluster:
        """Start Ray on this machine and all actors; returns when each has answered."""
        os.environ |= {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        root = str(Path(__file__).parents[2])
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=256 * 1024 * 1024,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            runtime_env={
                "env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
            },
        )
        sandboxes = None
        if config.cluster is not None and isinstance(config.environment, ClusterConfig):
            from etude.environments.cluster.launch import launch  # most runs have none, and load none of it

            sandboxes = await launch(config.environment.name, config.cluster)
        cluster = cls(config, directory, sandboxes)
        for worker in cluster.workers:
            await within(worker.stats.remote(), START_S, "a session worker to open its sandbox backend")
        for engine in cluster.engines:
            await within(engine.stats.remote(), START_S, "an engine process to start")
        return cluster

    async def play(self, order: Order, moved: Callable[[State], object] = lambda at: None) -> Trajectory | None:
        """Run a rollout on the least loaded worker; `moved` is told how far it is."""
        place = min(range(len(self.workers)), key=self.load.__getitem__)
        self.load[place] += 1
        self.placed[order.id] = place
        deadline = order.task.limits.wall_s + order.task.verifier.timeout_s + 60
        try:
            playing = within(self.workers[place].play.remote(order), deadline, f"rollout {order.id}")
            beginning = asyncio.ensure_future(_told(self.workers[place].begins.remote(order.id), moved, "running"))
            try:
                return await playing
            finally:
                beginning.cancel()
        except (RayError, DeadlineExceeded) as error:  # a process died or hangs: the rollout failed, not its task
            outcome = InfraFailed(f"{type(error).__name__}: {error}")
            return Trajectory(order.id, order.task.id, order.group_id, (), (), outcome)
        finally:
            self.load[place] -= 1
            del self.placed[order.id]

    async def cancel(self, ids: list[str]) -> None:
        """Stop rollouts where they run; their sandboxes are destroyed, their places in the engine given up."""
        for place, worker in enumerate(self.workers):
            here = [rollout for rollout in ids if self.placed.get(rollout) == place]
            if here:
                await within(worker.cancel.remote(here), STOP_S, "a session worker to cancel rollouts")
        for engine in self.engines:
            await within(engine.cancel.remote(ids), STOP_S, "an engine to cancel rollouts")

    async def step(self, groups: list[Group], state: dict[str, Any]) -> dict[str, Any]:
        return await _of_trainer(self.trainer.step.remote(groups, state), STEP_S, "the trainer's step")

    async def published(self, version: Version) -> dict[str, Any]:
        """Wait until the trainer has put that version, or a later one in its place, into the store."""
        seconds = self.config.publisher.deadline_s + STOP_S  # the trainer's own error says more, and comes first
        return await _of_trainer(self.trainer.published.remote(version), seconds, f"version {version} to be published")

    async def stats(self) -> dict[str, Any]:
        asked = [actor.stats.remote() for actor in (*self.engines, *self.workers)]
        answers = [await within(answer, STOP_S, "an actor's statistics") for answer in asked]
        return {"engine": answers[0], "workers": answers[len(self.engines) :]}

    async def close(self) -> None:
        """Close sandboxes and engines in order, then the machines of sandboxes, then Ray."""
        try:
            for worker in self.workers:
                await within(worker.close.remote(), STOP_S, "a session worker to close its sandboxes")
            for engine in self.engines:
                await within(engine.close.remote(), STOP_S, "an engine to close")
            if self.sandboxes is not None:
                await self.sandboxes.close()
        finally:
            ray.shutdown()


async def _told(reached: Awaitable[None], moved: Callable[[State], object], at: State) -> None:
    with contextlib.suppress(RayError):  # the rollout itself will say so
        await reached
        moved(at)


async def _of_trainer(waiting: Awaitable[T], seconds: float, what: str) -> T:
    try:
        return await within(waiting, seconds, what)
    except ActorDiedError:
        raise EtudeError("the trainer process died; its last checkpoint is whole: go on with --resume") from None


def cpu_by_part() -> dict[str, float]:
    """CPU seconds so far of this process and all below it, by what they do. Reaped children count with their parent."""
    parts = {
        "controller": 0.0,
        "engine": 0.0,
        "trainer": 0.0,
        "sessions": 0.0,
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
        if part in ("sandboxes", "sessions"):
            parts["sandboxes"] += times.children_user + times.children_system
    return parts


def _part_of(is_controller: bool, name: str) -> str:
    if is_controller:
        return "controller"
    actors = {
        "EngineActor": "engine",
        "TrainerActor": "trainer",
        "SessionWorker": "sessions",
        "ControlActor": "control",
        "AgentActor": "sandboxes",
        "SchedulerActor": "sandboxes",
    }
    for actor, part in actors.items():
        if actor in name:
            return part
    return "ray" if "ray" in name or "raylet" in name or "gcs_server" in name else "sandboxes"
