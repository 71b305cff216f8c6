"""Runs lines in shells and says which of them opened what is watched. Alone in a sandbox, without Etude.

    python runner.py PLAN    # {"lines": […], "watched": […], "directory": …, "home": …}

The kernel says who opened (inotify), by inode: another name, a link or a mount make no difference. After every line
the events are taken, so that an open belongs to the line, or to one before it that left something running.
"""

import contextlib
import ctypes
import json
import os
import signal
import struct
import subprocess
import sys

IN_OPEN, IN_NONBLOCK, IN_CLOEXEC = 0x20, os.O_NONBLOCK, os.O_CLOEXEC
LINE_S = 2.0


def main() -> None:
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    library = ctypes.CDLL(None, use_errno=True)
    events = library.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
    names = {}
    for path in plan["watched"]:
        watch = library.inotify_add_watch(events, os.fsencode(path), IN_OPEN)
        if watch < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        names[watch] = path
    os.chdir(plan["directory"])
    opened(events)
    os.close(os.open(plan["watched"][0], os.O_RDONLY))
    assert plan["watched"][0] in {names[watch] for watch in opened(events)}  # that an open is seen at all
    hits = []
    for number, line in enumerate(plan["lines"]):
        for shell in ("dash", "bash"):
            run(shell, line)
            if watches := opened(events):
                hits.append((number, shell, sorted(names[watch] for watch in watches)))
    print("\n" + json.dumps({"hits": hits, "ran": len(plan["lines"])}))


def run(shell: str, line: str) -> None:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen([shell, "-c", line], start_new_session=True, **quiet)
    except (ValueError, OSError):
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(LINE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def opened(events: int) -> set[int]:
    """The watches of the files that were opened since the last call."""
    found, at = set(), 0
    with contextlib.suppress(BlockingIOError):
        told = os.read(events, 1 << 16)
        while at < len(told):
            watch, _, _, length = struct.unpack_from("iIII", told, at)
            found.add(watch)
            at += 16 + length
    return found


main()
