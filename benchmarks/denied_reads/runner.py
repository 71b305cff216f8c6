"""Runs lines in shells and says which of them opened what is watched. Alone in a sandbox, without Etude.

    python runner.py PLAN    # {"lines": […], "watched": […], "directory": …}

The kernel says who opened (inotify), by inode: another name, a link or a mount make no difference. The events are taken
when all that a line started has ended (`leash`), so that an open belongs to the line. Lines that had to be ended, and
those that ended in "command not found" (127), are told too: they show less than the others.
"""

import contextlib
import ctypes
import json
import os
import struct
import sys

import leash

IN_OPEN, IN_NONBLOCK, IN_CLOEXEC = 0x20, os.O_NONBLOCK, os.O_CLOEXEC
SHELLS = ("dash", "bash")
NOT_FOUND = 127


def main() -> None:
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    library = ctypes.CDLL(None, use_errno=True)
    events = library.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
    watches = Watches(library, events, plan["watched"])
    os.chdir(plan["directory"])
    os.close(os.open(plan["watched"][0], os.O_RDONLY))
    assert plan["watched"][0] in watches.opened()  # that an open is seen at all
    bell = leash.adopt()
    hits, timed_out, not_found = [], [], []
    for number, line in enumerate(plan["lines"]):
        for shell in SHELLS:
            watches.renew()
            status, ended = leash.run(bell, [shell, "-c", line])
            if opened := watches.opened():
                hits.append((number, shell, sorted(opened)))
            if not ended:
                timed_out.append((number, shell))
            if status == NOT_FOUND:
                not_found.append((number, shell))
    print("\n" + json.dumps({"hits": hits, "timed_out": timed_out, "not_found": not_found}))


class Watches:
    """Files that are watched, by path: a line may put another file in the place of one."""

    def __init__(self, library: ctypes.CDLL, events: int, paths: list[str]) -> None:
        self._library, self._events, self._paths = library, events, paths
        self._names: dict[int, str] = {}
        self.renew()
        if missing := set(paths) - set(self._names.values()):
            raise OSError(f"these cannot be watched: {', '.join(sorted(missing))}")

    def renew(self) -> None:
        for path in self._paths:
            if (watch := self._library.inotify_add_watch(self._events, os.fsencode(path), IN_OPEN)) >= 0:
                self._names[watch] = path

    def opened(self) -> set[str]:
        """What was opened since the last call."""
        found = set()
        with contextlib.suppress(BlockingIOError):
            while told := os.read(self._events, 1 << 16):
                at = 0
                while at < len(told):
                    watch, mask, _, length = struct.unpack_from("iIII", told, at)
                    if mask & IN_OPEN:
                        found.add(self._names[watch])
                    at += 16 + length
        return found


main()
