"""What a run does now: asked of its process, or what its files say where none has it.

Owns the question: one line to the run's `control.sock`, one line back, within a deadline, whatever sits behind it. The
answer is checked as anything is that comes from a run's directory. What the run can tell is `rollouts.watch`'s.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections import Counter
from typing import Any

from pydantic import TypeAdapter, ValidationError

from etude.host import beneath
from etude.rollouts.live import SOCKET
from etude.studio.run import Run
from etude.studio.shapes import Live, RunRow

ASK_S = 3.0
_LINE = 1 << 21
PHASES = {"running": "starting", "ended": "done", "stopped": "stopped", "copied": "copied"}
"""Of a run whose metrics name none."""
_FORM = TypeAdapter(Live)


async def live_of(row: RunRow, run: Run) -> Live:
    """How things stand. Raises nothing for a run that does not answer: it may be on its way to its end."""
    said = await _asked(run) if row.state == "running" else None
    await asyncio.to_thread(run.refresh)
    with run.lock:
        failures = run.failures + Counter(_dropped(run))
        phase = run.phases[-1].name if run.phases else PHASES[row.state]
        ages = dict(run.ages)
    still: dict[str, Any] = {
        "state": row.state, "phase": phase, "at": time.time(), "elapsed_s": None, "left_s": None, "evaluated": 0,
        "to_evaluate": 0, "busy": None, "ages": ages, "sandboxes": None, "failures": dict(failures),
        "throughput": None, "states": {}, "slots": [], "watched": None,
        "figures": {name: value for name, value in row.figures.items() if value is not None},
    }  # fmt: skip
    try:
        return _FORM.validate_python(still | (said or {}))
    except ValidationError:
        return _FORM.validate_python(still)


def _dropped(run: Run) -> dict[str, int]:
    """Groups by why they were dropped, of the last step's line."""
    names = [name for name in run.columns.names if name.startswith("dropped.")]
    last = run.columns.latest(names)
    return {name.removeprefix("dropped."): int(count) for name, count in last.items() if count}


async def _asked(run: Run) -> dict[str, Any] | None:
    """The run's own answer; None where it gives none in time."""
    found = beneath.lstat(run.directory.path, SOCKET)
    if found is None or not stat.S_ISSOCK(found.st_mode) or found.st_uid not in (os.getuid(), 0):
        return None
    try:
        async with asyncio.timeout(ASK_S):
            return _whole(await _exchange(run))
    except (OSError, TimeoutError, ValueError, RecursionError):
        return None


async def _exchange(run: Run) -> bytes:
    with beneath.opened(run.directory.path) as handle:
        reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{handle}/{SOCKET}", limit=_LINE)
    try:
        writer.write(b'{"command": "watch"}\n')
        await writer.drain()
        return await reader.readline()
    finally:
        writer.close()


def _whole(line: bytes) -> dict[str, Any] | None:
    reply = json.loads(line or b"{}")
    said = json.loads(reply["said"]) if isinstance(reply, dict) and reply.get("ok") else None
    return said if isinstance(said, dict) else None
