"""Rejection-sampling fine-tuning: the policy plays, what it solved is kept, and the base is fine-tuned on that.

Owns the arm's loop. In each round the policy of the round before plays fresh training tasks, through the same harness,
sandboxes and verifier as reinforcement learning, for its part of `sampling_share`. Of each task at most `per_task`
solved sessions are kept. Then the base is fine-tuned on all that is kept so far, from the base each time, so that early
rounds' faults are not built upon; the last round's fine-tuning takes all the time that is left. Rungs weigh the same
however few of their sessions were solved, as long as none is then seen more than `most_repeats` times as often as
another. (RAFT, arXiv 2304.06767; ReST-EM, arXiv 2312.06585.)
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from playing import played
from pydantic import Field, model_validator

from etude.config import Config
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.models.expert_format import set_expert_format
from etude.records import solved
from etude.rollouts.config import RunConfig
from etude.rollouts.control import cpu_spent
from etude.rollouts.session import RolloutRequest
from etude.tasks.ladder import ladder_task
from etude.trainer.config import FinetuneConfig
from etude.trainer.documents import Document, document_of
from etude.trainer.finetune import finetune

FIRST = 60_000_000
"""Number of the first task: neither reinforcement learning nor the demonstrations have these."""


class RejectionConfig(Config):
    """To be tuned on development tasks (`--set rft.KEY=VALUE`)."""

    rounds: int = Field(3, ge=1)
    sampling_share: float = Field(0.6, gt=0, lt=1)
    """Of all CPU time, in equal parts over the rounds."""
    round_share: float = Field(0.08, gt=0, lt=1)
    """Of all CPU time, for the fine-tuning of each round but the last."""
    attempts: int = Field(4, ge=1)
    """At each task."""
    per_task: int = Field(2, ge=1)
    """Solved sessions that are kept of a task at most."""
    most_repeats: int = Field(4, ge=1)
    """How often a rung's sessions may be repeated, so that it weighs as much as the others."""

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
    model, kept, samples = Path(config.model.path), defaultdict[int, list[Document]](list), 0
    spent, done = 0.0, None
    requests = _requests(config, settings)
    for number in range(1, settings.rounds + 1):
        began = cpu_spent()
        end = began + settings.sampling_share * cpu_seconds / settings.rounds
        torch.set_num_threads(finetuning.threads)
        samples += asyncio.run(_sample(model, config, settings, requests, end, kept))
        sampled = cpu_spent() - began
        last = number == settings.rounds
        left = cpu_seconds - spent - sampled if last else settings.round_share * cpu_seconds
        model = directory / f"round-{number}"
        documents = balanced(kept, settings.most_repeats)
        if documents:
            _finetuned_from_base(config, documents, finetuning, left, model)
        else:
            model = Path(config.model.path)  # nothing was solved: there is nothing to learn from
        spent += cpu_spent() - began
        done = Round(model, spent, samples, sum(map(len, kept.values())))
        on_round(done)
    assert done is not None
    return done


def balanced(kept: Mapping[int, Sequence[Document]], most_repeats: int) -> list[Document]:
    """Each rung's documents over and over until they are as many as the largest rung's, or `most_repeats` times as many
    as there are.
    """
    largest = max(map(len, kept.values()), default=0)
    found: list[Document] = []
    for rung in sorted(kept):
        documents = kept[rung]
        wanted = min(largest, most_repeats * len(documents))
        found += [documents[place % len(documents)] for place in range(wanted)]
    return found


async def _sample(
    model: Path,
    config: RunConfig,
    settings: RejectionConfig,
    requests: Iterator[RolloutRequest],
    end: float,
    kept: dict[int, list[Document]],
) -> int:
    """Play until the CPU time is about `end`. What is under way is played to its end, and counted: so none is begun
    once the time there is would go into that, at half of a rollout's time each.
    """
    of_task: Counter[str] = Counter()
    begun = count = 0
    start = cpu_spent()

    def in_time() -> Iterator[RolloutRequest]:
        nonlocal begun
        while (now := cpu_spent()) + (begun - count) / 2 * (now - start) / max(1, (begun + count) / 2) < end:
            begun += 1
            yield next(requests)

    async for request, trajectory in played(model, config, in_time()):
        count += 1
        if solved(trajectory.outcome) and of_task[request.task.id] < settings.per_task:
            of_task[request.task.id] += 1
            kept[request.task.provenance["rung"]] += map(document_of, trajectory.segments)
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
