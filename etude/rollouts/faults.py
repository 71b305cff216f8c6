"""How often the processes of a run may die, and how long is waited before each is started anew.

Owns the table `[faults]` of a recipe, the budgets of restarts by kind of process, and the count of restarts of a run:
one line of kind "restart" in its metrics.jsonl for each, so that the count outlives every process of the run. Starts
and stops nothing; loads neither torch nor Ray, for the supervisor uses it too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from pathlib import Path
from typing import Literal

from pydantic import Field

from etude.config import Config
from etude.deadlines import DeadlineConfig
from etude.errors import EtudeError
from etude.rollouts.lines import append, rows

Kind = Literal["controller", "trainer", "engine", "sessions", "rewards"]

START_S = 300.0
"""A process that is not ready so long after it was started is taken for dead: on a cold disk torch alone takes one."""
DRAIN_S = 120.0
"""How long a process that is replaced by new code may finish what it has begun: most sessions are over by then."""
PING_S = 30.0
"""A process that does not answer for so long is killed and replaced: a pause of a busy machine is far shorter."""
PINGS = 6
"""How often within that time each is asked: a hang is found hardly later than the deadline."""
BUSY = 10
"""So many deadlines may pass while a process computes, or waits for its turn to, before it is said to hang."""


class BudgetConfig(Config):
    """How often one kind of process may be started anew, and after which pause."""

    restarts: int = Field(8, ge=0)
    """So many within `within_s`; one more ends the run."""
    within_s: float = Field(600.0, gt=0)
    """Restarts that are longer ago count no more."""
    first_pause_s: float = Field(0.2, ge=0)
    """Before the first restart; twice as long before each further one within the time."""
    longest_pause_s: float = Field(20.0, ge=0)
    """No pause is longer."""


class FaultConfig(Config):
    """What a run bears: restarts of each kind of process, and spare processes."""

    controller: BudgetConfig = BudgetConfig()
    trainer: BudgetConfig = BudgetConfig()
    engine: BudgetConfig = BudgetConfig()
    sessions: BudgetConfig = BudgetConfig()
    rewards: BudgetConfig = BudgetConfig()
    spare_engines: int = Field(0, ge=0)
    """Engine processes that are ready to take the place of one that died."""
    spare_sessions: int = Field(0, ge=0)
    """The same of session workers."""
    journal: bool = False
    """Write every move of every sample to moves.jsonl in the run's directory, for whoever follows it."""


class Supervised(Config):
    """What of a recipe its supervisor reads."""

    name: str
    seed: int = 0
    deadlines: DeadlineConfig = DeadlineConfig()
    faults: FaultConfig = FaultConfig()


class RestartBudgetSpent(EtudeError):
    """A kind of process died more often than the recipe allows."""


class Budget:
    """The restarts of one kind of process. Times are of the monotonic clock."""

    def __init__(self, kind: Kind, config: BudgetConfig) -> None:
        self.kind, self.config = kind, config
        self.at: deque[float] = deque()

    def spend(self, now: float, why: str) -> float:
        """Take one restart; returns the seconds to wait before it. Raises RestartBudgetSpent."""
        while self.at and now - self.at[0] > self.config.within_s:
            self.at.popleft()
        if len(self.at) >= self.config.restarts:
            raise RestartBudgetSpent(
                f"the {self.kind} died {len(self.at) + 1} times within {self.config.within_s:.0f} s, the last time: "
                f"{why}; what is saved can be resumed once that is mended, and faults.{self.kind}.restarts allows more"
            )
        self.at.append(now)
        return min(self.config.first_pause_s * 2 ** (len(self.at) - 1), self.config.longest_pause_s)


class Restarts:
    """All budgets of a run, and the lines that tell of restarts."""

    def __init__(self, config: FaultConfig, metrics: Path) -> None:
        self.config, self.metrics = config, metrics
        self._budgets: dict[Kind, Budget] = {}

    async def pause(self, kind: Kind, why: str) -> None:
        """Count one restart and wait as long as it must. Raises RestartBudgetSpent."""
        await asyncio.sleep(self.spend(kind, why))

    def spend(self, kind: Kind, why: str) -> float:
        """Count one restart; returns the seconds to wait before it. Raises RestartBudgetSpent."""
        budget = self._budgets.setdefault(kind, Budget(kind, getattr(self.config, kind)))
        pause_s = budget.spend(time.monotonic(), why)
        self.note(kind, why)
        return pause_s

    def note(self, kind: Kind, why: str) -> None:
        """Write a restart down that no budget is asked for, such as a replacement by an operator."""
        append(self.metrics, {"kind": "restart", "process": kind, "why": why, "at": time.time()})


def restarts_of(metrics: Path) -> dict[str, int]:
    """How often each kind of process of a run was started anew, over all its lives."""
    return dict(Counter(row["process"] for row in rows(metrics) if row["kind"] == "restart"))
