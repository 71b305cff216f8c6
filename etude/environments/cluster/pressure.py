"""How hard this machine works, and what it has to give: read from control groups, /proc/pressure and /proc.

Owns the reading, and what takes the place of a figure the kernel does not give. Decides nothing: what is too much is
the scheduler's to say.

  memory  the part of the machine's that is not available (MemAvailable), or of the limit of the control group this
          process runs in, file cache that can be dropped left out: whichever is fuller
  cpu     processors busy since the last reading, over those given to sandboxes
  disk    the part in use of the file system that sandboxes are kept on
  PSI     avg10 of /proc/pressure, in percent

Where a kernel has no PSI (built without it, or started with psi=0), `cpu_some` is the part of the runnable threads that
have no processor at the moment of reading, and `io_some` the part of the processors' time spent idle for want of a
disk. The others are 0: a full memory is then noticed by its share alone, and a slow disk not at all.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from etude.environments import cgroups
from etude.environments.accounts import psi
from etude.environments.base import Resources
from etude.environments.scheduling.messages import Pressure
from etude.errors import MissingDependency

_PROC = Path("/proc")
_MEMORY_FILES = {
    1: ("memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"),
    2: ("memory.current", "memory.max", "inactive_file"),
}
"""By version of control groups: what is used, what may be, and the line of memory.stat of what can be dropped."""
_UNLIMITED = 1 << 60
"""Version 1 has no word for it, only a number no machine has."""


def capacity(directory: Path) -> Resources:
    """All that this machine, or the control group this process runs in, has; disk is that of `directory`'s."""
    total, _ = _memory(_PROC)
    group = memory_in_use()
    if group is not None:
        total = min(total, group[1])
    disk = shutil.disk_usage(_existing(directory)).total
    return Resources(total >> 20, 0, float(len(os.sched_getaffinity(0))), disk >> 20)


class Gauge:
    """Reads pressure again and again. `cpus` are those given to sandboxes, `directory` is where they are kept."""

    def __init__(self, directory: Path, cpus: float, proc: Path = _PROC) -> None:
        self._directory, self._cpus, self._proc = directory, cpus, proc
        self._processors = os.cpu_count() or 1
        self._before = self._times()

    def read(self) -> Pressure:
        """How things stand. The share of CPU is that since the last reading."""
        busy, io_wait = self._since()
        cpu, memory, io = (psi(resource, self._proc) for resource in ("cpu", "memory", "io"))
        disk = shutil.disk_usage(_existing(self._directory))
        return Pressure(
            cpu=busy * self._processors / self._cpus,
            memory=self._memory_share(),
            disk=disk.used / max(1, disk.total),
            cpu_some=cpu["some"] if cpu else self._without_processor(),
            memory_some=memory.get("some", 0.0),
            memory_full=memory.get("full", 0.0),
            io_some=io["some"] if io else 100 * io_wait,
            io_full=io.get("full", 0.0),
        )

    def _memory_share(self) -> float:
        total, available = _memory(self._proc)
        shares = [1 - available / total]
        group = memory_in_use()
        if group is not None:
            shares.append(group[0] / group[1])
        return max(shares)

    def _times(self) -> tuple[int, int, int]:
        """Ticks of all processors together since boot: all, those of work, and those idle with a read under way."""
        fields = (self._proc / "stat").read_text().partition("\n")[0].split()[1:9]
        ticks = [int(field) for field in fields]  # user nice system idle iowait irq softirq steal
        idle, io_wait = ticks[3], ticks[4]
        return sum(ticks), sum(ticks) - idle - io_wait, io_wait

    def _since(self) -> tuple[float, float]:
        now, before = self._times(), self._before
        self._before = now
        passed = max(1, now[0] - before[0])
        return (now[1] - before[1]) / passed, max(0, now[2] - before[2]) / passed

    def _without_processor(self) -> float:
        running = int((self._proc / "loadavg").read_text().split()[3].partition("/")[0])
        return 100 * max(0, running - self._processors) / max(1, running)


def memory_in_use() -> tuple[int, int] | None:
    """Bytes in use, without what can be dropped, and the limit, of the group this process runs in or of one above it,
    whichever is fuller; None where there is no limit or no group."""
    try:
        found = cgroups.find()
    except MissingDependency:
        return None
    current, limit, cache = _MEMORY_FILES[found.version]
    fullest: tuple[int, int] | None = None
    for group in (found.own["memory"], *found.own["memory"].parents):
        try:
            most = (group / limit).read_text().strip()
            used = int((group / current).read_text()) - _stat(group / "memory.stat", cache)
        except (OSError, ValueError):
            break  # above the top of the hierarchy
        if most == "max" or not 0 < int(most) < _UNLIMITED:
            continue
        if fullest is None or used * fullest[1] > fullest[0] * int(most):
            fullest = max(0, used), int(most)
    return fullest


def _stat(path: Path, name: str) -> int:
    lines = (line.split() for line in path.read_text().splitlines())
    return next((int(value) for key, value in lines if key == name), 0)


def _memory(proc: Path) -> tuple[int, int]:
    """Bytes in all, and bytes that can be had without swapping."""
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    kib = {name: int(value) for name, value, *_ in lines}
    return kib["MemTotal:"] << 10, kib["MemAvailable:"] << 10


def _existing(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    return next(each for each in (path, *path.parents) if each.exists())
