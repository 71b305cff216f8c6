"""Sessions that a model may learn from, played and judged as any others are.

    attempt ──► a session in a sandbox of its own ──► the verifier and the auditor, in fresh ones ──► Judged

Owns `as_they_end`, `Attempt`, `Judged` and `Player`. The path is `rewards.sealed`, the one of rollouts and benchmarks;
whoever plays is behind a `Dialogue`. A session that the auditor says cheated is not solved, whatever the tests said:
what it did must not be learned. What our machinery or an endpoint fails is played again, and is never a session that
failed. Decides nothing about what is learned, and keeps nothing. Talks to: environments, harness, rewards.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from etude.environments.base import Backend, Sandbox
from etude.errors import ConfigError, EndpointError, EtudeError, Overloaded
from etude.harness.config import HarnessConfig
from etude.harness.cost import SessionCost
from etude.harness.dialogue import Dialogue
from etude.harness.session import SessionResult, check_room, run_dialogue
from etude.records import Cheated, InfraFailed, Task, solved
from etude.rewards.judgement import Judgement, Judges
from etude.rewards.reward import RewardConfig, score
from etude.rewards.sealed import judge, run_to_seal

RETRIES = 2
FAILURES_IN_A_ROW = 8
"""Attempts without a verdict that end the playing: something is broken that playing on would not mend."""
_PAUSE_S = 1.0
_PUNISHED = RewardConfig(audit="punish")
log = structlog.get_logger()
Given = TypeVar("Given")
Made = TypeVar("Made")
Talk = TypeVar("Talk", bound=Dialogue)


async def as_they_end(
    given: Iterable[Given], play: Callable[[Given], Awaitable[Made]], concurrency: int
) -> AsyncGenerator[Made]:
    """What `play` makes of each, in the order they end. The next is asked for when there is room for it, so whoever
    gives them may stop when it likes. Closed early, or where one raises, it cancels what is under way.
    """
    waiting, running = iter(given), set[asyncio.Task[Made]]()

    async def one(each: Given) -> Made:
        return await play(each)

    def start_more() -> None:
        while len(running) < concurrency:
            try:
                each = next(waiting)
            except StopIteration:
                return
            running.add(asyncio.create_task(one(each)))

    try:
        start_more()
        while running:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            running -= done
            start_more()
            for finished in done:
                yield finished.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@dataclass(frozen=True)
class Attempt:
    """One session that is to be played."""

    task: Task
    round: int
    number: int
    """Of the attempts at this task in this round."""

    @property
    def id(self) -> str:
        return f"{self.round}/{self.task.id}#{self.number}"

    def seed(self, seed: int) -> int:
        return random.Random(f"warm start {seed} {self.id}").getrandbits(40)


@dataclass(frozen=True)
class Judged:
    """An attempt that is over: what came of it, and what all its plays have cost."""

    attempt: Attempt
    result: SessionResult | None
    """None where our machinery or the endpoint failed each time: `why` says how."""
    solved: bool
    why: str
    """The verifier's reason (passed, failed, timeout, …), "cheated", "unaudited", or what failed."""
    cost: SessionCost
    notes: Mapping[str, int]
    """What the dialogue counted of its messages, the last time it was played."""


Told = tuple[SessionCost, Mapping[str, int]]


class Player(Generic[Talk]):
    """Plays attempts; `dialogue_of` opens the conversation of one, and `told_of` says what it has cost by then, and
    counts its messages.
    """

    def __init__(
        self,
        backend: Backend,
        judges: Judges,
        harness: HarnessConfig,
        context: int,
        dialogue_of: Callable[[Attempt], Talk],
        told_of: Callable[[Talk], Told] = lambda dialogue: (SessionCost(), {}),
    ) -> None:
        """`judges` audit; `context` is the most that the learner's model takes."""
        self._backend, self._judges, self._harness, self._context = backend, judges, harness, context
        self._dialogue_of, self._told_of = dialogue_of, told_of
        self._failed = 0

    def has_room(self, task: Task) -> bool:
        """Whether a session of this task has room for one turn."""
        try:
            dialogue = self._dialogue_of(Attempt(task, 0, 0))
            check_room(task, dialogue, self._harness, task.limits.within(self._context))
        except ConfigError:
            return False
        return True

    async def play(self, attempt: Attempt) -> Judged:
        """Raises ConfigError, and EtudeError where nothing gets a verdict any more."""
        spent, pause, why = SessionCost(), _PAUSE_S, ""
        for left in reversed(range(RETRIES + 1)):
            dialogue = self._dialogue_of(attempt)
            try:
                said = await self._once(attempt, dialogue)
                if isinstance(said, tuple):
                    self._failed = 0
                    cost, notes = self._told_of(dialogue)
                    return Judged(attempt, said[0], said[1], said[2], spent + cost, notes)
                why = said.what
            except ConfigError:
                raise
            except (EtudeError, OSError) as error:
                why = f"{type(error).__name__}: {error}"
                pause = max(pause, error.retry_after_s) if isinstance(error, Overloaded) else pause
                if isinstance(error, EndpointError):  # asking again will not help
                    left = 0
            spent += self._told_of(dialogue)[0]
            if not left:
                break
            await asyncio.sleep(pause)
            pause *= 2
        self._failed += 1
        return Judged(attempt, None, False, why, spent, {})

    def raise_if_hopeless(self, why: str) -> None:
        if self._failed >= FAILURES_IN_A_ROW:
            raise EtudeError(
                f"{self._failed} sessions in a row got no verdict, the last for this: {why}; mend that, and give "
                "the same command again: it goes on with what was kept"
            )

    async def _once(self, attempt: Attempt, dialogue: Talk) -> tuple[SessionResult, bool, str] | InfraFailed:
        task = attempt.task

        async def session(sandbox: Sandbox) -> SessionResult:
            return await run_dialogue(
                task.instruction, sandbox, dialogue, self._harness, task.limits.within(self._context),
                session_id=attempt.id, about={"task": task.id, "attempt": attempt.number}, files=task.files,
            )  # fmt: skip

        sealed = await run_to_seal(task, self._backend, session)
        said = await judge(task, sealed, self._backend, self._judges)
        if isinstance(said.verdict, InfraFailed):
            return said.verdict
        passed, why = verdict_on(task, sealed.result, said)
        return sealed.result, passed, why


def verdict_on(task: Task, result: SessionResult, said: Judgement) -> tuple[bool, str]:
    """Whether a session is to be learned from, and why not; its judgement must have an audit and a verdict."""
    assert not isinstance(said.verdict, InfraFailed)
    outcome = score(task, result, said, _PUNISHED)
    passed = solved(outcome)
    if isinstance(outcome, Cheated):
        log.info("cheated", task=task.id, evidence=outcome.evidence)
        return False, "cheated"
    unaudited = not passed and said.verdict.reward >= 1.0
    return passed, "unaudited" if unaudited else said.verdict.reason
