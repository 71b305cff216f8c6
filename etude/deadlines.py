"""How long a run waits: every deadline of it, by one factor.

    async with asyncio.timeout(scaled(START_S)): ...

A wait's own seconds are a constant with its reason, beside the code that waits, and are read through `scaled`. Owns
the table `[deadlines]` and the variable by which the processes that a run starts have its factor too. What is no
deadline (a pause, an interval, a budget of time) is not read through it.
"""

from __future__ import annotations

import os

from pydantic import Field

from etude.config import Config

VARIABLE = "ETUDE_DEADLINES_SCALE"


class DeadlineConfig(Config):
    """How patient everything is with everything else."""

    scale: float = Field(1.0, gt=0)
    """Every deadline is multiplied by it: more for a machine that is slow or busy, less to find what hangs sooner."""

    def variables(self) -> dict[str, str]:
        """What processes that are started must have in their environment."""
        return {VARIABLE: repr(self.scale)}

    def apply(self) -> None:
        """For this process, and for those that inherit its environment."""
        os.environ |= self.variables()


class Wait:
    """The same as a constant of a config's class: `start_timeout_s: ClassVar[Wait] = Wait(30.0)` is read scaled."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __get__(self, instance: object, owner: type) -> float:
        return scaled(self.seconds)


def scaled(seconds: float) -> float:
    """How long this process waits, where it would be so long by itself."""
    return seconds * float(os.environ.get(VARIABLE, "1"))
