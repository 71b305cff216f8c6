"""The trainer's process: reads the tokens of samples, steps as `rollouts.loop` says, checkpoints.

Holds one trainer and its publisher; never calls the controller. Torch is imported inside the actor,
so that the controller's process never loads it. Talks to: trainer, weights.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import ray

from etude.archive.writer import ArchiveWriter
from etude.environments.cluster.calls import actor
from etude.records import Group, Version
from etude.rollouts.config import RunConfig
from etude.rollouts.loop import learn
from etude.rollouts.sample import SampleGroup
from etude.rollouts.trajectory_store import TrajectoryStore
from etude.trainer.marks import marks_of

if TYPE_CHECKING:
    from etude.trainer.feedback import HintExample
    from etude.weights.publisher import PublishResult


@actor(num_cpus=0, concurrency_groups={"publishing": 1, "health": 1, "life": 1})
class TrainerActor:
    """The trainer process: steps, hands each version over to be published in the background, checkpoints.

    A checkpoint may be whole before its version is in the store. A run killed in between publishes that version when it
    resumes: the same bits, and in the same pack unless the version before had not got there either.
    """

    def __init__(self, config: RunConfig, store: str, directory: Path) -> None:
        from etude.models.checkpoint import load_checkpoint
        from etude.models.expert_format import set_expert_format
        from etude.trainer.ranks import Setup, open_ranks

        self.config, self.directory = config, directory
        self.trajectories = TrajectoryStore(directory / "trajectories")
        self.archive = ArchiveWriter(directory)
        self.lock: IO[str] | None = None
        decoder, self.tokenizer = load_checkpoint(config.model.path)
        self.product = set_expert_format(decoder, config.model.expert_format)
        direct = config.weight_store.model_copy(update={"relay": None})
        form, temperature = config.model.expert_format, config.rollouts.temperature
        setup = Setup(config.model.path, form, config.trainer, temperature, store, direct, config.publisher)
        self.trainer, self.publishing = open_ranks(decoder, setup)

    def resume(self) -> dict[str, Any] | None:
        """Take up the newest checkpoint; returns the controller's state that was saved with it, its `line` now with
        the metrics of the step that made it, and the `publications` that it had not counted yet; None if there is none.
        """
        from etude.trainer.checkpoint import claim, load_latest

        self.lock = self.lock or claim(self.directory)
        state = load_latest(self.directory / "checkpoints")
        if self.archive.directory.exists():  # an earlier life may have marked steps that are made again
            self.archive.resumed(state["controller"]["line"]["step"] if state else 0)
        if state is None:
            self.publishing.resume(self.trainer.version)
            return None
        self.trainer.load_state_dict(state["trainer"])
        saved = state["controller"]
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

        def spent() -> dict[str, float]:
            return {"step_s": time.perf_counter() - started, "step_cpu_s": time.process_time() - cpu}

        if self.trainer.version % self.config.rollouts.checkpoint_every == 0:
            self._save(controller_state, metrics | spent())
        return metrics | spent()

    def _read(self, group: SampleGroup) -> Group:
        """The group with its tokens, from where the session workers have put them."""
        return Group(group.id, group.task, tuple(map(self.trajectories.trajectory, group.samples)))

    def _mark(self, groups: list[Group], step: int) -> int:
        """Put what the step has made of each token beside its trajectory; returns how many tokens these were."""
        marks = marks_of(groups, self.trainer.seen, self.config.trainer.credit.mask_summaries)
        self.archive.mark(step, marks)
        return sum(len(each.mask) for each in marks)

    def _save(self, controller_state: dict[str, Any], metrics: dict[str, Any]) -> None:
        from etude.trainer.checkpoint import save

        state = {
            "trainer": self.trainer.state_dict(),
            "controller": controller_state,
            "metrics": metrics,
            "published": self.publishing.visible,
        }
        save(self.directory / "checkpoints", self.trainer.version, state)

    def _hints(self, groups: list[Group]) -> list[HintExample]:
        from etude.models.chat import open_chat
        from etude.trainer.feedback import hint_examples_of

        feedback = self.config.trainer.credit.feedback
        if feedback is None:
            return []
        chat = open_chat(self.config.model.path, self.tokenizer)
        return hint_examples_of(groups, chat, feedback, self.trainer.policy.config.max_context)

    def save_model(self, directory: Path) -> None:
        from etude.models.checkpoint import save_checkpoint

        save_checkpoint(self.trainer.policy, directory, self.tokenizer, like=self.config.model.path)
        self.trainer.trained.save_adapter(directory.with_name("adapter"), self.config.model.path.resolve())


def _told(result: PublishResult) -> dict[str, Any]:
    """What the controller is told of a version in the store."""
    return {
        "version": int(result.version),
        "root": result.root,
        "delta_bytes": result.payload_bytes,
        "raw_bytes": result.raw_bytes,
        "changed_share": result.changed_share,
    }
