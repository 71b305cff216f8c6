"""Rejection-sampling fine-tuning as an arm: `trainer.rejection`, by CPU time.

Owns what the arm's time is spent on. In each round the policy of the round before plays fresh training tasks, through
the same harness, sandboxes and verifier as reinforcement learning, for its part of `sampling_share`; the last round's
fine-tuning takes all the time that is left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from playing import played
from pydantic import Field, model_validator

from etude.models.checkpoint import load_checkpoint, save_checkpoint, shape_of
from etude.models.expert_format import set_expert_format
from etude.records import solved
from etude.rollouts.config import RunConfig
from etude.rollouts.control import cpu_spent
from etude.rollouts.session import RolloutRequest
from etude.tasks.ladder import ladder_task
from etude.trainer import rejection
from etude.trainer.config import FinetuneConfig
from etude.trainer.documents import Document, document_of
from etude.trainer.finetune import finetune
from etude.trainer.taught import Kept

FIRST = 60_000_000
"""Number of the first task: neither reinforcement learning nor the demonstrations have these."""


class RejectionConfig(rejection.RejectionConfig):
    """To be tuned on development tasks (`--set rft.KEY=VALUE`)."""

    sampling_share: float = Field(0.6, gt=0, lt=1)
    """Of all CPU time, in equal parts over the rounds."""
    round_share: float = Field(0.08, gt=0, lt=1)
    """Of all CPU time, for the fine-tuning of each round but the last."""

    @model_validator(mode="after")
    def _fits(self) -> RejectionConfig:
        if (taken := self.sampling_share + (self.rounds - 1) * self.round_share) >= 0.95:
            raise ValueError(f"sampling_share and round_share: they leave {1 - taken:.0%} of the time at the end")
        return self


@dataclass(frozen=True)
class Round:
    """One is over: the model it has made, and the arm's totals by then."""

    model: Path
    cpu_s: float
    samples: int
    kept: int


def rejection_tuned(
    config: RunConfig,
    cpu_seconds: float,
    directory: Path,
    settings: RejectionConfig,
    finetuning: FinetuneConfig,
    on_round: Callable[[Round], None] = lambda done: None,
) -> Round:
    """The last round; its model is in `directory`/round-N. Whatever `on_round` takes is not counted."""
    base, requests = Path(config.model.path), _requests(config, settings)
    kept = Kept(settings.per_task, shape_of(base).max_context)
    spent, samples, sampled, began = 0.0, 0, 0.0, 0.0
    done: list[Round] = []

    def play(number: int, model: Path) -> None:
        nonlocal samples, sampled, began
        began = cpu_spent()
        end = began + settings.sampling_share * cpu_seconds / settings.rounds
        torch.set_num_threads(finetuning.threads)
        samples += asyncio.run(_sample(model, config, requests, end, kept))
        sampled = cpu_spent() - began

    def learn(number: int, documents: Sequence[Document]) -> Path:
        last = number == settings.rounds
        left = cpu_seconds - spent - sampled if last else settings.round_share * cpu_seconds
        _finetuned_from_base(config, documents, finetuning, left, directory / f"round-{number}")
        return directory / f"round-{number}"

    def over(made: rejection.Round) -> None:
        nonlocal spent
        spent += cpu_spent() - began
        done.append(Round(made.model, spent, samples, made.kept))
        on_round(done[-1])

    rejection.rejection_rounds(base, settings, kept, play, learn, over)
    return done[-1]


async def _sample(model: Path, config: RunConfig, requests: Iterator[RolloutRequest], end: float, kept: Kept) -> int:
    """Play until the CPU time is about `end`. What is under way is played to its end, and counted: so none is begun
    once the time there is would go into that, at half of a rollout's time each.
    """
    begun = count = 0
    start = cpu_spent()

    def in_time() -> Iterator[RolloutRequest]:
        nonlocal begun
        while (now := cpu_spent()) + (begun - count) / 2 * (now - start) / max(1, (begun + count) / 2) < end:
            begun += 1
            yield next(requests)

    async for request, trajectory in played(model, config, in_time()):
        count += 1
        if solved(trajectory.outcome):
            kept.add(request.task.id, request.task.provenance["rung"], list(map(document_of, trajectory.segments)))
    return count


def _requests(config: RunConfig, settings: RejectionConfig) -> Iterator[RolloutRequest]:
    """Fresh tasks without end, rungs in turns, each task as often as it is to be attempted."""
    rng, rungs, index = random.Random(f"rejection {config.seed}"), config.rollouts.rungs, 0
    while True:
        task = ladder_task(rungs[index % len(rungs)], "train", FIRST + config.seed * 1_000_000 + index)
        for attempt in range(settings.attempts):
            yield RolloutRequest(f"{task.id}/{attempt}", "rejection", task, rng.getrandbits(40))
        index += 1


def _finetuned_from_base(
    config: RunConfig, documents: Sequence[Document], finetuning: FinetuneConfig, cpu_seconds: float, directory: Path
) -> None:
    decoder, tokenizer = load_checkpoint(config.model.path)
    set_expert_format(decoder, config.model.expert_format)
    finetune(decoder, documents, finetuning, cpu_seconds, config.seed)
    save_checkpoint(decoder, directory, tokenizer)
