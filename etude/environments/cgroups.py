"""Limits on memory, processes and CPU through control groups, version 1 or 2, whichever the machine has.

Owns the groups `etude/<instance>/<sandbox>` below the group the controlling process runs in (so outer limits go on
holding), their limits and their removal. A launcher joins a group itself, by writing to the files `Group.join` names.
Raises at once when no group can be written: running without limits is a choice of the config, never a fallback.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etude.environments.base import Resources
from etude.environments.freezer import Freezer
from etude.errors import DeadlineExceeded, MissingDependency

_CONTROLLERS = ("memory", "pids", "cpu")
_FREEZER = "freezer"
"""Of version 1 also this one, where it can be written; version 2 freezes without one."""
_PERIOD_US = 100_000
_ROOT = "etude"
_LEAF = "etude-controller"
_REMOVE_DEADLINE_S = 5.0
_RIVALS = 1000
_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}
ADVICE = (
    "run as root, or inside `systemd-run --user --scope -p Delegate=yes -- COMMAND` (cgroup v2), or accept weaker "
    'per-process limits: limits = "rlimit" in the environment config, --set environment.limits=rlimit, or, with '
    "`etude tasks`, --limits rlimit"
)


@dataclass(frozen=True)
class Mounted:
    """The groups this process is in, and by which version."""

    version: int
    own: dict[str, Path]
    """Controller -> directory of the group this process is in."""


def open_tree(instance: str) -> CgroupTree:
    """The tree for a new backend instance; raises MissingDependency saying what to do when none can be written."""
    found = find()
    try:
        return _V2(found.own["memory"], instance) if found.version == 2 else _V1(found.own, instance)
    except OSError as error:
        remove_group(*instances().get(instance, ()))
        why = f"cgroup v{found.version} limits cannot be set, {error.filename}, {error.strerror}"
        raise MissingDependency(f"{why}: {ADVICE}") from None


def instances() -> dict[str, list[Path]]:
    """This user's backend instances that have groups beside ours, live or dead, with those groups' directories."""
    result: dict[str, list[Path]] = {}
    try:
        found = find()
    except MissingDependency:
        return result
    for own in dict.fromkeys(found.own.values()):
        for directory in _children(_above_leaf(own) / _ROOT):
            if is_own(directory):
                result.setdefault(directory.name, []).append(directory)
    return result


def is_own(directory: Path) -> bool:
    """Whether it is a directory of this user's, and no link to one. Another's is his to remove, and may lie."""
    try:
        info = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()


def remove_group(*directories: Path) -> None:
    """Kill every process of these groups and of their children, then remove them, with a deadline.

    Those of one sandbox or backend belong in one call: under version 1 what is frozen dies only when it is thawed."""
    left = [directory for directory in directories if not _removed(directory)]
    for directory in left:
        for group in (directory, *_children(directory)):
            if (group / "freezer.state").exists():
                Freezer.v1(group).thaw()
    for directory in left:
        _remove(directory)


def _removed(directory: Path) -> bool:
    """Of a group that is empty by now, as nearly all are: to list one costs the kernel far more than to remove it."""
    try:
        os.rmdir(directory)
    except OSError:
        return not directory.is_dir()
    return True


def _children(directory: Path) -> list[Path]:
    try:
        return [child for child in directory.iterdir() if child.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(directory: Path) -> None:
    end = time.monotonic() + _REMOVE_DEADLINE_S
    while directory.is_dir():
        for group in [*_children(directory), directory]:
            try:
                group.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                _kill_members(group)
        if not directory.is_dir():
            return
        if time.monotonic() > end:
            raise DeadlineExceeded(f"the processes of {directory} to end", _REMOVE_DEADLINE_S)
        time.sleep(0.005)


def _kill_members(group: Path) -> None:
    try:
        (group / "cgroup.kill").write_text("1")  # version 2: one write, no race with fork
        return
    except OSError:
        pass  # version 1 has no such file
    try:
        members = (group / "cgroup.procs").read_text().split()
    except FileNotFoundError:
        return
    for member in members:
        if member == "0":
            continue  # of a pid namespace that is not seen from here; to kill, it would mean ourselves
        try:
            os.kill(int(member), signal.SIGKILL)
        except ProcessLookupError:
            continue


def find() -> Mounted:
    """Where the controllers are mounted, and which groups this process is in."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    own = dict(_own_groups())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        root, mount = left.split()[3:5]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            v2 = _below(Path(mount), root, own.get("", "/"))
        elif kind == "cgroup":
            for controller in set(options.split(",")) & {*_CONTROLLERS, _FREEZER}:
                v1[controller] = _below(Path(mount), root, own.get(controller, "/"))
    if v2 is not None and _offers(v2):
        return Mounted(2, dict.fromkeys(_CONTROLLERS, v2))
    if set(v1) >= set(_CONTROLLERS):
        return Mounted(1, v1)
    missing = ", ".join(sorted(set(_CONTROLLERS) - set(v1)))
    raise MissingDependency(f"no cgroup controllers for {missing} are mounted: {ADVICE}")


def _own_groups() -> list[tuple[str, str]]:
    pairs = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        pairs += [(controller, path) for controller in controllers.split(",")]
    return pairs


