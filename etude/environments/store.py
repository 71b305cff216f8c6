"""The directories of one namespace backend: task layers and snapshots; and who owns them.

Owns `STATE/INSTANCE/`, where INSTANCE names the process that made it, so that what a killed
process left can be told from what a living one uses and swept. A layer is the files of a task, shared by every sandbox
of that task and kept by content hash; a snapshot is a frozen upper. Both are counted and removed when unused.

    l/HASH  layers    s/N  snapshots    b/N.log  what sandbox N said when starting
    skeleton  what sandboxes see as /    m, merged, root, scratch, stage  mount points, used in private mount namespaces
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import structlog

from etude.environments import cgroups
from etude.environments.trees import is_empty, remove_tree
from etude.environments.uids import SHOWN
from etude.errors import ConfigError, DeadlineExceeded, SandboxError
from etude.host.processes import process_start

INSTANCE = re.compile(r"\d+-\d+-[0-9a-f]{8}-\d+-\d+")
_GROUPS = "groups"
_instances = itertools.count()


def default_state_dir() -> Path:
    """Memory-backed, so sandboxes cost no disk writes and what one writes counts against its own memory limit."""
    return Path(f"/dev/shm/etude-{os.geteuid()}")


def new_instance() -> str:
    """A name that says which process made it: pid, start time, boot, pid namespace, and a count."""
    return f"{_this_process()}-{next(_instances)}"


def owner_is_this_process(instance: str) -> bool:
    return instance.rpartition("-")[0] == _this_process()


def owner_is_alive(instance: str) -> bool:
    """Whether the process that made this instance may still be there: the same one, not a reuse of its number.

    A process of another pid namespace (a container that shares our /dev/shm) cannot be seen, so counts as living.
    """
    pid, start, boot, namespace, _ = instance.split("-")
    _, _, our_boot, our_namespace = _this_process().split("-")
    if boot != our_boot:
        return False
    return namespace != our_namespace or process_start(pid) == start


def instances(state_dir: Path) -> list[str]:
    """Every instance with a directory in `state_dir`, living or not. Anything else there is not ours, nor is anything
    in a directory of another user's."""
    names = [path.name for path in state_dir.iterdir()] if cgroups.is_own(state_dir) else []
    return sorted(name for name in names if INSTANCE.fullmatch(name))


def sweep(state_dir: Path) -> list[str]:
    """Remove the processes, groups and directories of this user's dead owners; returns the instances removed.

    What cannot be removed now, for a sick disk holds a process say, is left to the next sweep: it stops nobody."""
    groups, removed = groups_by_instance(state_dir), []
    for name in sorted(name for name in {*instances(state_dir), *groups} if not owner_is_alive(name)):
        try:
            cgroups.remove_group(*groups.get(name, ()))
            remove_tree(state_dir / name)
            removed.append(name)
        except (DeadlineExceeded, OSError) as error:
            structlog.get_logger("environments").warning("left over", instance=name, why=str(error))
    return removed


def sweep_of(config: Any) -> None:
    """The same of a backend whose config names its `state_dir`."""
    sweep(config.state_dir or default_state_dir())


def groups_by_instance(state_dir: Path) -> dict[str, list[Path]]:
    """This user's control groups that exist: beside ours, and those an instance noted for its process was elsewhere."""
    found = {name: set(paths) for name, paths in cgroups.instances().items() if INSTANCE.fullmatch(name)}
    for name in instances(state_dir):
        with contextlib.suppress(FileNotFoundError):
            noted = (Path(line) for line in (state_dir / name / _GROUPS).read_text().splitlines())
            found.setdefault(name, set()).update(path for path in noted if path.name == name and cgroups.is_own(path))
    return {name: sorted(paths) for name, paths in found.items() if paths}


def _this_process() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    # also of the time namespace: the start of a process is told by the clock of who asks
    spaces = (Path("/proc/self/ns", name) for name in ("pid", "time"))
    namespace = sum(path.stat().st_ino for path in spaces if path.exists())
    return f"{os.getpid()}-{process_start('self')}-{boot}-{namespace}"


@dataclass(frozen=True)
class Disk:
    """What one sandbox's overlay stands on, highest layer first, relative to the store's root."""

    number: int
    lowers: tuple[str, ...]


_LONGEST_NAME, _LONGEST_PATH = 255, 3_500
"""Bytes."""


def workspace_paths(files: Iterable[str]) -> dict[str, PurePosixPath]:
    """The names of a task's files as paths. Raises ConfigError for one that cannot be, or not below the workspace."""
    inside = {path: PurePosixPath(path) for path in files}
    for path, parts in inside.items():
        if parts.is_absolute() or ".." in parts.parts or parts == PurePosixPath("."):
            raise ConfigError(f"files: {path!r} must be a path below the workspace, without '..'")
        if "\0" in path or not _can_be(path):
            raise ConfigError(f"files: {path[:200]!r} is a name that no file can have")
    known = {parts: path for path, parts in inside.items()}
    for path, parts in inside.items():
        if (other := known[parts]) != path:
            raise ConfigError(f"files: {path!r} and {other!r} are one file")
        if above := next((known[above] for above in parts.parents if above in known), None):
            raise ConfigError(f"files: {above!r} is a file, and {path!r} needs it to be a directory")
    return inside


