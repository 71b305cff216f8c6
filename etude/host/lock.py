"""A file that one process at a time has, for as long as it lives.

Owns `hold`. Who is killed while it starts another process leaves its lock to that child, until the child has become its
program: it has every open file for that moment, which on a busy machine is long. Such a leftover is waited for; a
process that lives is not.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

CHILD_S = 10.0
"""How long a child of a killed process may take to become its program."""


def hold(handle: int) -> None:
    """Lock the open file until it is closed. Raises BlockingIOError, which says who has it, where another process does;
    blocks while the last one's child does."""
    end = time.monotonic() + CHILD_S
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if (holder := _holder(handle)) is not None:
                raise BlockingIOError(error.errno, f"process {holder}") from None
            if time.monotonic() > end:
                why = f"no process that is seen here, or a killed one's child, for {CHILD_S:.0f} s"
                raise BlockingIOError(error.errno, why) from None
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
