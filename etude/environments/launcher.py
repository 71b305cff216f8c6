"""How one namespace sandbox is started: the command line of the native launcher, bubblewrap and the guest.

Owns the list of what is visible, what is unshared and what is dropped; nearly all of it is the same for every sandbox
of a backend and is put together once. `spawn` uses posix_spawn, which does not copy the controller's page tables: a
trainer of many gigabytes starts a sandbox as fast as a small script does.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.environments.base import WORKSPACE
from etude.environments.toolchain import HOME, SANDBOX_UID, Toolchain, build_skeleton
from etude.errors import ConfigError, MissingDependency

_NAMESPACES = ("user", "pid", "net", "ipc", "uts", "cgroup")
_OVERLAY = "index=off,metacopy=off,redirect_dir=off,volatile"
_SMALL_TMPFS = (HOME, "/tests", "/logs")
_ENVIRONMENT = {
    "HOME": HOME,
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
}
BWRAP_ADVICE = "apt-get install -y bubblewrap (0.8 or later; Fedora: dnf install bubblewrap)"


@dataclass(frozen=True)
class View:
    """What every sandbox of a backend sees beside its workspace."""

    toolchain: Toolchain
    binds: Mapping[str, Path]
    """Further read-only directories: absolute path inside -> host directory."""
    env: Mapping[str, str]
    tmp_mb: int


class Launcher:
    """Starts sandboxes below `root`, a store's directory, as the host user and group `user` when we are root."""

    def __init__(self, program: Path, root: Path, user: tuple[int, int], view: View) -> None:
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise MissingDependency(f"bubblewrap is not installed: {BWRAP_ADVICE}")
        binds = _check_binds(view)
        build_skeleton(root / "skeleton", [inside for _, inside in binds])
        stages = ["-b", str(program), "stage/guest"]
        (root / "stage" / "guest").touch()
        visible = ["--ro-bind", f"{root}/skeleton", "/"]
        for number, (source, inside) in enumerate(binds):
            (root / "stage" / str(number)).mkdir()
            stages += ["-b", str(source), f"stage/{number}"]
            visible += ["--ro-bind", f"{root}/stage/{number}", inside]
        visible += ["--ro-bind", f"{root}/stage/guest", "/guest/guest", "--bind", f"{root}/merged", WORKSPACE]
        env = {**_ENVIRONMENT, "PATH": view.toolchain.path, **view.env}
        self._start = [str(program), "launch", str(os.getpid()), *map(str, user), str(root)]
        self._enter = [*stages, "--", bwrap, *_isolation(), *visible, *_writable(view.tmp_mb)]
        for name, value in env.items():
            self._enter += ["--setenv", name, value]
        self._enter += ["--chdir", WORKSPACE, "/guest/guest", "serve"]

    def spawn(
        self,
        home: Path,
        lowers: Sequence[str],
        joins: Sequence[Path],
        process_limits: tuple[int, int],
        control: socket.socket,
    ) -> int:
        """Start a sandbox; returns the launcher's process id. `control` becomes the guest's end of the channel.

        `home` holds its upper and work directories and gets its log. The sandbox dies with the calling thread.
        """
        disk = f"b/{home.name}"
        options = f"lowerdir={':'.join(lowers)},upperdir={disk}/upper,workdir={disk}/work,{_OVERLAY}"
        if os.geteuid() != 0:
            options += ",userxattr"
        groups = [argument for path in joins for argument in ("-c", str(path))]
        argv = [*self._start, options, *groups, *self._enter, *map(str, process_limits)]
        actions = [
            (os.POSIX_SPAWN_DUP2, control.fileno(), 3),
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(home / "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        defaults = [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE]
        # a process group of its own: Ctrl-C at the terminal is for the controller, which then ends its sandboxes
        return os.posix_spawn(argv[0], argv, {}, file_actions=actions, setpgroup=0, setsigmask=[], setsigdef=defaults)


def _isolation() -> list[str]:
    arguments = [f"--unshare-{name}" for name in _NAMESPACES]
    arguments += ["--disable-userns", "--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    arguments += ["--uid", str(SANDBOX_UID), "--gid", str(SANDBOX_UID), "--hostname", "sandbox", "--clearenv"]
    return arguments


def _writable(tmp_mb: int) -> list[str]:
    arguments = ["--proc", "/proc", "--dev", "/dev", "--size", str(tmp_mb << 20)]
    arguments += ["--perms", "1777", "--tmpfs", "/tmp"]
    for place in _SMALL_TMPFS:
        arguments += ["--size", str((tmp_mb << 20) // 4), "--tmpfs", place]
    return arguments


def _check_binds(view: View) -> list[tuple[Path, str]]:
    binds = list(view.toolchain.binds)
    for inside, source in view.binds.items():
        if not inside.startswith("/") or ".." in inside.split("/") or inside.startswith(WORKSPACE):
            raise ConfigError(f"binds: {inside!r} must be an absolute path outside {WORKSPACE}")
        if not source.is_dir():
            raise ConfigError(f"binds: {source}, to be seen as {inside}, is not a directory of this machine")
        binds.append((source.resolve(), inside))
    return binds
