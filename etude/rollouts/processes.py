"""Processes of this machine: which one it is, whether it wants to compute, and its end.

Owns `Identity`: a number alone may soon be another process's. Uses no Ray, so that the supervisor can.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import NamedTuple

import psutil


class Identity(NamedTuple):
    """One process among all that ever were."""

    host: str
    pid: int
    born: float


def own_identity() -> Identity:
    """Of the process that asks."""
    return Identity(socket.gethostname(), os.getpid(), psutil.Process().create_time())


def kill(identity: Identity) -> None:
    """End it, also when it is stopped, if it is on this machine and still there."""
    if identity.host != socket.gethostname():
        return
    try:
        process = psutil.Process(identity.pid)
        if process.create_time() == identity.born:
            process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return


def runnable(pid: int) -> bool:
    """Whether a thread of a process of this machine wants to compute at this moment, or does."""
    try:
        states = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False  # it has ended
    return any(state.rpartition(") ")[2].startswith("R") for state in states)
