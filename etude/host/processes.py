"""Processes that an event loop starts on the host.

Owns `start_process`, which whoever may be cancelled starts one with. asyncio itself can wait for ever for a process
whose start was given up before its pipes were connected (python/cpython#103847). Never looks at what they say.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress
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
