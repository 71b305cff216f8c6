"""How often the processes of a run may die, and how long is waited before each is started anew.

Owns the table `[faults]` of a recipe, the budget of restarts that each kind of process has, and their count:
one line of kind "restart" in its metrics.jsonl for each, so that the count outlives every process of the run. Starts
and stops nothing; loads neither torch nor Ray, for the supervisor uses it too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from etude.config import Config
from etude.errors import EtudeError
from etude.rollouts.lines import append, rows

Kind = Literal["controller", "trainer", "engine", "sessions", "rewards"]

BUSY = 10
"""So many deadlines may pass while a process computes, or waits for its turn to, before it is said to hang."""
FIRST_PAUSE_S = 0.2
"""Before the first restart within the time."""


class FaultConfig(Config):
    """What a run bears: restarts, spare processes, and how soon a process that hangs is found."""

    restarts: int = Field(8, ge=0)
    """So often within `within_s` may processes of one kind be started anew; once more ends the run."""
    within_s: float = Field(600.0, gt=0)
    longest_pause_s: float = Field(20.0, ge=0)
    """The pause before a restart doubles with each one within the time, up to this."""
    spare_engines: int = Field(0, ge=0)
    """Engine processes that are ready to take the place of one that died."""
    spare_sessions: int = Field(0, ge=0)
    """The same of session workers."""
    start_deadline_s: float = Field(300.0, gt=0)
    """A process that is not ready so long after it was started is taken for dead."""
    drain_s: float = Field(120.0, ge=0)
    """How long a process that is replaced by new code may finish what it has begun."""
    journal: bool = False
    """Write every move of every sample to moves.jsonl in the run's directory, for whoever follows it."""
    ping_every_s: float = Field(5.0, gt=0)
    """How often every process is asked whether it lives."""
    ping_deadline_s: float = Field(30.0, gt=0)
    """One that does not answer for so long is killed and replaced."""

    @model_validator(mode="before")
    @classmethod
    def _one_budget(cls, table: Any) -> Any:
        """Each kind of process had a table of its own once."""
        for kind in get_args(Kind):
            if isinstance(table, dict) and kind in table:
                raise ValueError(
                    f"{kind}: every kind of process has the same budget now; in place of the table faults.{kind} write "
                    "faults.restarts, faults.within_s and faults.longest_pause_s"
                )
        return table


class Supervised(Config):
    """What of a recipe its supervisor reads."""

    name: str
    seed: int = 0
    faults: FaultConfig = FaultConfig()


class RestartBudgetSpent(EtudeError):
    """A kind of process died more often than the recipe allows."""


class Restarts:
    """The restarts of a run, by kind of process, and the lines that tell of them."""

    def __init__(self, config: FaultConfig, metrics: Path) -> None:
        self.config, self.metrics = config, metrics
        self.hung = 0
        """Processes that were killed because they did not answer."""
        self._at: dict[Kind, deque[float]] = defaultdict(deque)

    async def pause(self, kind: Kind, why: str) -> None:
        """Count one restart and wait as long as it must. Raises RestartBudgetSpent."""
        await asyncio.sleep(self.spend(kind, why))

    def spend(self, kind: Kind, why: str) -> float:
        """Count one restart; returns the seconds to wait before it. Raises RestartBudgetSpent."""
        config, at, now = self.config, self._at[kind], time.monotonic()
        while at and now - at[0] > config.within_s:
            at.popleft()
        if len(at) >= config.restarts:
            raise RestartBudgetSpent(
                f"the {kind} died {len(at) + 1} times within {config.within_s:.0f} s, the last time: {why}; what is "
                "saved can be resumed once that is mended, and faults.restarts allows more"
            )
        at.append(now)
        self.note(kind, why)
        return min(FIRST_PAUSE_S * 2 ** (len(at) - 1), config.longest_pause_s)

    def note(self, kind: Kind, why: str) -> None:
        """Write a restart down that is not counted against the budget, such as a replacement by an operator."""
        append(self.metrics, {"kind": "restart", "process": kind, "why": why, "at": time.time()})


def restarts_of(metrics: Path) -> dict[str, int]:
    """How often each kind of process of a run was started anew, over all its lives."""
    return dict(Counter(row["process"] for row in rows(metrics) if row["kind"] == "restart"))
