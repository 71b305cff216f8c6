"""Runs one command and waits for all that it starts, also what runs on behind `&`, `setsid` or a `trap`. Alone in a
sandbox, without Etude.

Owns `run`. This process takes in whoever loses a parent (PR_SET_CHILD_SUBREAPER), so that nothing a line left running
is missed, or outlives it and is taken for the next line's. Who computes has `CPU_S` of the processors, who waits
`WALL_S`: a machine that is busy cuts nobody short, and an endless loop does not hold up the rest.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from typing import Any

WALL_S, CPU_S = 20.0, 2.0
_LOOK_S = 0.25
_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")


def adopt() -> int:
    """Take in what loses its parent; the descriptor that can be read when a child has ended."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel has no subreapers")
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def run(bell: int, words: list[str], **options: Any) -> tuple[int | None, bool]:
    """The status of a command, None where it was not started or had to be ended, and whether all of it ended by itself.
    `bell` is what `adopt` gave."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(words, start_new_session=True, **quiet, **options)
    except (ValueError, OSError):
        return None, True
    status, began, left = None, time.monotonic(), True
    while True:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == process.pid:
                    status = os.waitstatus_to_exitcode(ended[1])
            if time.monotonic() - began < WALL_S and _burnt() < CPU_S:
                select.select([bell], [], [], _LOOK_S)
                with contextlib.suppress(BlockingIOError):
                    os.read(bell, 4096)
                continue
            left = False
        break
    process.returncode = status if status is not None else -signal.SIGKILL  # waited for above
    _end_all()
    return status, left


def _end_all() -> None:
    """What is ended leaves its children to us, and so on."""
    while True:
        parents = _parents()
        for pid in [pid for pid, (parent, _) in parents.items() if parent == os.getpid()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _burnt() -> float:
    """Seconds of the processors that all below this process have had, with the children they waited for."""
    parents, below, ticks = _parents(), {os.getpid()}, 0
    while more := {pid for pid, (parent, _) in parents.items() if parent in below} - below:
        ticks += sum(parents[pid][1] for pid in more)
        below |= more
    return ticks / _TICKS


def _parents() -> dict[int, tuple[int, int]]:
    """Of each process its parent, and the ticks of it and of the children that it waited for."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            found[int(name)] = int(fields[1]), sum(map(int, fields[11:15]))
    return found
