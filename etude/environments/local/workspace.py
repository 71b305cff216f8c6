"""Opens the user's directory for an agent: below bubblewrap, or, where the config says so, as it is.

Owns `open_workspace` and `ConfinedWorkspace`. One guest agent (the very one of namespace sandboxes) is process 1 of a
set of namespaces that lasts as long as the session; tools and commands go through it. So a file tool can write no more
than a command can, a symlink leads neither of them further, and a server that one command starts is there for the next.
What the machine cannot give is refused with what to do about it: nothing weaker is ever put in its place.
"""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import BinaryIO

import structlog

from etude.environments.base import Sandbox, SandboxSpec
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.channel import Channel
from etude.environments.child import spawn
from etude.environments.egress import gate
from etude.environments.launcher import find_bwrap
from etude.environments.local.config import WorkspaceConfig
from etude.environments.local.named import referenced_paths
from etude.environments.local.outside import abstract_sockets_held, turns_by
from etude.environments.local.plain import PlainWorkspace
from etude.environments.local.planted import MAY_BE, listed_as, rules
from etude.environments.local.view import GUEST, arguments, guarded, protected
from etude.environments.spawned import SpawnedSandbox
from etude.errors import ConfigError, SandboxError
from etude.host.home import make_private_caches

log = structlog.get_logger()
_NUMBERS = itertools.count(1)
_ESSENTIAL = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV")
_ADVICE = (
    "the OS sandbox could not be started. On Ubuntu 24.04 and later, unprivileged user namespaces must be allowed for "
    "bwrap (an AppArmor profile, or sysctl kernel.apparmor_restrict_unprivileged_userns=0); in a container, allow them "
    'there. Where the machine is a sandbox itself, say so: sandbox = "off" and network = "full"'
)
_NO_GUARD = (
    "what your own programs obey could not be guarded: it needs Linux 5.14 or later with seccomp user notification, "
    "and kernel.yama.ptrace_scope below 2. Without it commands may plant git hooks and editor tasks where there are "
    'none yet; say so to work like that: guard = "existing".'
)


async def open_workspace(directory: Path, config: WorkspaceConfig | None = None) -> Sandbox:
    """The directory as a sandbox. Whoever opened it destroys it, which ends its processes and leaves its files.

    Raises MissingDependency or SandboxError where the sandbox cannot be had; there is no fallback.
    """
    config = config or WorkspaceConfig()
    real = check_directory(directory)
    if config.sandbox == "off":
        log.warning("not_sandboxed", workspace=str(real), held_by="permission rules only")
        return PlainWorkspace(real, config, _own_environment())
    if config.network == "full" and not abstract_sockets_held():
        log.warning("abstract_sockets_reachable", why="Landlock has no scopes in this kernel: 6.12 or later does")
    workspace = ConfinedWorkspace(real, config)
    try:
        await workspace.boot()
    except BaseException:
        await workspace.destroy()
        raise
    return workspace


def _own_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _ESSENTIAL if name in os.environ}


def _turns(places: Iterable[Path]) -> BinaryIO:
    """The lock of `turns_by`, open, and made where it is not there yet: outside of the places that commands write."""
    path = turns_by()
    if any(path.is_relative_to(place.resolve()) for place in places):
        raise ConfigError(f"{path} lies where commands may write, and could hold it; set XDG_STATE_HOME elsewhere")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", 0)
    except OSError as error:
        raise SandboxError(f"{path}: {error.strerror}; it must be writable, or set XDG_STATE_HOME") from None


def check_directory(directory: Path) -> Path:
    """Refuse what is not somebody's project: with the home directory writable, a sandbox would hold nothing."""
    real = directory.resolve()
    if not real.is_dir():
        raise ConfigError(f"{directory} is not a directory; start in the project you want to work on")
    if real in (Path("/"), Path.home().resolve(), *Path.home().resolve().parents):
        raise ConfigError(f"{real} holds more than one project; start in the directory of the one you want to work on")
    return real


class ConfinedWorkspace(SpawnedSandbox):
    """See base.Sandbox for the meaning of its methods. It has no snapshots and no forks: its files are the user's."""

    def __init__(self, directory: Path, config: WorkspaceConfig) -> None:
        name = f"local/{os.getpid()}.{next(_NUMBERS)}"
        super().__init__(None, Channel(name), name, SandboxSpec(), config.file_timeout_s)
        self._directory, self._config = directory, config
        self._bwrap, self._guest = find_bwrap(directory), guest_program(default_cache_dir())
        self._named = referenced_paths(directory, [name for name in MAY_BE if name not in config.unguarded])
        self._held = protected(directory, config, self._named)
        self.egress: Counter[str] = Counter()
        """What became of requests to hosts: "allowed", or the reason of a refusal."""
        if config.network == "hosts":
            self.proxy = gate.open_proxy(config.egress, None, self.egress)

    async def boot(self) -> None:
        """Spawn, and wait for the agent's first words."""
        with tempfile.TemporaryFile() as log:
            try:
                await self._begin(partial(self._spawn, log.fileno()), self._config.start_timeout_s)
            except SandboxError:
                log.seek(0)
                said = log.read().decode(errors="replace").strip()[-500:]
                raise SandboxError(f"{self._directory}: {_ADVICE}. bwrap said: {said or 'nothing'}") from None
        if self._config.guard == "on":
            await self._guard()

    async def _guard(self) -> None:
        config = self._config
        listed = rules(guarded(self._directory, config), self._held, self._named, config.unguarded)
        try:
            await self._channel.guard(listed, config.start_timeout_s)
        except OSError as error:
            raise SandboxError(f"{self._directory}: {_NO_GUARD} The kernel said: {error.strerror}") from None

    def refuses(self, path: str, removed: bool = False) -> str | None:
        """Whether the guard would not have this path below the workspace written, or `removed`, asked before it is
        tried: None if it would; else the name of the list that `unguarded` gives up, or "" where nothing does."""
        if self._config.guard != "on":
            return None
        return listed_as(self._directory, path, self._held, self._named, self._config.unguarded, removed)

    async def guarded(self) -> tuple[int, int]:
        """How many calls commands and tools made under the guard, and how many of them it refused."""
        return await self._channel.guard(b"", self._wait_s)

    def _spawn(self, log: int, control: socket.socket) -> int:
        if self._config.guard != "on":
            return spawn(self._command(), [control.fileno()], log)
        with _turns((self._directory, *self._config.writable)) as turns:  # made first: the view takes it away
            return spawn(self._command(), [control.fileno(), turns.fileno()], log)

    def _command(self) -> list[str]:
        make_private_caches()  # what is not there yet could not be taken away
        ways = gate.VARIABLES if self.proxy is not None else {}
        return [
            *([str(self._guest), "lock-devices"] if os.geteuid() == 0 else []),  # root's commands own the host's nodes
            self._bwrap,
            *arguments(self._directory, self._config, self._held, self._guest, {**_own_environment(), **ways}),
            *(GUEST, "serve", "0", "0", "0", self.id),
            *([str(gate.PORT)] if self.proxy is not None else []),
        ]

    @property
    def _stop_s(self) -> float:
        return self._config.stop_timeout_s
