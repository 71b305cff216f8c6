"""How long an archive is kept: whole chunks go, the oldest first, beyond an age or a size.

Owns `Retention` and `remove_old`. A chunk is as old as its last frame. One that is being written stays, and so does
the newest, whatever its size: the numbers of chunks never begin anew. Whoever reads a trajectory that goes meanwhile
is told so; the index forgets it at its next look.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from etude.archive.chunks import chunks, is_written

DAY_S = 86_400.0


@dataclass(frozen=True)
class Retention:
    """What is kept; None: however much, or old."""

    gigabytes: float | None = None
    days: float | None = None


OF_A_RUN = Retention(gigabytes=64.0)
"""What every run keeps to: millions of short trajectories, or thousands of long ones, and no disk is filled unasked."""


@dataclass(frozen=True)
class Removed:
    chunks: int
    bytes: int


def remove_old(directory: Path, retention: Retention, now: float | None = None) -> Removed:
    """Remove what is beyond the bounds, of the archive in `directory`. `now` is in unix seconds."""
    there = chunks(directory)
    sizes: dict[int, os.stat_result] = {}
    for number, path in there.items():
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            sizes[number] = path.stat()
    total, count, freed = sum(found.st_size for found in sizes.values()), 0, 0
    oldest_first = sorted(sizes, key=lambda number: (sizes[number].st_mtime, number))
    before = (time.time() if now is None else now) - (retention.days or 0) * DAY_S
    for number in oldest_first:
        found = sizes[number]
        too_old = retention.days is not None and found.st_mtime < before
        too_much = retention.gigabytes is not None and total > retention.gigabytes * 1e9
        if number == max(sizes) or not (too_old or too_much):
            continue
        with contextlib.suppress(FileNotFoundError):
            if is_written(there[number]):
                continue
            there[number].unlink()
            total, count, freed = total - found.st_size, count + 1, freed + found.st_size
    return Removed(count, freed)
