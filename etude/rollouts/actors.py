"""The processes of a run, as Ray actors: engine, trainer, session worker, control.

Every actor is thin: it holds one object of its room and passes calls on. Actors never call the controller; session
workers call an engine, once a turn. Heavy imports happen inside the actors, so the controller's process never loads
torch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import ray

from etude.environments.backends import open_backend
from etude.environments.base import Backend
from etude.environments.cluster.calls import actor
from etude.errors import DeadlineExceeded
from etude.harness.sampler import Completion, SampleRequest
from etude.records import Event, Group, Trajectory, Version
from etude.rollouts.config import RunConfig
from etude.rollouts.session import Order, play

if TYPE_CHECKING:
    from etude.weights.publisher import PublishResult


@actor(num_cpus=0, max_concurrency=1000, max_restarts=-1)
class EngineActor:
    """One engine process: samples, and follows the weight store.

    If it dies, Ray starts it anew with the base weights; until its next `load` its tokens carry version 0, so that
    staleness keeps them out of training.
    """

    def __init__(self, config: RunConfig, store: str, replica: int) -> None:
        import torch

        from etude.engine.opening import open_engine
        from etude.engine.updates import WeightUpdates
        from etude.models.checkpoint import load_checkpoint
        from etude.models.expert_format import set_expert_format
        from etude.weights.store import open_store
        from etude.weights.subscriber import Subscriber

        torch.set_num_threads(1)
        decoder, _ = load_checkpoint(config.model.path)
        self.product = set_expert_format(decoder, config.model.expert_format)
        self.engine = open_engine(config.engine, decoder, replica)
        self.updates = WeightUpdates(self.engine, Subscriber(open_store(store, config.weight_store), config.subscriber))

    async def sample(self, request: SampleRequest) -> Completion:
        return await self.engine.sample(request)

    async def load(self, target: Version) -> dict[str, Any] | None:
        """Fetch and verify a version in the background, then swap it in between two decode steps.

        None if a later version has come in meanwhile.
        """
        served = await self.updates.load(target)
        if served is None:
            return None
        fetched = served.fetched
        return {
            "version": int(target),
            "root": fetched.root,
            "bytes": fetched.payload_bytes,
            "deltas": len(fetched.path) - fetched.from_anchor,
            "pause_ms": 1000 * served.pause_s,
        }

    async def put(self, bits: Any, version: Version) -> None:
        """Swap in weights that are on no chain: the control's."""
        await asyncio.wrap_future(self.engine.swap(bits, version))

    async def cancel(self, sessions: list[str]) -> None:
        for session in sessions:
            self.engine.cancel(session)

    async def stats(self) -> dict[str, float]:
        return {**self.engine.stats(), "low_precision_rows_sampled": self.product.rows if self.product else 0}

    async def close(self) -> None:
        self.engine.close()


@actor(num_cpus=0, concurrency_groups={"publishing": 1})
class TrainerActor:
    """The trainer process: steps, hands each version over to be published in the background, checkpoints.

    A checkpoint may be whole before its version is in the store. A run killed in between publishes that version when it
    resumes: the same bits, and in the same pack unless the version before had not got there either.
    """

    def __init__(self, config: RunConfig, store: str, directory: Path) -> None:
        from etude.models.checkpoint import load_checkpoint
        from etude.models.expert_format import set_expert_format
        from etude.trainer.step import Trainer
        from etude.weights.background import BackgroundPublisher
        from etude.weights.publisher import Publisher
        from etude.weights.store import open_store

        self.config, self.directory = config, directory
        self.lock: IO[str] | None = None
        decoder, self.tokenizer = load_checkpoint(config.model.path)
        self.product = set_expert_format(decoder, config.model.expert_format)
        self.trainer = Trainer(decoder, config.trainer, config.rollouts.temperature)
        direct = config.weight_store.model_copy(update={"relay": None})
        self.publishing = BackgroundPublisher(Publisher(open_store(store, direct), config.publisher))

    def resume(self) -> dict[str, Any] | None:
        """Take up the newest checkpoint; returns the controller's state that was saved with it, its `line` now with
        the metrics of the step that made it, and the `publications` that it had not counted yet; None if there is none.
        """
        from etude.trainer.checkpoint import claim, load_latest

        self.lock = claim(self.directory)
        state = load_latest(self.directory / "checkpoints")
        if state is None:
            self.publishing.resume(self.trainer.version)
            return None
        self.trainer.load_state_dict(state["trainer"])
        saved = state["controller"]
        uncounted = self.publishing.resume(self.trainer.version, state["published"], saved["stats"]["published"])
        line = saved["line"] | state["metrics"]
        return {**saved, "line": line, "publications": [_told(result) for result in uncounted]}

    def publish(self) -> dict[str, Any]:
        """Put the present version into the store; doing so again changes nothing. Waits until it is there."""
        self.publishing.put(self.trainer.version, self.trainer.export)
        return self._published(self.trainer.version)

    @ray.method(concurrency_group="publishing")
    def published(self, version: Version) -> dict[str, Any]:
        """Wait until that version, or a later one in its place, is in the store. Answers while a step goes on."""
        return self._published(version)

    def _published(self, version: Version) -> dict[str, Any]:
        publication = self.publishing.published(version)
        return _told(publication.result) | {"publish_ms": publication.publish_ms}

    def step(self, groups: list[Group], controller_state: dict[str, Any]) -> dict[str, Any]:
        """One optimizer step on these groups; the new version is on its way to the store when this returns."""
        import time

        from etude.trainer.advantages import group_advantages
        from etude.trainer.checkpoint import save
        from etude.trainer.packing import build_batch

        started, cpu = time.perf_counter(), time.process_time()
        rows = self.product.rows if self.product else 0
        advantages = [group_advantages(group, self.config.trainer.advantages) for group in groups]
        metrics: dict[str, Any] = self.trainer.step(
            build_batch(groups, advantages, self.trainer.version), controller_state["progress"]
        )
        handed_over = self.publishing.put(self.trainer.version, self.trainer.export)
        metrics |= {"snapshot_ms": handed_over.snapshot_ms, "publish_stall_ms": handed_over.stall_ms}
        if self.product is not None:
            metrics["low_precision_rows_trained"] = self.product.rows - rows

        def spent() -> dict[str, float]:
            return {"step_s": time.perf_counter() - started, "step_cpu_s": time.process_time() - cpu}

        if self.trainer.version % self.config.rollouts.checkpoint_every == 0:
            state = {
                "trainer": self.trainer.state_dict(),
                "controller": controller_state,
                "metrics": metrics | spent(),
                "published": self.publishing.visible,
            }
            save(self.directory / "checkpoints", self.trainer.version, state)
        return metrics | spent()

    def save_model(self, directory: Path) -> None:
        from etude.models.checkpoint import save_checkpoint

        save_checkpoint(self.trainer.policy, directory, self.tokenizer)


