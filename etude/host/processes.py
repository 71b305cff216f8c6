"""Processes of the host: starting one on an event loop, and telling one from another that has its number later.

Owns `start_process`, which whoever may be cancelled starts one with, and `process_start`. asyncio itself can wait for
ever for a process whose start was given up before its pipes were connected (python/cpython#103847). Never looks at what
they say.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path
from typing import Any


async def start_process(*argv: str, **how: Any) -> Process:
    """As `asyncio.create_subprocess_exec`; whoever is cancelled meanwhile waits for the start and leaves no process.

    Raises OSError where it cannot be started.
    """
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*argv, **how))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        if starting.exception() is None:
            process = starting.result()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL) if how.get("start_new_session") else process.kill()
            await process.communicate()  # not `wait`: of one whose pipe is full asyncio never says that it has ended
        raise


def process_start(pid: int | str) -> str | None:
    """When it began, in clock ticks since boot; None when there is no such process, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
