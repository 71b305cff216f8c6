"""A short supervised start: a model learns from recorded demonstrations what a family's sessions look like.

Owns `make_warm_start` and `WarmStartConfig`, the schema of recipes whose `kind` is "warm_start". A model that has never
seen a tool or a summary gives reinforcement learning nothing to choose from; one that imitates an imperfect expert
does. Recordings are real sessions, by the seed the same on every machine; so are the steps. Whatever such a start
teaches, every arm of a comparison that begins from it has.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import model_validator

from etude.config import Config
from etude.durable import append_whole, write_whole
from etude.environments.backends import open_backend
from etude.harness.config import HarnessConfig
from etude.models.chat import ChatRenderer, open_chat
from etude.models.checkpoint import load_checkpoint, save_checkpoint
from etude.models.state import round_to_bf16
from etude.plugins import named
from etude.records import Limits, Task
from etude.tasks.expert import ExpertConfig
from etude.tasks.families import family
from etude.tasks.trail_expert import TrailExpertConfig
from etude.trainer.config import OptimizerConfig
from etude.trainer.demonstrations import record
from etude.trainer.documents import Document, ShuffledSource, document_of
from etude.trainer.midtraining import Midtraining, MidtrainingConfig, Stage

FIRST_SEED = 20_000_000
"""Of the tasks demonstrated; reinforcement learning draws others."""
LIMITS = Limits(max_turns=32, max_context_tokens=8192, max_sampled_tokens=4096)
"""Of demonstrations on the ladder."""


class WarmStartConfig(Config):
    """Who demonstrates what, and for how long it is imitated."""

    kind: Literal["warm_start"]
    model: Path = Path("models/etude-tiny")
    seed: int = 0
    family: Annotated[str, named("families")] = "trail"
    rungs: tuple[int, ...]
    """Which rungs are demonstrated, in turns."""
    sessions: int = 1000
    expert: TrailExpertConfig | ExpertConfig | None = None
    """The ladder's or the trail's, as the family wants it; None: one without slips."""
    harness: HarnessConfig
    """That of the runs which begin from here."""
    optimizer: OptimizerConfig = OptimizerConfig(lr=0.01, scalar_lr=1e-3)
    tokens: int = 1_000_000
    """To train on: all segments of all sessions, over and over."""
    tokens_per_step: int = 4096
    threads: int = 2

    @property
    def demonstrator(self) -> TrailExpertConfig | ExpertConfig:
        own = TrailExpertConfig if self.family == "trail" else ExpertConfig
        return own() if self.expert is None else self.expert

    @model_validator(mode="after")
    def _experts_family(self) -> WarmStartConfig:
        if self.family not in ("trail", "ladder"):
            raise ValueError(f"family: nobody demonstrates {self.family}; there are experts of trail and ladder")
        if isinstance(self.demonstrator, TrailExpertConfig) != (self.family == "trail"):
            raise ValueError(f"expert: these are not the keys of the {self.family}'s expert")
        return self


def make_warm_start(config: WarmStartConfig, directory: Path) -> dict[str, float | str]:
    """Record, train, and save the model to `directory`/model."""
    torch.set_num_threads(config.threads)
    decoder, tokenizer = load_checkpoint(config.model)
    documents = asyncio.run(_recorded(config, open_chat(config.model, tokenizer)))
    run = Midtraining(
        MidtrainingConfig(
            model=decoder.config,
            stages=(Stage(tokens=config.tokens, mixture={"sessions": 1.0}),),
            optimizer=config.optimizer,
            seed=config.seed,
            tokens_per_step=config.tokens_per_step,
            warmup_steps=10,
            observation_weight=0.0,
        ),
        {"sessions": ShuffledSource(documents, config.seed)},
        decoder,
    )
    directory.mkdir(parents=True, exist_ok=True)
    said = 0.0
    log = directory / "log.jsonl"
    write_whole(log, b"")
    with log.open("ab", buffering=0) as file:
        while run.tokens < run.total_tokens:
            metrics = run.step()
            said = metrics["said_loss"]
            line = json.dumps({**metrics, "step": run.step_count, "tokens": run.tokens})
            append_whole(file.fileno(), f"{line}\n".encode(), log)
    round_to_bf16(run.decoder)
    save_checkpoint(run.decoder, directory / "model", tokenizer, like=config.model)
    return {
        "segments": len(documents),
        "steps": run.step_count,
        "tokens": run.tokens,
        "said_loss": said,
        "model": str(directory / "model"),
    }


def demonstrated(config: WarmStartConfig) -> list[Task]:
    """The tasks that the expert plays."""
    task, rungs = family(config.family).task, config.rungs
    first = FIRST_SEED + config.seed * 1_000_000
    tasks = [task(rungs[index % len(rungs)], "train", first + index) for index in range(config.sessions)]
    # the ladder's limits are those of the smallest model with the shortest prompt
    return tasks if config.family == "trail" else [replace(each, limits=LIMITS) for each in tasks]


async def _recorded(config: WarmStartConfig, chat: ChatRenderer) -> list[Document]:
    backend = open_backend()
    try:
        played = record(demonstrated(config), backend, chat, config.demonstrator, config.harness, seed=config.seed)
        by_task = {task.id: result.segments async for task, result in played}
    finally:
        await backend.close()
    # sessions come in the order they ended, which is not the seed's
    return [document_of(segment) for name in sorted(by_task) for segment in by_task[name]]
