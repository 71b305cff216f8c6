"""Who sandboxes are on the host: users and groups that own nothing, a range of them for each.

The kernel counts some things by user, in whatever namespace he is: inotify instances, the memory of pipes, descriptors
in flight. With a range to itself no sandbox uses up another's. What lies on disk, layers and snapshots, belongs to no
range: it has the numbers that are seen inside, and a mount of the sandbox's own shows it as the sandbox's. Owns which
ranges are taken. Where the machine cannot do this (`open_uids` finds out) all sandboxes share one range, to which the
files on disk belong too.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections import Counter, deque
from pathlib import Path

from etude.errors import ConfigError, DeadlineExceeded

FIRST_UID = 2_000_000_000
"""By default. Above what systemd, useradd and container engines give away, and below 2**31."""
RANGE = 65_536
RANGES = 2048
SHOWN = "m"
"""The directory below a store at which the store is mounted once more, its owners shown as those of a range."""
_SHARED_FIRST = 60_000  # within what a container's own user namespace usually has
_PROBE_DEADLINE_S = 10.0


class UidPool:
    """The ranges of one backend. More sandboxes than ranges share them, evenly."""

    def __init__(self, first: int, ranges: int, mapped: bool) -> None:
        self._first = first
        self.mapped = mapped
        """Whether a range shows what is on disk as its own. Else files on disk belong to the one range there is."""
        self._free = deque(range(ranges))
        self._free.rotate(secrets.randbelow(ranges))  # other servers of this machine begin elsewhere
        self._taken: Counter[int] = Counter()

    def acquire(self) -> int:
        """The first user of a range, and its first group."""
        number = self._free.popleft() if self._free else min(self._taken, key=self._taken.__getitem__)
        self._taken[number] += 1
        return self._first + number * RANGE

    def release(self, first: int) -> None:
        number = (first - self._first) // RANGE
        self._taken[number] -= 1
        if not self._taken[number]:
            del self._taken[number]
            self._free.append(number)

    def stored(self, owner: tuple[int, int]) -> tuple[int, int]:
        """The numbers that files of this user and group, as seen inside, have on disk."""
        return owner if self.mapped else (self._first + owner[0], self._first + owner[1])

    def shift(self, first: int) -> int:
        """What is taken off the numbers of a range's files when they are kept on disk."""
        return first if self.mapped else 0


def open_uids(program: Path, place: Path, first: int, ranges: int) -> UidPool:
    """As much as this machine can do, tried out in `place`, a store's directory. For root; anyone else is who he is."""
    if first + ranges * RANGE >= 2**32:
        raise ConfigError(f"uid_ranges: {ranges} ranges of {RANGE} users from {first} on are more than there are users")
    if os.geteuid() != 0 or not _exist(first, ranges * RANGE):
        return UidPool(_SHARED_FIRST, 1, mapped=False)
    if ranges == 1 or not _can_show(program, place, first):
        return UidPool(first, 1, mapped=False)
    return UidPool(first, ranges, mapped=True)


def _exist(first: int, count: int) -> bool:
    """Whether these users and groups exist here: in a user namespace some may not."""
    for kind in ("uid", "gid"):
        lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
        maps = [tuple(map(int, line.split())) for line in lines]
        if not any(inside <= first and first + count <= inside + size for inside, _, size in maps):
            return False
    return True


def _can_show(program: Path, place: Path, first: int) -> bool:
    """Whether the file system of `place` and this kernel map owners by mount (tmpfs: since Linux 6.3)."""
    command = [str(program), "maps", str(first), str(place), SHOWN]
    try:
        return subprocess.run(command, capture_output=True, timeout=_PROBE_DEADLINE_S).returncode == 0
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"a mount of {place} to be tried", _PROBE_DEADLINE_S) from None
