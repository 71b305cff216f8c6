"""A process that we start: how it is started, and how its end is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Mapping, Sequence

FIRST_FD = 3
"""What a process is given is open in it from this descriptor on."""


def spawn(
    argv: list[str], fds: Sequence[int], log: int, *, line: int | None = None, env: Mapping[str, str] | None = None
) -> int:
    """Start a program, with no environment but `env`, which gets `fds` from FIRST_FD on; what it says goes to `log`.
    With a `line`, it reads from that and writes to it, and only its errors go to `log`. Returns its id.

    By posix_spawn, which does not copy this process's page tables: a trainer of many gigabytes starts one as fast as a
    small script does. In a process group of its own: Ctrl-C at the terminal is for us, who then end it.
    """
    # first out of the way of the numbers they shall have
    streams = (log,) if line is None else (log, line)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD + len(fds)) for fd in (*fds, *streams)]
    try:
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high[: len(fds)], FIRST_FD)
        ]
        if line is None:
            actions.append((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0))
        else:
            actions.append((os.POSIX_SPAWN_DUP2, high[-1], 0))
        actions += [(os.POSIX_SPAWN_DUP2, high[-1], 1), (os.POSIX_SPAWN_DUP2, high[len(fds)], 2)]
        defaults = [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE]
        return os.posix_spawn(
            argv[0], argv, dict(env or {}), file_actions=actions, setpgroup=0, setsigmask=[], setsigdef=defaults
        )
    finally:
        for fd in high:
            os.close(fd)


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
