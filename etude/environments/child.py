"""Waiting for the end of a process that we started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal


async def ended(pid: int, timeout_s: float) -> bool:
    """Wait for our child to end, and reap it. False when it has not within the time.

    What is still in a process group of its own dies with it: bubblewrap's second half waits for ever for a first that
    was killed between its fork and its first word.
    """
    loop = asyncio.get_running_loop()
    handle = os.pidfd_open(pid)
    gone = asyncio.Event()
    loop.add_reader(handle, gone.set)
    try:
        async with asyncio.timeout(timeout_s):
            await gone.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it led none, or only itself is left
            os.killpg(pid, signal.SIGKILL)  # before it is reaped: nobody else can have its number yet
        os.waitpid(pid, 0)
    except TimeoutError:
        return False
    except ChildProcessError:
        pass  # someone in this process reaps every child; it has ended either way
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    return True
