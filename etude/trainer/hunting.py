"""A scripted player without an oracle, as a warm start: what it solved by trying is learned.

    tasks.hunter plays, several times at each task ──► the verifier and the auditor ──► the shortest that passed

Owns `HunterSource` and `HunterStart`. Sessions differ in what chance has them try first. Of a task the shortest that
passed is learned first: a long one is mostly mends that were none.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from etude.config import Config
from etude.harness.dialogue import TokenDialogue
from etude.harness.scripted import ScriptedSampler
from etude.harness.session import token_dialogue
from etude.models.chat import open_chat
from etude.models.checkpoint import shape_of
from etude.tasks.hunter import Hunter
from etude.trainer.attempts import Attempt, Player
from etude.trainer.lessons import Made, Tasks, counters, learn, offer, play_missing, sandboxes
from etude.trainer.taught import Kept, TaughtSessions, of_attempts

if TYPE_CHECKING:
    from etude.trainer.warm_start import WarmStartConfig


class HunterSource(Config):
    """A script plays that knows no more than an agent does, and what it solved is learned. Its tasks name a function
    and its file: `etude tasks generate DIR --kind calls` makes such."""

    kind: Literal["hunter"] = "hunter"
    attempts: int = Field(4, ge=1)
    """At each task, each with other mends first."""
    per_task: int = Field(1, ge=1)
    """Solved sessions that are learned of a task at most, the shortest first."""


class HunterStart:
    """`sessions` are played, `attempts` at a task; then the base is trained on `tokens`."""

    def __init__(self, config: WarmStartConfig, source: HunterSource, directory: Path) -> None:
        self.config, self.source, self.directory = config, source, directory
        self.context = shape_of(config.model).max_context

    def made(self) -> Made:
        config, source = self.config, self.source
        kept = Kept(source.per_task, self.context)
        tasks = Tasks(config).take(0, max(1, config.sessions // source.attempts))
        attempts = [Attempt(task, 0, each) for each in range(source.attempts) for task in tasks]
        with TaughtSessions(self.directory, config.identity()) as sessions:
            if of_attempts(attempts, sessions.played()):
                asyncio.run(self._played(attempts, sessions))
            offer(shortest_first(attempts, sessions), sessions, kept)
            counted = counters(sessions, kept)
        return {**learn(config, kept.balanced(1), self.directory), **counted}

    async def _played(self, attempts: Sequence[Attempt], sessions: TaughtSessions) -> None:
        config, chat = self.config, open_chat(self.config.model)

        def dialogue_of(attempt: Attempt) -> TokenDialogue:
            hunter = Hunter(attempt.task.instruction, attempt.seed(config.seed))
            sampler = ScriptedSampler(hunter.next_message, chat)
            return token_dialogue(sampler, chat, config.harness, session_id=attempt.id, seed=0, temperature=1.0)

        async with sandboxes(config, [attempt.task for attempt in attempts]) as (backend, judges):
            player = Player(backend, judges, config.harness, self.context, dialogue_of)
            await play_missing(attempts, player, sessions, config.concurrency)


def shortest_first(attempts: Sequence[Attempt], sessions: TaughtSessions) -> list[Attempt]:
    """By how many tokens were said where it was solved; all others last."""
    played = sessions.played()

    def said(attempt: Attempt) -> float:
        session = played.get(attempt.id)
        if session is None or not session.solved:
            return math.inf
        return sum(int(each.sampled.sum()) for each in session.documents)

    return sorted(attempts, key=said)
