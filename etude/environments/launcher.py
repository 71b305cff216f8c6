"""How one namespace sandbox is started: the command line of the native launcher, bubblewrap and the guest.

Owns the list of what is visible, what is unshared and what is dropped; nearly all of it is the same for every sandbox
of a backend and is put together once.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from etude.environments.base import WORKSPACE, Resources
from etude.environments.child import spawn
from etude.environments.egress import gate
from etude.environments.roots import Root
from etude.environments.toolchain import ENVIRONMENT, HOME, SANDBOX_UID, Toolchain, build_skeleton
from etude.environments.uids import SHOWN, UidPool
from etude.errors import ConfigError, MissingDependency
from etude.host.programs import find_program

_NAMESPACES = ("pid", "net", "ipc", "uts", "cgroup")
_OVERLAY_ROOT = "index=off,volatile,metacopy=off,redirect_dir=off"
_OVERLAY_USER = "index=off,volatile,userxattr"  # which implies the other two, and refuses to hear them
_SHARE = {"/tmp": 2, HOME: 8, "/tests": 8, "/logs": 8, "/dev/shm": 8}
"""Where a command may write beside the workspace: that part of the workspace's size and number of files. Together as
much again, so that full disks leave memory for a command to clear them."""
_TAKEN = (WORKSPACE, "/proc", "/dev", "/guest")
_BYTES_PER_INODE = 4096
_SEEN = "/tmp"  # where the launcher puts the store's directory, in the mount namespace it makes
_SHOW = ("-l", ".", SHOWN)
_GUEST = ("--ro-bind", f"{_SEEN}/stage/guest", "/guest/guest")
_OF_PROCESS_ONE = ("oom_score_adj", "oom_adj", "autogroup")
UPPER = f"{_SEEN}/scratch/upper"
"""What a sandbox has changed in its workspace, seen from the launcher's mount namespace."""
BWRAP_ADVICE = "apt-get install -y bubblewrap (0.8 or later; Fedora: dnf install bubblewrap)"


@dataclass(frozen=True)
class View:
    """What every sandbox of a backend sees beside its workspace."""

    toolchain: Toolchain
    binds: Mapping[str, Path]
    """Further read-only directories: absolute path inside -> host directory."""
    env: Mapping[str, str]


@dataclass(frozen=True)
class Groups:
    """The cgroup.procs files of one sandbox: those its agent joins, and those its commands do."""

    agents: Sequence[Path]
    commands: Sequence[Path]


@dataclass(frozen=True)
class _Binds:
    """Host directories shown inside: the launcher's arguments for them, and bubblewrap's."""

    stages: list[str]
    visible: list[str]


