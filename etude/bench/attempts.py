"""One attempt at a task: a session in its own sandbox, judged in a fresh one.

Owns `Attempt`, what is kept of one, and `play_attempt`. What our machinery fails is an attempt without a verdict: it
has a name, and is never a 0. Talks to: harness, environments, rewards.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from etude.bench.config import BenchConfig
from etude.bench.policies import AttemptRequest, PlayedSession, Policy
from etude.environments.base import Backend, Sandbox
from etude.errors import ConfigError, EtudeError, Overloaded
from etude.harness.conduct import Conduct, conduct_of
from etude.harness.session import SessionResult
from etude.records import Cheated, Event, InfraFailed, Task, solved
from etude.rewards.judge import Judged
from etude.rewards.judge.aspects import ASPECTS
from etude.rewards.judgement import Judgement, Judges
from etude.rewards.reward import RewardConfig, score
from etude.rewards.sealed import judge, run_to_seal
from etude.rewards.verifier import Verdict
from etude.tasks.names import is_id


@dataclass(frozen=True)
class Attempt:
    """What came of one attempt. Nothing here depends on the clock, or on how often it had to be played."""

    task: str
    attempt: int
    split: str
    solved: bool | None
    """None: there is no verdict, and `why` names the failure of ours."""
    why: str
    """Otherwise "cheated", or the verifier's reason: passed, failed, timeout, crashed, no_reward, blocked."""
    stop: str = ""
    """How the session ended: finished, or a limit."""
    touched: tuple[str, ...] = ()
    """Protected files that the agent changed."""
    findings: tuple[str, ...] = ()
    """What the auditor, linters and conventions hold against it, a line each."""
    rubric: dict[str, bool | None] = field(default_factory=dict)
    """Whether each criterion is met; None where the judge came to no verdict."""
    faults: dict[str, float] = field(default_factory=dict)
    """How many of each kind; of style the share of places that break a convention."""
    cost: float | None = None
    usage: dict[str, int] = field(default_factory=dict)
    """The harness's counts."""
    conduct: Conduct = field(default_factory=Conduct)
    """How the session worked."""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "touched": list(self.touched), "findings": list(self.findings)}


@dataclass(frozen=True)
class Played:
    """An attempt and what is not part of its result: how long it took, how often it was played, its log."""

    attempt: Attempt
    seconds: float
    plays: int
    events: Sequence[Event]


_ATTEMPT = TypeAdapter(Attempt)


def attempt_of(row: Any) -> Attempt:
    """Of a line of results, which may be anybody's. Raises ValueError where it is none of an attempt's."""
    kept: dict[str, Any] = dict(checked(row, _ATTEMPT))
    if not is_id(kept["task"]):
        raise ValueError("task: no task can be called so")
    kept["touched"], kept["findings"] = tuple(kept.get("touched", ())), tuple(kept.get("findings", ()))
    before = {name: kept.pop(name) for name in ("looked", "edited") if name in kept}  # of an older run
    try:
        kept["conduct"] = Conduct(**{**before, **kept.get("conduct", {})})
        return Attempt(**kept)
    except TypeError as error:  # a key that attempts have not
        raise ValueError(str(error)) from None


def checked(row: Any, shape: TypeAdapter[Any]) -> Any:
    """What JSON said, as it is, if it is of this shape. Raises ValueError."""
    try:
        # half of a character, which a model may say, is no text to pydantic
        shape.validate_json(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace"), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from None
    return row


@dataclass(frozen=True)
class Table:
    """What every attempt of a run is played with."""

    policy: Policy
    backend: Backend
    judges: Judges
    config: BenchConfig


async def play_attempt(task: Task, number: int, table: Table) -> Played:
    """Play until there is a verdict, at most `config.retries` times anew. Raises ConfigError alone."""
    config = table.config
    seed = random.Random(f"bench {config.seed} {task.id} {number}").getrandbits(40)  # the same for every checkpoint
    pause, failed = config.retry_pause_s, InfraFailed("not played")
    for play in range(1, config.retries + 2):
        started = time.monotonic()
        played: list[PlayedSession] = []

        async def session(sandbox: Sandbox, played: list[PlayedSession] = played) -> SessionResult:
            played.append(await table.policy.play(AttemptRequest(task, number, sandbox, seed)))
            return played[-1].result

        try:
            sealed = await run_to_seal(task, table.backend, session)
            said = await judge(task, sealed, table.backend, table.judges)
            if not isinstance(said.verdict, InfraFailed):
                found = _attempt(task, number, sealed.result, said, said.verdict, table, played[-1].cost)
                return Played(found, time.monotonic() - started, play, sealed.result.events)
            failed = said.verdict
        except ConfigError:
            raise
        except (EtudeError, OSError) as error:
            failed = InfraFailed(f"{type(error).__name__}: {error}")
            if isinstance(error, Overloaded):
                pause = max(pause, error.retry_after_s)
        if play <= config.retries:
            await asyncio.sleep(pause)
            pause *= 2
    return Played(Attempt(task.id, number, task.split, None, failed.what), time.monotonic() - started, play, ())


def _attempt(
    task: Task, number: int, result: SessionResult, said: Judgement, verdict: Verdict, table: Table, cost: float | None
) -> Attempt:
    outcome = score(task, result, said, RewardConfig(audit=table.config.audit))
    return Attempt(
        task=task.id,
        attempt=number,
        split=task.split,
        solved=solved(outcome),
        why="cheated" if isinstance(outcome, Cheated) else verdict.reason,
        stop=result.stop,
        touched=verdict.touched,
        findings=said.faults,
        rubric=_criteria(said, task),
        faults=_faults(said),
        cost=cost,
        usage=dict(result.usage),
        conduct=conduct_of(result.events),
    )


def _criteria(said: Judgement, task: Task) -> dict[str, bool | None]:
    """By name, or by their words where the task brought them; None where there is no verdict."""
    if said.rubric is None:
        return {}
    names = [*ASPECTS, *task.rubric]
    met = [each.met if isinstance(each, Judged) else None for each in said.rubric.judgements]
    return dict(zip(names, met, strict=True))


def _faults(said: Judgement) -> dict[str, float]:
    quality = said.quality
    if quality is None:
        return {}
    return {
        "lints": len(quality.lints or ()),
        "style": quality.style.share if quality.style else 0.0,
        "left_undone": len(quality.unfinished or ()),
        "talk": len(quality.talk or ()),
    }
