"""The fine-tuning control, in an actor of its own: the controller never loads torch.

Owns its work: record clean demonstrations of training tasks through the real harness, fine-tune the base on them, for a
given CPU time in all. It draws tasks reinforcement learning does not.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from etude.environments.backends import open_backend
from etude.environments.cluster.calls import actor
from etude.records import Task
from etude.rollouts.config import RunConfig
from etude.tasks.ladder import ladder_task

if TYPE_CHECKING:
    from etude.models.chat import ChatRenderer
    from etude.models.state import Bits
    from etude.trainer.documents import Document


@actor(num_cpus=0)
class ControlActor:
    """The process of the control."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def run(self, cpu_seconds: float, directory: Path) -> tuple[Bits, dict[str, float]]:
        return fine_tuned_control(self.config, cpu_seconds, directory)


def fine_tuned_control(config: RunConfig, cpu_seconds: float, directory: Path) -> tuple[Bits, dict[str, float]]:
    """The control's weights, which are also saved to `directory`, and its metrics. Recording counts against the budget,
    as rollouts count against reinforcement learning's; saving does not.
    """
    from etude.models.chat import ChatRenderer
    from etude.models.checkpoint import load_checkpoint, save_checkpoint
    from etude.models.expert_format import set_expert_format
    from etude.models.state import export_bits
    from etude.trainer.finetune import finetune

    decoder, tokenizer = load_checkpoint(config.model.path)
    set_expert_format(decoder, config.model.expert_format)
    started = _cpu_seconds()
    documents = asyncio.run(_demonstrations(config, ChatRenderer(tokenizer)))
    spent = _cpu_seconds() - started
    metrics = finetune(decoder, documents, config.control.finetune, cpu_seconds - spent, config.seed)
    save_checkpoint(decoder, directory, tokenizer)
    return export_bits(decoder), metrics | {"demonstrations": float(len(documents)), "recording_cpu_s": spent}


def _cpu_seconds() -> float:
    """Of this process and of the sandboxes it has seen end."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


async def _demonstrations(config: RunConfig, chat: ChatRenderer) -> list[Document]:
    from etude.trainer.demonstrations import record
    from etude.trainer.documents import document_of

    backend = open_backend(config.environment)
    try:
        played = record(
            [control_task(config, index) for index in range(config.control.demonstrations)],
            backend,
            chat,
            config.control.expert,
            config.harness,
            seed=config.seed,
        )
        return [document_of(segment) async for _, result in played for segment in result.segments]
    finally:
        await backend.close()


def control_task(config: RunConfig, index: int) -> Task:
    rungs = config.rollouts.rungs
    return ladder_task(rungs[index % len(rungs)], "train", 30_000_000 + config.seed * 1_000_000 + index)