def _told(result: PublishResult) -> dict[str, Any]:
    """What the controller is told of a version in the store."""
    return {
        "version": int(result.version),
        "root": result.root,
        "delta_bytes": result.payload_bytes,
        "raw_bytes": result.raw_bytes,
        "changed_share": result.changed_share,
    }


@actor(num_cpus=0)
class ControlActor:
    """The fine-tuning control: records clean demonstrations, trains on them, hands over the weights."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def run(self, cpu_seconds: float, directory: Path) -> tuple[Any, dict[str, float]]:
        """Recording counts against the budget, as rollouts count against reinforcement learning's; saving does not."""
        from etude.rollouts.control import fine_tuned_control

        return fine_tuned_control(self.config, cpu_seconds, directory)


class RemoteSampler:
    """The harness's `Sampler`, over Ray: finds its engine by name."""

    def __init__(self, engine: str, deadline_s: float) -> None:
        self.engine, self.deadline_s = ray.get_actor(engine), deadline_s

    async def sample(self, request: SampleRequest) -> Completion:
        try:
            async with asyncio.timeout(self.deadline_s):
                return await self.engine.sample.remote(request)
        except TimeoutError:
            raise DeadlineExceeded(f"the engine to sample for {request.session_id}", self.deadline_s) from None


@actor(num_cpus=0, max_concurrency=1000, max_restarts=-1)
class SessionWorker:
    """One process of concurrent sessions with their sandboxes. If it dies, its rollouts fail and Ray starts it anew."""

    def __init__(self, config: RunConfig, engine: str) -> None:
        from etude.models.chat import ChatRenderer
        from etude.models.tokenizer import load_tokenizer

        self.config = config
        self.chat = ChatRenderer(load_tokenizer(config.model.path))
        self.sampler = RemoteSampler(engine, config.rollouts.sample_deadline_s)
        self._backend: Backend | None = None
        self.running: dict[str, asyncio.Task[Trajectory]] = {}
        self.watched: str | None = None
        self.recent: deque[tuple[str, str, Event]] = deque(maxlen=64)

    def backend(self) -> Backend:
        """Opened at first use: a backend belongs to the event loop that uses it, here the actor's."""
        if self._backend is None:
            self._backend = open_backend(self.config.environment)
        return self._backend

    async def play(self, order: Order) -> Trajectory | None:
        """None for a rollout that was cancelled."""
        rollout = play(order, self.config, self.backend(), self.sampler, self.chat, self._on_event)
        task = self.running[order.id] = asyncio.ensure_future(rollout)
        try:
            return await task
        except asyncio.CancelledError:
            return None
        finally:
            del self.running[order.id]

    def _on_event(self, order: Order, event: Event) -> None:
        """Keep the events of one rollout at a time, for the live view."""
        if self.watched not in self.running:
            self.watched = order.id
        if self.watched == order.id:
            self.recent.append((order.id, order.task.instruction, event))

    async def cancel(self, ids: list[str]) -> None:
        for rollout in ids:
            if rollout in self.running:
                self.running[rollout].cancel()

    async def stats(self) -> dict[str, Any]:
        self.backend()
        recent = list(self.recent)
        self.recent.clear()
        return {"running": len(self.running), "recent": recent}

    async def close(self) -> None:
        """Cancel what runs and leave no sandbox."""
        await self.cancel(list(self.running))
        await asyncio.gather(*self.running.values(), return_exceptions=True)
        await self.backend().close()
