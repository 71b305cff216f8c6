"""A scripted player without an oracle, as a warm start: what it solved by trying is learned.

    tasks.hunter plays, several times at each task ──► the verifier and the auditor ──► those that passed

Owns `HunterSource` and `HunterStart`. Sessions differ in what chance has them try first. All tries of one that passed
are learned, the wrong ones too: a small model hardly chooses better than chance, and what it can learn is to make each
try a new one, letter by letter. A call that failed is read and not learned; what is said after it is, for a model that
never saw a refusal repeats itself after its first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from pydantic import Field

from etude.config import Config
from etude.errors import EtudeError
from etude.harness.cost import SessionCost
from etude.harness.dialogue import TokenDialogue
from etude.harness.scripted import ScriptedSampler
from etude.harness.session import token_dialogue
from etude.models.chat import open_chat
from etude.models.checkpoint import shape_of
from etude.tasks.hunter import Hunter
from etude.trainer.attempts import Attempt, Player
from etude.trainer.hindsight import accepted
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
    """Solved sessions that are learned of a task at most."""
    misspell: float = Field(0.0, ge=0, le=1)
    """How often a message has a call that fails, with the way out of it after it. Only that is learned."""


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
            offer(attempts, sessions, kept)
            counted = counters(kept)
        if source.misspell and not kept.notes["slips"]:
            raise EtudeError(
                f"source.misspell = {source.misspell:g}, and none of the {kept.sessions} sessions that were kept has "
                "a slip; play more sessions, or set it to 0"
            )
        return {**learn(config, kept.balanced(1), self.directory), **counted}

    async def _played(self, attempts: Sequence[Attempt], sessions: TaughtSessions) -> None:
        config, chat = self.config, open_chat(self.config.model)
        hunters: WeakKeyDictionary[TokenDialogue, Hunter] = WeakKeyDictionary()

        def dialogue_of(attempt: Attempt) -> TokenDialogue:
            hunter = Hunter(attempt.task.instruction, attempt.seed(config.seed), self.source.misspell)
            sampler = ScriptedSampler(hunter.next_message, chat)
            dialogue = token_dialogue(sampler, chat, config.harness, session_id=attempt.id, seed=0, temperature=1.0)
            hunters[dialogue] = hunter
            return dialogue

        def told_of(dialogue: TokenDialogue) -> tuple[SessionCost, Mapping[str, int]]:
            hunter = hunters[dialogue]
            return SessionCost(), {"tries": hunter.tries, "slips": hunter.slipped}

        async with sandboxes(config, [attempt.task for attempt in attempts]) as (backend, judges):
            player = Player(backend, judges, config.harness, self.context, dialogue_of, told_of)
            await play_missing(attempts, player, sessions, config.concurrency, partial(accepted, chat=chat))