def _below(mount: Path, root: str, path: str) -> Path:
    """The directory of group `path` under a mount whose top shows group `root` of the hierarchy."""
    inside = os.path.relpath(path, root)
    return mount if inside.startswith("..") else mount / inside


def _offers(directory: Path) -> bool:
    try:
        offered = (_above_leaf(directory) / "cgroup.controllers").read_text().split()
    except OSError:
        return False
    return set(_CONTROLLERS) <= set(offered)


def _above_leaf(directory: Path) -> Path:
    return directory.parent if directory.name == _LEAF else directory


class CgroupTree:
    """The groups of one backend instance, each sandbox a child."""

    version: int
    bases: list[Path]
    """The directories that hold the sandboxes' groups, the one that counts memory first."""
    agents: Path
    """The file the guest agents write `0` to in order to join a group without limits, for all of them."""

    def add(self, name: str, resources: Resources) -> list[Path]:
        """Make a sandbox's group with its limits; returns the files its commands write `0` to in order to join."""
        for base in self.bases:
            (base / name).mkdir(exist_ok=True)
        self._limit(name, resources)
        return [base / name / "cgroup.procs" for base in self.bases]

    def freezer(self, name: str) -> Freezer | None:
        """What stops a sandbox's processes; None where these groups cannot."""
        raise NotImplementedError

    def memory(self, name: str) -> int:
        """Bytes that count against the sandbox's memory limit: its processes, its files in memory, its page cache."""
        return int((self.bases[0] / name / _USED[self.version]).read_text())

    def remove(self, name: str) -> None:
        """Kill what is left in the group and remove it; fine when it does not exist."""
        remove_group(*(base / name for base in self.bases))

    def close(self) -> None:
        """Remove every group of this instance."""
        remove_group(*self.bases)
        for base in self.bases:
            with contextlib.suppress(OSError):  # another backend's groups are there
                base.parent.rmdir()

    def _limit(self, name: str, resources: Resources) -> None:
        raise NotImplementedError


class _V1(CgroupTree):
    """One hierarchy a controller."""

    version = 1

    def __init__(self, own: dict[str, Path], instance: str) -> None:
        usable = [*_CONTROLLERS, *([_FREEZER] if _FREEZER in own and os.access(own[_FREEZER], os.W_OK) else [])]
        self._bases = {controller: own[controller] / _ROOT / instance for controller in usable}
        self.bases = list(self._bases.values())
        for base in self.bases:
            make_below(base)
        self.agents = self._bases["memory"] / "cgroup.procs"

    def _limit(self, name: str, resources: Resources) -> None:
        _write(self._bases["memory"] / name / "memory.limit_in_bytes", resources.memory_mb << 20)
        _write(self._bases["pids"] / name / "pids.max", resources.pids)
        _write(self._bases["cpu"] / name / "cpu.cfs_quota_us", int(resources.cpus * _PERIOD_US))

    def freezer(self, name: str) -> Freezer | None:
        return Freezer.v1(self._bases[_FREEZER] / name) if _FREEZER in self._bases else None


class _V2(CgroupTree):
    """One hierarchy. A group with children may hold no process, so this process first moves into a leaf of its own."""

    version = 2

    def __init__(self, own: Path, instance: str) -> None:
        parent = _above_leaf(own)
        wanted = " ".join(f"+{controller}" for controller in _CONTROLLERS)
        if not set(_CONTROLLERS) <= set((parent / "cgroup.subtree_control").read_text().split()):
            _empty_into_leaf(parent)
            _write(parent / "cgroup.subtree_control", wanted)
        base = parent / _ROOT / instance
        make_below(base, lambda shared: _write(shared / "cgroup.subtree_control", wanted))
        self.bases = [base]
        _write(base / "cgroup.subtree_control", wanted)
        (base / "agents").mkdir()
        self.agents = base / "agents" / "cgroup.procs"

    def _limit(self, name: str, resources: Resources) -> None:
        group = self.bases[0] / name
        _write(group / "memory.max", resources.memory_mb << 20)
        if (group / "memory.swap.max").exists():
            _write(group / "memory.swap.max", 0)
        _write(group / "pids.max", resources.pids)
        _write(group / "cpu.max", f"{int(resources.cpus * _PERIOD_US)} {_PERIOD_US}")

    def freezer(self, name: str) -> Freezer | None:
        found = Freezer.v2(self.bases[0] / name)
        return found if found.switch.exists() else None


def _empty_into_leaf(parent: Path) -> None:
    if not (parent / "cgroup.type").exists():
        return  # the root of the hierarchy may hold both processes and children
    leaf = parent / _LEAF
    leaf.mkdir(exist_ok=True)
    for member in (parent / "cgroup.procs").read_text().split():
        try:
            _write(leaf / "cgroup.procs", member)
        except ProcessLookupError:
            continue


def make_below(directory: Path, prepare: Callable[[Path], object] = lambda shared: None) -> None:
    """Make a directory in one that several processes share and the last one removes: perhaps between our two steps."""
    for _ in range(_RIVALS):
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # both are what a removal in between looks like
            directory.parent.mkdir(parents=True, exist_ok=True)
            prepare(directory.parent)
            directory.mkdir()
            return
    directory.mkdir()  # its error is no rival's


def _write(path: Path, value: int | str) -> None:
    path.write_text(str(value))
