"""The fine-tuning control, in an actor of its own: the controller never loads torch.

Owns its work: record clean demonstrations of training tasks through the real harness, fine-tune the base on them, for a
given CPU time in all. It draws tasks reinforcement learning does not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from etude.environments.backends import open_backend
from etude.environments.cluster.calls import actor
from etude.records import Task
from etude.rollouts.config import RunConfig
from etude.tasks.expert import CLEAN
from etude.tasks.ladder import ladder_task
from etude.trainer.config import FinetuneConfig

if TYPE_CHECKING:
    from etude.harness.session import SessionResult
    from etude.models.chat import ChatRenderer
    from etude.models.decoder import Decoder
    from etude.models.state import Bits
    from etude.trainer.documents import Document

Read: TypeAlias = Callable[["SessionResult", "ChatRenderer"], "list[Document]"]
"""Makes documents of a session: what of it is learned."""
DEMONSTRATIONS = 10_000
"""Clean sessions that are recorded at most: more than there is time for."""
RECORDING_SHARE = 0.3
"""Of the control's time that goes into recording: each session is then learned about three times."""


@actor(num_cpus=0)
class ControlActor:
    """The process of the control."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def run(self, cpu_seconds: float, directory: Path) -> tuple[Bits, dict[str, float]]:
        return fine_tuned_control(self.config, cpu_seconds, directory)


def fine_tuned_control(
    config: RunConfig,
    cpu_seconds: float,
    directory: Path,
    finetuning: FinetuneConfig | None = None,
    read: Read | None = None,
    on_step: Callable[[Decoder, dict[str, float]], None] = lambda decoder, metrics: None,
) -> tuple[Bits, dict[str, float]]:
    """The control's weights, which are also saved to `directory`, and its metrics. Recording counts against the budget,
    as rollouts count against reinforcement learning's; saving does not. `read` makes documents of a session: by
    default, all that the expert said is learned.
    """
    from etude.models.chat import open_chat
    from etude.models.checkpoint import load_checkpoint, save_checkpoint
    from etude.models.expert_format import set_expert_format
    from etude.models.state import export_bits
    from etude.trainer.finetune import finetune

    decoder, tokenizer = load_checkpoint(config.model.path)
    set_expert_format(decoder, config.model.expert_format)
    started = cpu_spent()
    chat = open_chat(config.model.path, tokenizer)
    documents = asyncio.run(_demonstrations(config, chat, RECORDING_SHARE * cpu_seconds, read or _whole))
    spent = cpu_spent() - started
    metrics = finetune(
        decoder,
        documents,
        finetuning or FinetuneConfig(),
        cpu_seconds - spent,
        config.seed,
        lambda line: on_step(decoder, line),
    )
    save_checkpoint(decoder, directory, tokenizer, like=config.model.path)
    return export_bits(decoder), metrics | {"demonstrations": float(len(documents)), "recording_cpu_s": spent}


def cpu_spent() -> float:
    """Of this process and of the sandboxes it has seen end."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _whole(result: SessionResult, chat: ChatRenderer) -> list[Document]:
    from etude.trainer.documents import document_of

    return [document_of(segment) for segment in result.segments]


async def _demonstrations(config: RunConfig, chat: ChatRenderer, cpu_seconds: float, read: Read) -> list[Document]:
    from etude.trainer.demonstrations import record

    backend, tasks = open_backend(config.environment), _tasks(config, cpu_seconds)
    try:
        played = record(tasks, backend, chat, CLEAN, config.harness, seed=config.seed)
        return [document async for _, result in played for document in read(result, chat)]
    finally:
        await backend.close()


def _tasks(config: RunConfig, cpu_seconds: float) -> Iterator[Task]:
    """As many as are begun within the time, one at least."""
    end = cpu_spent() + cpu_seconds
    for index in range(DEMONSTRATIONS):
        if index and cpu_spent() >= end:
            return
        yield control_task(config, index)


def control_task(config: RunConfig, index: int) -> Task:
    rungs = config.rollouts.rungs
    return ladder_task(rungs[index % len(rungs)], "train", 30_000_000 + config.seed * 1_000_000 + index)
