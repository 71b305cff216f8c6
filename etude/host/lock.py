"""A file or directory that one process at a time has, or several share, for as long as they live.

Owns `hold`, `handle_of` (a directory to be held) and what asks less: `try_hold`, `wait_for`, `share`, `share_within`
and `is_held`. Nothing else calls flock. Who is killed while it starts another process leaves its lock to that child,
until the child has become its program: it has every open file for that moment, which on a busy machine is long. Such a
leftover is waited for by `hold`; a process that lives is not.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

CHILD_S = 10.0
"""How long a child of a killed process may take to become its program."""


@contextmanager
def handle_of(directory: str | Path) -> Generator[int]:
    """A directory, open to be locked."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def hold(handle: int) -> None:
    """Lock the open file until it is closed. Raises BlockingIOError, which says who has it, where another process does;
    blocks while the last one's child does."""
    end = time.monotonic() + CHILD_S
    while True:
        if try_hold(handle):
            return
        if (holder := _holder(handle)) is not None:
            raise BlockingIOError(errno.EWOULDBLOCK, f"process {holder}")
        if time.monotonic() > end:
            why = f"no process that is seen here, or a killed one's child, for {CHILD_S:.0f} s"
            raise BlockingIOError(errno.EWOULDBLOCK, why)
        time.sleep(0.01)


def try_hold(handle: int) -> bool:
    """Lock the open file until it is closed, unless somebody has it or a share of it now."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for(handle: int, patience_s: float) -> bool:
    """The same, tried for so long: whoever has it is about to end."""
    end = time.monotonic() + patience_s
    while not (held := try_hold(handle)) and time.monotonic() < end:
        time.sleep(0.1)
    return held


def is_held(handle: int) -> bool:
    """Whether another process has the open file now. Who asks has a share of it for that moment, which whoever waits
    for the file outlasts."""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(handle, fcntl.LOCK_UN)
    return False


def share(handle: int) -> None:
    """Have the open file together with others who share it, until it is closed; waits for one who holds it."""
    fcntl.flock(handle, fcntl.LOCK_SH)


def share_within(handle: int, patience_s: float) -> bool:
    """The same, tried for so long. Whoever shares it already goes on doing so."""
    end = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)


def _holder(handle: int) -> int | None:
    """The living process that locked the file; None where it lives no more, or is not seen from here."""
    inode = str(os.fstat(handle).st_ino)
    for line in Path("/proc/locks").read_text().splitlines():
        _, kind, *_, process, place, _, _ = line.split()
        if kind == "FLOCK" and place.rpartition(":")[2] == inode and _lives(process):
            return int(process)
    return None


def _lives(process: str) -> bool:
    try:
        stat = Path("/proc", process, "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
