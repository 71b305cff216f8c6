"""Tools that take longer than they need: a rehearsal of a run whose tests and builds are slow.

Owns `Delay` and `delayed`. What a call waits for is drawn from a lognormal distribution, given by its median and
its 99th percentile. The draws are spread evenly over it (multiples of the golden ratio), so that two runs of as many
calls wait equally long in sum. A tool's answer does not depend on it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from etude.environments.base import Sandbox
from etude.harness.tools.base import Tool, ToolConfig

_GOLDEN = (math.sqrt(5) - 1) / 2
_calls = itertools.count(1)


@dataclass(frozen=True)
class Delay:
    """What every call waits for before it is made: half of them for less than the median."""

    median_s: float
    p99_s: float

    def at(self, call: int) -> float:
        """Seconds for the call of this number, from 1."""
        spread = math.log(self.p99_s / self.median_s) / NormalDist().inv_cdf(0.99)
        quantile = call * _GOLDEN % 1.0
        return self.median_s * math.exp(spread * NormalDist().inv_cdf(min(max(quantile, 1e-6), 1 - 1e-6)))


def delayed(tool: Tool, delay: Delay) -> Tool:
    """The tool, later. Calls are numbered over the whole process."""

    async def run(sandbox: Sandbox, settings: ToolConfig, arguments: Mapping[str, Any]) -> str:
        await asyncio.sleep(delay.at(next(_calls)))
        return await tool.run(sandbox, settings, arguments)

    return replace(tool, run=run)