class Launcher:
    """Starts sandboxes below `root`, a store's directory; when we are root, as users of the ranges of `uids`."""

    def __init__(self, program: Path, root: Path, uids: UidPool, view: View) -> None:
        self._bwrap, self._directory, self._uids, self._view = find_bwrap(), root, uids, view
        tools, added = list(view.toolchain.binds), _check_binds(view.binds)
        build_skeleton(root / "skeleton", [inside for _, inside in (*tools, *added)])
        (root / "stage" / "guest").touch()
        for number in range(len(_SHARE)):
            (root / "stage" / f"tmpfs-{number}").mkdir()
        self._guest = ["-b", str(program), "stage/guest"]
        self._added = self._stage(added, 0)
        covered = [bind for bind in tools if any(bind[1].startswith(f"{place}/") for place in _SHARE)]
        self._covered = self._stage(covered, len(added))
        shown = (("skeleton", ""), (program, "/guest/guest"), *(bind for bind in tools if bind not in covered))
        self._host = [part for source, inside in shown for part in ("-b", str(source), f"skeleton{inside}")]
        self._isolation = _isolation()
        self._overlay = _OVERLAY_ROOT if os.geteuid() == 0 else _OVERLAY_USER
        self._start = [str(program), "launch", str(os.getpid())]

    def spawn(
        self,
        name: str,
        lowers: Sequence[str],
        resources: Resources,
        groups: Groups | None,
        control: socket.socket,
        log: Path,
        first: int,
        root: Root | None = None,
        egress: bool = False,
    ) -> int:
        """Start a sandbox; returns the launcher's process id. `control` becomes the guest's end of the channel.

        `name` is seen by `ps` on the host and by `leftovers`; `first` begins its range of users. Without `groups` the
        limits are per process. The sandbox dies with the calling thread. With `egress` a listening socket comes first
        through `control`: see egress.gate.
        """
        disk = resources.disk_mb << 20
        owner = _owner(first, root)
        argv = [*self._start, *map(str, owner), str(self._directory)]
        argv.append(_tmpfs(disk, 0o711))
        shown = [*_SHOW] if self._uids.mapped and lowers else []
        lowers = [f"{SHOWN}/{name}" for name in lowers] if shown else lowers
        lowers = root.lowers(lowers) if root else lowers
        argv.append(f"lowerdir={':'.join(lowers)},upperdir=scratch/upper,workdir=scratch/work,{self._overlay}")
        limits = [0, 0, 0]
        if groups is None:
            limits = [resources.memory_mb << 20, resources.pids, 0]
        else:
            argv += [argument for path in groups.agents for argument in ("-c", str(path))]
            argv += [argument for path in groups.commands for argument in ("-j", str(path))]
            limits = [0, 0, len(groups.commands)]
        ways = gate.VARIABLES if egress else {}
        if root is None:
            argv += self._on_host(disk, owner, ["-u", str(first), *shown] if shown else [], ways)
        else:
            argv += self._on_image(root, disk, owner, root.launch(self._directory, first, shown), ways)
        argv += ["/guest/guest", "serve", *map(str, limits), name, *([str(gate.PORT)] if egress else [])]
        with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as said:
            return spawn(argv, [control.fileno()], said.fileno())

    def _on_host(self, disk: int, owner: tuple[int, int], users: list[str], ways: Mapping[str, str]) -> list[str]:
        """What is seen of the host, and the workspace; and the variables that tell of the ways out."""
        user = ["--unshare-user", "--disable-userns", "--uid", str(SANDBOX_UID), "--gid", str(SANDBOX_UID)]
        writable = _writable(disk, owner, "skeleton")
        argv = [*self._host, *self._added.stages, *self._covered.stages, *writable.stages, *users]
        argv += ["--", self._bwrap, *self._isolation, *user]
        argv += ["--bind", f"{_SEEN}/skeleton", "/", *proc(), "--dev", "/dev", *writable.visible]
        argv += [*self._covered.visible, *self._added.visible, "--bind", f"{_SEEN}/merged", WORKSPACE]
        env = {**ENVIRONMENT, "PATH": self._view.toolchain.path, **ways, **self._view.env}
        return [*argv, *_enter(WORKSPACE, env)]

    def _on_image(
        self, root: Root, disk: int, owner: tuple[int, int], users: list[str], ways: Mapping[str, str]
    ) -> list[str]:
        """The image in place of the host; a build writes all of it, an agent the workspace."""
        writable = _writable(disk, owner)
        argv = ["-n", root.mounts, *self._guest, *self._added.stages]
        argv += [*([] if root.building else writable.stages), *users]
        argv += ["--", self._bwrap, *self._isolation, *root.isolation]
        if root.building:
            argv += ["--bind", f"{_SEEN}/merged", "/", *proc(), "--dev", "/dev"]
            argv += ["--size", str(disk // 8), "--tmpfs", "/dev/shm", *_GUEST]
            return [*argv, *_enter("/", {**ways, **root.variables})]
        argv += ["--ro-bind", f"{_SEEN}/root", "/", *proc(), "--dev", "/dev", *writable.visible]
        argv += [*self._added.visible, *_GUEST]
        for place in dict.fromkeys((root.workspace, WORKSPACE)):
            argv += ["--bind", f"{_SEEN}/merged", place]
        return [*argv, *_enter(WORKSPACE, {**root.variables, **ways, **self._view.env})]

    def _stage(self, binds: Sequence[tuple[Path, str]], first: int) -> _Binds:
        """Those that lie in a tmpfs, or that callers have added, are shown when all else is there."""
        stages, visible = [], []
        for number, (source, inside) in enumerate(binds, first):
            (self._directory / "stage" / str(number)).mkdir()
            stages += ["-b", str(source), f"stage/{number}"]
            visible += ["--ro-bind", f"{_SEEN}/stage/{number}", inside]
        return _Binds(stages, visible)


def proc() -> list[str]:
    """bubblewrap's arguments for a /proc in which nobody, root of an image included, gives process 1 a worse place."""
    names = [name for name in _OF_PROCESS_ONE if Path(f"/proc/self/{name}").exists()]
    covered = [part for name in names for part in ("--ro-bind", "/dev/null", f"/proc/1/{name}")]
    return ["--proc", "/proc", *covered, "--tmpfs", "/proc/1/task", "--remount-ro", "/proc/1/task"]


def find_bwrap(*workspaces: Path) -> str:
    """The path of a bubblewrap new enough to size a tmpfs and to forbid further user namespaces; of one that lies in no
    workspace."""
    bwrap, _ = find_program("bwrap", workspaces)
    if bwrap is None:
        raise MissingDependency(f"bubblewrap is not installed: {BWRAP_ADVICE}")
    said = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=10).stdout.strip()
    version = tuple(int(part) for part in said.rpartition(" ")[2].split(".")[:2] if part.isdigit())
    if version < (0, 8):
        raise MissingDependency(f"{bwrap} is {said or 'of unknown version'}, too old: {BWRAP_ADVICE}")
    return bwrap


def _isolation() -> list[str]:
    arguments = [f"--unshare-{name}" for name in _NAMESPACES]
    arguments += ["--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    return [*arguments, "--hostname", "sandbox", "--clearenv"]


def _enter(directory: str, env: Mapping[str, str]) -> list[str]:
    arguments = ["--remount-ro", "/dev", "--chdir", directory]
    for name, value in env.items():
        arguments += ["--setenv", name, value]
    return arguments


def _owner(first: int, root: Root | None) -> tuple[int, int]:
    """The host's user and group whose the sandbox's files are."""
    if os.geteuid() != 0:
        return os.getuid(), os.getgid()
    uid, gid = root.owner if root else (SANDBOX_UID, SANDBOX_UID)
    return first + uid, first + gid


def _tmpfs(size: int, mode: int) -> str:
    """Sized in bytes and in files: an inode takes a kilobyte of the kernel's memory, which counts as the sandbox's."""
    return f"size={size},nr_inodes={size // _BYTES_PER_INODE},mode={mode:o}"


def _writable(disk: int, owner: tuple[int, int], within: str = "") -> _Binds:
    """Mounted at once `within` the directory that becomes the root, but for what lies in a /dev that is made later."""
    stages, visible = [], []
    for number, (place, share) in enumerate(_SHARE.items()):
        options = _tmpfs(disk // share, 0o1777 if place == "/tmp" else 0o755)
        stage = f"{within}{place}" if within and not place.startswith("/dev/") else f"stage/tmpfs-{number}"
        stages += ["-t", f"{options},uid={owner[0]},gid={owner[1]}", stage]
        if stage != f"{within}{place}":
            visible += ["--bind", f"{_SEEN}/{stage}", place]
    return _Binds(stages, visible)


def _check_binds(wanted: Mapping[str, Path]) -> list[tuple[Path, str]]:
    binds = []
    for inside, source in wanted.items():
        parts = PurePosixPath(inside).parts
        if len(parts) < 2 or parts[0] != "/" or ".." in parts or f"/{parts[1]}" in _TAKEN:
            raise ConfigError(f"binds: {inside!r} must be an absolute path, outside {', '.join(_TAKEN)}")
        if not source.is_dir():
            raise ConfigError(f"binds: {source}, to be seen as {inside}, is not a directory of this machine")
        binds.append((source.resolve(), inside))
    return binds
