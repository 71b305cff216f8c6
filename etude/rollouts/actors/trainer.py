"""The trainer's processes: the first reads the tokens of samples, steps as `rollouts.loop` says, checkpoints; where the
trainer has several ranks, each other one has a process too, which does what the first tells it.

Holds one trainer and its publisher; never calls the controller. Torch is imported inside the actors, so that the
controller's process never loads it. Talks to: trainer, weights.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import ray

from etude.archive.writer import ArchiveWriter
from etude.environments.cluster.calls import actor
from etude.errors import EtudeError
from etude.records import Group, Version
from etude.rollouts.config import RunConfig
from etude.rollouts.loop import learn
from etude.rollouts.sample import SampleGroup
from etude.rollouts.trajectory_store import TrajectoryStore
from etude.trainer.marks import marks_of

if TYPE_CHECKING:
    from etude.trainer.feedback import HintExample
    from etude.trainer.followers import Meeting
    from etude.weights.publisher import PublishResult


def own_address(config: RunConfig) -> str:
    """By which the other ranks reach this one: only on several machines is it the machine's."""
    from etude.trainer.ranks import LOOPBACK

    return LOOPBACK if config.machines is None else ray.util.get_node_ip_address()


@actor(num_cpus=0, concurrency_groups={"health": 1, "life": 1})
class RankActor:
    """The process of another rank, wherever Ray has placed it."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.failure: EtudeError | None = None
        self._over = threading.Event()

    def follow(self, meeting: Meeting, rank: int) -> None:
        """Do what rank 0 says, until one of both ends."""
        from etude.trainer.ranks import follow

        try:
            follow(meeting, rank, own_address(self.config))
        except EtudeError as error:
            self.failure = error
            self._over.set()

    @ray.method(concurrency_group="life")
    def wait_for_exit(self) -> None:
        """Raises what this rank has failed of: others may wait in vain for it in an exchange, and cannot be asked."""
        self._over.wait()
        assert self.failure is not None
        raise self.failure


@actor(num_cpus=0, concurrency_groups={"publishing": 1, "saving": 1, "health": 1, "life": 1})
class TrainerActor:
    """The trainer process: steps; each version is published in the background, and each checkpoint written there.

    A checkpoint may be whole before its version is in the store. A run killed in between publishes that version when it
    resumes: the same bits, and in the same pack unless the version before had not got there either.
    """

    def __init__(self, config: RunConfig, store: str, directory: Path) -> None:
        from etude.models.checkpoint import load_checkpoint
        from etude.models.expert_format import set_expert_format
        from etude.models.tokenizer import load_tokenizer

        self.config, self.directory = config, directory
        self.trajectories = TrajectoryStore(directory / "trajectories")
        self.archive = ArchiveWriter(directory)
        self.lock: IO[str] | None = None
        self.tokenizer = load_tokenizer(config.model.path)
        decoder = load_checkpoint(config.model.path)[0] if config.trainer.mesh is None else None
        self.product = None if decoder is None else set_expert_format(decoder, config.model.expert_format)
        self._decoder, self._store, self._counted = decoder, store, 0

    def open(self, others: list[Any]) -> None:
        """Begin, with the other ranks' actors in their order. Raises RankLost if one of them ends meanwhile."""
        from etude.trainer.ranks import Setup, open_ranks
        from etude.trainer.saving import Checkpoints

        config = self.config
        direct = config.weight_store.model_copy(update={"relay": None})
        form, temperature = config.model.expert_format, config.rollouts.temperature
        setup = Setup(
            config.model.path, form, config.trainer, temperature, self._store, direct, config.publisher,
            address=own_address(config),
        )  # fmt: skip
        self.trainer, self.publishing = open_ranks(
            self._decoder, setup, lambda rank, meeting: others[rank - 1].follow.remote(meeting, rank)
        )
        self.checkpoints = Checkpoints(self.trainer, self.directory / "checkpoints")

    def resume(self) -> dict[str, Any] | None:
        """Take up the newest checkpoint; returns the controller's state that was saved with it, its `line` now with
        the metrics of the step that made it, and the `publications` that it had not counted yet; None if there is none.
        """
        from etude.trainer.checkpoint import claim, load_latest

        self.lock = self.lock or claim(self.directory)
        state = load_latest(self.checkpoints.directory)
        if self.archive.directory.exists():  # an earlier life may have marked steps that are made again
            self.archive.resumed(state["controller"]["line"]["step"] if state else 0)
        if state is None:
            self.publishing.resume(self.trainer.version)
            return None
        self.trainer.load_state_dict(state["trainer"], self.checkpoints.directory)
        saved = state["controller"]
        self.checkpoints.taken_up(saved["line"]["step"])
        uncounted = self.publishing.resume(self.trainer.version, state["published"], saved["stats"]["published"])
        line = saved["line"] | state["metrics"]
        return {**saved, "line": line, "publications": [_told(result) for result in uncounted]}

    def hand_over(self) -> None:
        """Have the present version put into the store; doing so again changes nothing."""
        self.publishing.put(self.trainer.version, self.trainer.export)

    def publish(self) -> dict[str, Any]:
        """Put the present version into the store, and wait until it is there."""
        self.hand_over()
        return self._published(self.trainer.version)

    @ray.method(concurrency_group="health")
    def encoded_bytes(self) -> int:
        """How far the version on its way to the store has got. Answers while others wait for it."""
        return self.publishing.encoded_bytes

    @ray.method(concurrency_group="life")
    def wait_for_exit(self) -> None:
        """Never returns: who asks learns of the process's end at once."""
        threading.Event().wait()

    @ray.method(concurrency_group="publishing")
    def published(self, version: Version) -> dict[str, Any]:
        """Wait until that version, or a later one in its place, is in the store. Answers while a step goes on."""
        return self._published(version)

    @ray.method(concurrency_group="saving")
    def on_disk(self, step: int) -> dict[str, Any]:
        """Wait for the checkpoint of a step, if it is on its way; returns what is there, and how many were written that
        nobody had asked after. Answers while a step goes on.
        """
        found = self.checkpoints.on_disk(step)
        new, self._counted = self.checkpoints.written - self._counted, self.checkpoints.written
        return {**found._asdict(), "saved_beside": new}

    def _published(self, version: Version) -> dict[str, Any]:
        publication = self.publishing.published(version)
        return _told(publication.result) | {"publish_ms": publication.publish_ms}

    def step(self, groups: list[SampleGroup], controller_state: dict[str, Any]) -> dict[str, Any]:
        """One step of `rollouts.loop.learn` on these groups; the new version is on its way to the store when this
        returns.
        """
        started, cpu = time.perf_counter(), time.process_time()
        rows = self.product.rows if self.product else 0
        whole = [self._read(group) for group in groups]
        hints, progress = self._hints(whole), controller_state["progress"]
        metrics = learn(whole, self.trainer, self.publishing, self.config.trainer, progress, hints)
        metrics["used"]["marked_tokens"] = self._mark(whole, controller_state["line"]["step"])
        if self.product is not None:
            metrics["low_precision_rows_trained"] = self.product.rows - rows

        def spent(save_stall_ms: float = 0.0) -> dict[str, float]:
            spent_s = {"step_s": time.perf_counter() - started, "step_cpu_s": time.process_time() - cpu}
            return spent_s | {"save_stall_ms": save_stall_ms}

        if not self.checkpoints.are_due(self.config.rollouts.checkpoint_every):
            return metrics | spent()
        beside = {
            "controller": controller_state,
            "metrics": metrics | spent(),
            "published": self.publishing.visible,
        }
        return metrics | spent(self.checkpoints.save(controller_state["line"]["step"], beside))

    def _read(self, group: SampleGroup) -> Group:
        """The group with its tokens, from where the session workers have put them."""
        return Group(group.id, group.task, tuple(map(self.trajectories.trajectory, group.samples)))

    def _mark(self, groups: list[Group], step: int) -> int:
        """Put what the step has made of each token beside its trajectory; returns how many tokens these were."""
        marks = marks_of(groups, self.trainer.seen, self.config.trainer.credit.mask_summaries)
        self.archive.mark(step, marks)
        return sum(len(each.mask) for each in marks)

    def _hints(self, groups: list[Group]) -> list[HintExample]:
        from etude.models.chat import open_chat
        from etude.trainer.feedback import hint_examples_of

        feedback = self.config.trainer.credit.feedback
        if feedback is None:
            return []
        chat = open_chat(self.config.model.path, self.tokenizer)
        return hint_examples_of(groups, chat, feedback, self.trainer.policy.config.max_context)

    def save_model(self, directory: Path) -> None:
        self.trainer.save_model(directory, self.tokenizer, self.config.model.path)


def _told(result: PublishResult) -> dict[str, Any]:
    """What the controller is told of a version in the store."""
    return {
        "version": int(result.version),
        "root": result.root,
        "delta_bytes": result.payload_bytes,
        "raw_bytes": result.raw_bytes,
        "changed_share": result.changed_share,
    }
