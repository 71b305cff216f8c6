"""Finds out, from outside, whether a sandbox's own commands keep its agent from answering.

Owns the look at the processors, and the words. Commands that take all the processors a sandbox may have are at fault
themselves. Where there was more to be had and the agent is silent all the same, the fault is ours; so it is where the
whole machine is too busy to tell.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

_LOOK_S = 2.0
_MOST = 0.75
"""The part of its processors that counts as all of them: the kernel's accounting lags, and so do we."""
_FULL = 0.95
"""The part of its memory that leaves none: what is freed is taken again at once."""


def starved_of(processors: float, given: float, memory: float = 0.0) -> str:
    """What commands leave none of, or "": of the processors, `given` so many, or of memory, a part of it taken."""
    if memory >= _FULL:
        return "what runs in it has left no memory"
    most = min(given, float(os.cpu_count() or 1))
    return "what runs in it takes every processor it has" if processors >= _MOST * most else ""


async def processors_in_use(process: int) -> float:
    """How many processors a process and its descendants keep busy."""
    began, before = time.monotonic(), _ticks(process)
    await asyncio.sleep(_LOOK_S)
    return max(0, _ticks(process) - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)


def _ticks(process: int) -> int:
    """Theirs, and those of the children that they have buried. What ends meanwhile is left out."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(map(int, stat[11:15])) + sum(_ticks(int(child)) for child in children)
