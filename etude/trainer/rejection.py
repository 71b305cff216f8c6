"""Rejection sampling: a model plays, what it solved is kept, and the base is fine-tuned on that, in rounds.

    the model of the round before plays ──► the solved sessions so far ──► the base, fine-tuned on them ──► next round

From the base each time, so that early rounds' faults are not built upon (RAFT, arXiv 2304.06767; ReST-EM, arXiv
2312.06585). Of each task at most `per_task` solved sessions are kept, and strata (rungs) weigh the same however few of
their sessions were solved, as long as none is then seen more than `most_repeats` times as often as another.

Owns `rejection_rounds`, the loop alone, and `RejectionStart`, which makes a warm start by it. How a round is played,
for how long, and how the base is fine-tuned, the loop's caller says: a warm start by numbers of sessions and tokens,
the benchmark of arms by CPU time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from etude.config import Config
from etude.engine.config import EngineConfig
from etude.engine.several import open_engines
from etude.harness.dialogue import TokenDialogue
from etude.harness.session import token_dialogue
from etude.models.chat import open_chat
from etude.models.checkpoint import load_checkpoint, shape_of
from etude.records import Task
from etude.trainer.attempts import Attempt, Player
from etude.trainer.documents import Document
from etude.trainer.hindsight import what_worked
from etude.trainer.lessons import Made, Tasks, counters, learn, offer, play_missing, sandboxes
from etude.trainer.taught import Kept, TaughtSessions, of_attempts

if TYPE_CHECKING:
    from etude.trainer.warm_start import WarmStartConfig


class RejectionConfig(Config):
    """How often a model plays its tasks, and how much of it is kept."""

    rounds: int = Field(3, ge=1)
    """Of playing and fine-tuning."""
    attempts: int = Field(4, ge=1)
    """At each task, in each round that plays it."""
    per_task: int = Field(2, ge=1)
    """Solved sessions that are kept of a task at most."""
    most_repeats: int = Field(4, ge=1)
    """How often a stratum's sessions may be repeated, so that it weighs as much as the others."""


@dataclass(frozen=True)
class Round:
    """One is over, and this is the model it has made: the base where nothing was solved by then."""

    number: int
    model: Path
    kept: int
    """Sessions so far."""


def rejection_rounds(
    base: Path,
    config: RejectionConfig,
    kept: Kept,
    play: Callable[[int, Path], None],
    learn: Callable[[int, Sequence[Document]], Path],
    on_round: Callable[[Round], None] = lambda done: None,
) -> Round:
    """The last round. `play` has a model play the round of that number, and offers its sessions to `kept`; `learn`
    fine-tunes the base on the documents, and says where it has put the model.
    """
    model, done = base, Round(0, base, 0)
    for number in range(1, config.rounds + 1):
        play(number, model)
        documents = kept.balanced(config.most_repeats)
        model = learn(number, documents) if documents else base
        done = Round(number, model, kept.sessions)
        on_round(done)
    return done


# --- as a warm start --------------------------------------------------------------------------------------------------


class RejectionSource(RejectionConfig):
    """The model itself plays."""

    kind: Literal["rejection"] = "rejection"
    temperature: float = Field(1.0, gt=0)
    """Of its sampling."""
    engine: EngineConfig = EngineConfig()


class RejectionStart:
    """`sessions` are played in each round, `attempts` at a task; then the base is trained on `tokens`."""

    def __init__(self, config: WarmStartConfig, source: RejectionSource, directory: Path) -> None:
        self.config, self.source, self.directory = config, source, directory
        self.tasks = Tasks(config)
        self.kept = Kept(source.per_task, shape_of(config.model).max_context)
        self.learned: Made = {}

    def made(self) -> Made:
        with TaughtSessions(self.directory, self.config.identity()) as self.sessions:
            last = rejection_rounds(self.config.model, self.source, self.kept, self._play, self._learn)
            counted = counters(self.kept)
        return {**self.learned, "rounds": last.number, **counted}

    def _play(self, number: int, model: Path) -> None:
        count = max(1, self.config.sessions // self.source.attempts)
        tasks = self.tasks.take((number - 1) * count, count)
        attempts = [Attempt(task, number, each) for task in tasks for each in range(self.source.attempts)]
        if of_attempts(attempts, self.sessions.played()):
            asyncio.run(self._played(attempts, tasks, model))
        offer(attempts, self.sessions, self.kept)

    async def _played(self, attempts: Sequence[Attempt], tasks: Sequence[Task], model: Path) -> None:
        config, source = self.config, self.source
        decoder, tokenizer = load_checkpoint(model)
        chat = open_chat(model, tokenizer)
        with open_engines(decoder, source.engine, config.threads) as engines:

            def dialogue_of(attempt: Attempt) -> TokenDialogue:
                seed = attempt.seed(config.seed)
                return token_dialogue(
                    engines, chat, config.harness, session_id=attempt.id, seed=seed, temperature=source.temperature
                )

            async with sandboxes(config, tasks) as (backend, judges):
                player = Player(backend, judges, config.harness, engines.max_context, dialogue_of)
                lesson = partial(what_worked, chat=chat)
                await play_missing(attempts, player, self.sessions, config.concurrency, lesson)

    def _learn(self, number: int, documents: Sequence[Document]) -> Path:
        """The last round's model is the warm start's."""
        place = self.directory if number == self.source.rounds else self.directory / f"round-{number}"
        self.learned = learn(self.config, documents, place)
        return place / "model"