def _can_be(path: str) -> bool:
    """Whether a kernel takes it, below a directory of ours whose name is not short."""
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return len(name) <= _LONGEST_PATH and all(len(part) <= _LONGEST_NAME for part in name.split(b"/"))


class InstanceDirectory:
    """The directory of one backend, named after the process that made it, with these directories in it."""

    def __init__(self, state_dir: Path, directories: Iterable[str]) -> None:
        self.instance = new_instance()
        self._made = not state_dir.exists()
        self.root = state_dir / self.instance
        try:
            cgroups.make_below(self.root, _check_state_dir)
            self.root.chmod(0o711)
            for name in directories:
                (self.root / name).mkdir()
                (self.root / name).chmod(0o711)
        except OSError as error:
            remove_tree(self.root)
            raise ConfigError(
                f"state_dir: cannot make {self.root}: {error.strerror}; make room there, or name another directory"
            ) from None

    def note_groups(self, groups: Iterable[Path]) -> None:
        """Write down which control groups belong to this instance, for whoever may have to sweep it."""
        (self.root / _GROUPS).write_text("".join(f"{path}\n" for path in groups))

    def close(self) -> None:
        remove_tree(self.root)
        if self._made:
            with contextlib.suppress(OSError):  # others use it too
                self.root.parent.rmdir()


class LayerStore(InstanceDirectory):
    """A namespace backend's place, used from one thread. Copying and removing trees is left to the caller."""

    def __init__(self, state_dir: Path, cached_layers: int) -> None:
        super().__init__(state_dir, ("l", "s", "b", "skeleton", SHOWN, "merged", "root", "scratch", "stage"))
        for name in "ls":
            (self.root / name).chmod(0o700)  # root's own files of a sandbox may lie there, and run as root's
        self._cached_layers = cached_layers
        self._users: Counter[str] = Counter()
        self._layers: dict[str, None] = {}  # in order of last use
        self._numbers = itertools.count(1)

    def acquire(self, files: Mapping[str, bytes], below: tuple[str, ...], owner: tuple[int, int]) -> Disk:
        """What a new sandbox stands on: the layer of `files`, which belong to `owner`, over the lowers `below`."""
        lowers = (self._layer(files, owner), *below) if files or not below else below
        self._users.update(lowers)
        return Disk(next(self._numbers), lowers)

    def log(self, disk: Disk) -> Path:
        return self.root / "b" / f"{disk.number}.log"

    def retain(self, disk: Disk, upper: Path) -> tuple[str, ...]:
        """The lowers of a snapshot of this sandbox, counted as used.

        Where the sandbox has changed something, the first is new: the caller copies the sandbox's upper there.
        """
        lowers = disk.lowers if is_empty(upper) else (f"s/{next(self._numbers)}", *disk.lowers)
        self._users.update(lowers)
        return lowers

    def release(self, lowers: Iterable[str]) -> list[Path]:
        """One user of these lowers less; returns the snapshots nobody uses any more, for the caller to remove."""
        unused = []
        for name in lowers:
            self._users[name] -= 1
            if self._users[name] <= 0:
                del self._users[name]
                if name.startswith("s/"):
                    unused.append(self.root / name)
        return unused

    def _layer(self, files: Mapping[str, bytes], owner: tuple[int, int]) -> str:
        digest = hashlib.sha256(f"{owner} ".encode())
        for path in sorted(files):
            name = path.encode(errors="surrogatepass")
            digest.update(b"%d %b %d " % (len(name), name, len(files[path])) + files[path])
        name = f"l/{digest.hexdigest()[:24]}"
        if name not in self._layers:
            self._write_layer(self.root / name, files, owner)
        self._layers.pop(name, None)
        self._layers[name] = None
        for old in list(self._layers)[: max(len(self._layers) - self._cached_layers, 0)]:
            if not self._users[old] and old != name:
                del self._layers[old]
                remove_tree(self.root / old)
        return name

    def _write_layer(self, root: Path, files: Mapping[str, bytes], owner: tuple[int, int]) -> None:
        inside = workspace_paths(files)
        root.mkdir()
        made = {root}
        try:
            for path, content in files.items():
                target = root / inside[path]
                target.parent.mkdir(parents=True, exist_ok=True)
                made.update(parent for parent in target.parents if parent.is_relative_to(root))
                target.write_bytes(content)
                _give(target, 0o644, owner)
        except OSError as error:
            remove_tree(root)
            raise SandboxError(f"cannot write the files of a task to {root}: {error}") from error
        for directory in made:
            _give(directory, 0o755, owner)


def _give(path: Path, mode: int, owner: tuple[int, int]) -> None:
    os.chmod(path, mode)
    if os.geteuid() == 0:
        os.chown(path, *owner)


def _check_state_dir(state_dir: Path) -> None:
    if not cgroups.is_own(state_dir) and state_dir.exists():
        raise ConfigError(f"state_dir: {state_dir} is not a directory of this user; name another")
    state_dir.chmod(0o711)
