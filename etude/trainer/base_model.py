"""The small base model that ships with Etude, from nothing: tokenizer, recordings, mid-training, checkpoint.

Owns the order of these steps and `BaseConfig`, the schema of recipes/base.toml. Each step leaves its product in the
work directory and is skipped when that is already there, so a run that was killed goes on with `resume`. The product is
a directory in Qwen3-MoE's published layout, with the recipe and the log beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from etude.config import Config
from etude.environments.backends import open_backend
from etude.environments.base import Backend
from etude.harness.config import HarnessConfig
from etude.harness.prompt import system_prompt
from etude.harness.tools import TOOLS
from etude.models.chat import ChatRenderer
from etude.models.checkpoint import family_of, save_checkpoint
from etude.models.state import round_to_bf16
from etude.models.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer
from etude.records import Task
from etude.tasks.drills import drill
from etude.tasks.expert import NOISY, ExpertConfig
from etude.tasks.ladder import CHECK, RUNGS, ladder_task
from etude.tasks.words import TRAIN_WORDS
from etude.trainer.demonstrations import record, recorded
from etude.trainer.documents import (
    DrillSource,
    ShuffledSource,
    Source,
    python_definitions,
    python_documents,
    read_documents,
    write_documents,
)
from etude.trainer.midtraining import MidtrainingConfig, pretrain


class TokenizerConfig(Config):
    vocab_size: int = 1024
    drills: int = 4000
    """Drills, and a quarter as many mini-repositories and real definitions, that the merges are learnt from."""


class RecordingConfig(Config):
    sessions: int = 12_000
    expert: ExpertConfig = NOISY
    concurrency: int = 16


class BaseConfig(Config):
    seed: int = 0
    tokenizer: TokenizerConfig = TokenizerConfig()
    recording: RecordingConfig = RecordingConfig()
    python_definitions: int = 8000
    midtraining: MidtrainingConfig


def make_tokenizer(config: BaseConfig, directory: Path) -> Tokenizer:
    """Trained once; found again in the directory."""
    if not (directory / "tokenizer.json").exists():
        save_tokenizer(train_tokenizer(_tokenizer_texts(config), config.tokenizer.vocab_size, TRAIN_WORDS), directory)
    return load_tokenizer(directory)


def _tokenizer_texts(config: BaseConfig) -> Iterator[str]:
    count = config.tokenizer.drills
    for index in range(count):
        yield system_prompt(TOOLS)  # every session opens with it
        yield from (text for _, text in drill(config.seed + 1, index))
    for index in range(count // 4):
        for name, content in ladder_task(RUNGS[index % len(RUNGS)], "train", index).files.items():
            if name != CHECK:
                yield content.decode()
    yield from python_definitions(config.seed, count // 4)


def make_sources(config: BaseConfig, directory: Path, chat: ChatRenderer) -> dict[str, Source]:
    """Drills for ever, real Python, and the recorded sessions if there are any yet."""
    python = python_documents(chat.encode, python_definitions(config.seed, config.python_definitions))
    sources: dict[str, Source] = {
        "drills": DrillSource(chat, system_prompt(TOOLS), config.seed),
        "python": ShuffledSource(python, config.seed),
    }
    recorded = directory / "sessions.npz"
    if recorded.exists():
        sources["sessions"] = ShuffledSource(read_documents(recorded), config.seed)
    return sources


async def record_sessions(config: BaseConfig, directory: Path, backend: Backend, chat: ChatRenderer) -> Path:
    """The imperfect expert plays training tasks of all rungs; written to `sessions.npz`."""
    path = directory / "sessions.npz"
    played = record(
        recording_tasks(config.seed, config.recording.sessions),
        backend,
        chat,
        config.recording.expert,
        HarnessConfig(),
        seed=config.seed,
        concurrency=config.recording.concurrency,
    )
    documents = await recorded(played, config.recording.sessions)
    random.Random(config.seed).shuffle(documents)
    await asyncio.to_thread(write_documents, path, documents)
    return path


def recording_tasks(seed: int, count: int) -> Iterator[Task]:
    """Training tasks, rungs in turn; indices far from those reinforcement learning draws."""
    rungs = itertools.cycle(RUNGS)
    return (ladder_task(next(rungs), "train", 10_000_000 + seed * 1_000_000 + index) for index in range(count))


def make_base_model(config: BaseConfig, directory: Path) -> dict[str, float | str]:
    """Every step in turn, each skipped if its product is there; a mid-training that was stopped goes on."""
    family_of(config.midtraining.model)  # what cannot be saved need not be trained
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(config, directory)
    chat = ChatRenderer(tokenizer)
    if not (directory / "sessions.npz").exists():
        asyncio.run(_record_in_own_sandboxes(config, directory, chat))
    resume = (directory / "midtraining.pt").exists()
    run = pretrain(config.midtraining, make_sources(config, directory, chat), directory, resume=resume)
    round_to_bf16(run.decoder)
    save_checkpoint(run.decoder, directory / "model", tokenizer)
    return {"steps": run.step_count, "tokens": run.tokens, "model": str(directory / "model")}


async def _record_in_own_sandboxes(config: BaseConfig, directory: Path, chat: ChatRenderer) -> None:
    backend = open_backend()
    try:
        await record_sessions(config, directory, backend, chat)
    finally:
        await backend.close()
