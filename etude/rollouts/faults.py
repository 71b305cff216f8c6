"""How often the processes of a run may die, and how long is waited before each is started anew.

Owns the table `[faults]` of a recipe, the budget of restarts that each kind of process has, and their count:
one line of kind "restart" in its metrics.jsonl for each, so that the count outlives every process of the run. Starts
and stops nothing; loads neither torch nor Ray, for the supervisor uses it too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from etude.config import Config
from etude.deadlines import DeadlineConfig, scaled
from etude.errors import EtudeError
from etude.rollouts.lines import note, rows

Kind = Literal["controller", "trainer", "engine", "sessions", "rewards"]

BUSY = 10
"""So many deadlines may pass while a process computes, or waits for its turn to, before it is said to hang."""
FIRST_PAUSE_S = 0.2
"""Before the first restart within the time."""


@dataclass(frozen=True)
class Patience:
    """How long a run waits for its processes, before `[deadlines] scale`."""

    start_s: float = 300.0
    """A process that is not ready so long after its start is taken for dead: on a cold disk torch alone takes one."""
    drain_s: float = 120.0
    """How long a process that is replaced by new code may finish what it has begun: most sessions are over by then."""
    ping_s: float = 30.0
    """A process that does not answer for so long is killed and replaced: a pause of a busy machine is far shorter."""
    ping_every_s: float = 5.0
    """How often each is asked: a hang is found hardly later than the deadline."""
    stop_s: float = 900.0
    """A controller that was asked to stop may take so long, and is then killed: the step in progress is done first."""
    stop_early_s: float = 30.0
    """The same of one that has not answered yet: it starts, and has nothing to finish."""
    again_s: float = 3.0
    """One Ctrl-C often comes more than once; one that comes so much later is another, and ends the controller at once.
    """
    within_s: float = 600.0
    """Restarts that are longer ago count no more: a run of days must bear one an hour."""
    longest_pause_s: float = 20.0
    """Of the doubling pauses before restarts: what is ill for longer is not cured by waiting."""


PATIENCE = Patience()


class FaultConfig(Config):
    """How many restarts of its processes a run allows, and how many spare processes it keeps."""

    restarts: int = Field(8, ge=0)
    """So often within ten minutes may processes of one kind be started anew; once more ends the run. The pause before
    a restart doubles with each one within that time, up to 20 s, or less where many are allowed."""
    spares: int = Field(0, ge=0)
    """Session workers, and engines of Etude's own, of each so many, that are ready to take the place of one that
    died."""
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


class Restarts:
    """The restarts of a run, by kind of process, and the lines that tell of them."""

    def __init__(self, config: FaultConfig, metrics: Path, patience: Patience = PATIENCE) -> None:
        self.config, self.metrics = config, metrics
        self.start_s, self.drain_s = scaled(patience.start_s), scaled(patience.drain_s)
        self.ping_s, self.ping_every_s = scaled(patience.ping_s), scaled(patience.ping_every_s)
        self.stop_s, self.stop_early_s = scaled(patience.stop_s), scaled(patience.stop_early_s)
        self.again_s = patience.again_s
        self._within_s = patience.within_s
        self._longest_pause_s = min(patience.longest_pause_s, patience.within_s / max(config.restarts, 1))
        self.hung = 0
        """Processes that were killed because they did not answer."""
        self.told: Callable[[str], object] = lambda line: None
        """Of each restart, for a person."""
        self._at: dict[Kind, deque[float]] = defaultdict(deque)

    async def pause(self, kind: Kind, why: str) -> None:
        """Count one restart and wait as long as it must. Raises RestartBudgetSpent."""
        await asyncio.sleep(self.spend(kind, why))

    def spend(self, kind: Kind, why: str) -> float:
        """Count one restart; returns the seconds to wait before it. Raises RestartBudgetSpent."""
        config, at, now = self.config, self._at[kind], time.monotonic()
        while at and now - at[0] > self._within_s:
            at.popleft()
        if len(at) >= config.restarts:
            raise RestartBudgetSpent(
                f"the {kind} died {len(at) + 1} times within {self._within_s:.0f} s, the last time: {why}; what is "
                "saved can be resumed once that is mended, and faults.restarts allows more"
            )
        at.append(now)
        self.note(kind, why)
        return min(FIRST_PAUSE_S * 2 ** (len(at) - 1), self._longest_pause_s)

    def note(self, kind: Kind, why: str) -> None:
        """Write a restart down that is not counted against the budget, such as a replacement by an operator."""
        note(self.metrics, "restart", {"process": kind, "why": why})
        self.told(f"restart ({kind}): {why}")


def restarts_of(metrics: Path) -> dict[str, int]:
    """How often each kind of process of a run was started anew, over all its lives."""
    return dict(Counter(row["process"] for row in rows(metrics) if row["kind"] == "restart"))
