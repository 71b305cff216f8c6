"""What a command of the product's agent sees: the machine read-only, the workspace writable, secrets not at all.

Owns bubblewrap's arguments for it. The root is empty and everything of / is laid into it, so that /workspace can be
there whether this machine has such a directory or not. The workspace is at /workspace, where the model knows it, and
at its own path, which virtual environments and build files name. /tmp and /run are the session's own: sockets of
container engines, agents and buses lie there, and reading is enough to use one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from etude.environments.base import WORKSPACE
from etude.environments.launcher import proc
from etude.environments.local.config import WorkspaceConfig
from etude.environments.local.named import ReferencedPaths
from etude.environments.local.outside import concealed, emptied, sockets
from etude.host.home import private_caches
from etude.host.repository import LinkedWorktree, linked_worktree

_OWN = {"proc", "dev", "tmp", "run", WORKSPACE.strip("/"), "guest"}
_ISOLATION = (
    "--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
    "--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
)  # fmt: skip
_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "asound", "mtrr", "pressure")
GUEST = "/guest/guest"
CACHE = "/tmp/cache"


def arguments(
    directory: Path, config: WorkspaceConfig, held: Iterable[str], guest: Path, env: Mapping[str, str]
) -> list[str]:
    """Everything between `bwrap` and the program to run; `held` is read-only where it is there."""
    argv = [*_ISOLATION, *(() if config.network == "full" else ("--unshare-net",))]
    argv += ["--size", str(1 << 20), "--tmpfs", "/", *_machine()]
    argv += [*proc(), *_settings(), "--dev", "/dev", "--size", str(config.tmp_mb << 20), "--perms", "1777"]
    argv += ["--tmpfs", "/tmp", "--size", str(1 << 20), "--tmpfs", "/run"]
    if config.network == "full":
        argv += _resolver()
    taken, closing = concealed(directory, config)
    argv += taken
    for path in config.writable:
        argv += ["--bind", str(path.resolve()), str(path.resolve())]
    history = linked_worktree(directory)
    if history is not None:
        argv += _history(history, config.history)
    for place in (str(directory), WORKSPACE):
        argv += ["--bind", str(directory), place, *_protected(directory, place, held)]
        argv += _read_only(directory / ".git", f"{place}/.git") if history is not None else []
        argv += _masked(directory, place, (*config.masked, *sockets(directory), *map(str, private_caches())))
    argv += ["--ro-bind", str(guest), GUEST, *closing, "--remount-ro", "/", "--chdir", WORKSPACE]
    if history is not None and config.history == "own":
        env = {**env, **_own_objects(history)}
    for name, value in {**env, **command_environment(config)}.items():
        argv += ["--setenv", name, value]
    return argv


def guarded(directory: Path, config: WorkspaceConfig) -> list[Path]:
    """The directories, as commands know them, in which nothing that the user's programs obey may be planted."""
    history = linked_worktree(directory)
    kept = [] if history is None else [_kept(history, config.history)]
    return [directory, Path(WORKSPACE), *kept]


def protected(directory: Path, config: WorkspaceConfig, named: ReferencedPaths) -> list[str]:
    """What no command may write below the workspace: the config's, where links lead, and without a guard what the
    user's control files name. With one that needs no mount, across which nothing could be moved."""
    given = [name for name in config.protected if name not in config.unguarded]
    if config.guard == "on":  # it judges name by name what git may write there, in a submodule's too
        given = [name for name in given if name not in (".git/info", ".git/modules")]
    given += named.files if config.guard == "existing" else ()
    leads = [Path(os.path.realpath(directory / name)) for name in given]
    inside = [str(path.relative_to(directory)) for path in leads if directory in path.parents]
    return list(dict.fromkeys((*given, *inside)))


def command_environment(config: WorkspaceConfig) -> dict[str, str]:
    """What the config gives commands, and where they may put things. Nobody is there to edit what git would show."""
    return {"GIT_EDITOR": "true", **config.env, "XDG_CACHE_HOME": CACHE, "TMPDIR": "/tmp"}


def _machine() -> list[str]:
    """Everything in /, read-only, but what the sandbox has of its own."""
    argv = []
    for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
        if entry.name in _OWN:
            continue
        if entry.is_symlink():
            argv += ["--symlink", os.readlink(entry.path), entry.path]
        else:
            argv += ["--ro-bind-try", entry.path, entry.path]
    return argv


def _settings() -> list[str]:
    """The kernel's, read-only: they are root's, and who runs the agent as root is root inside, though without rights.
    bubblewrap covers only what it could write at that moment."""
    return [part for name in _SETTINGS for part in ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")]


def _resolver() -> list[str]:
    """The file that says who resolves names lies in /run on most machines."""
    real = Path("/etc/resolv.conf").resolve()
    return ["--ro-bind", str(real), str(real)] if real.is_file() and real.is_relative_to("/run") else []


def _protected(directory: Path, place: str, names: Iterable[str]) -> list[str]:
    """Read-only again. The directories above are mounted onto themselves: what is a mount cannot be moved out of the
    way, and another put in its place."""
    argv: list[str] = []
    pinned: set[str] = set()
    for name in names:
        source = directory / name
        if not source.exists() or not source.resolve().is_relative_to(directory):
            continue
        for parent in reversed(Path(name).parents[:-1]):
            if str(parent) not in pinned:
                pinned.add(str(parent))
                argv += ["--bind", str(directory / parent), f"{place}/{parent}"]
        argv += ["--ro-bind", str(source), f"{place}/{name}"]
    return argv


def _masked(directory: Path, place: str, names: Iterable[str]) -> list[str]:
    real = [Path(os.path.realpath(directory / name)) for name in names]
    inside = [
        path for path in dict.fromkeys(real) if path.exists() and path != directory and path.is_relative_to(directory)
    ]
    return [part for path in inside for part in emptied(path, f"{place}/{path.relative_to(directory)}", entered=False)]


def _history(history: LinkedWorktree, kept: str) -> list[str]:
    """What git writes for a worktree: its index and commits, and where they are `shared` the repository's branches. The
    repository is read wherever it lies, /tmp and the home's dot files too, which the sandbox has of its own."""
    top = _kept(history, kept)
    obeyed = [history.git_dir / "gitdir", history.git_dir / "commondir"]
    obeyed += [history.common / name for name in ("hooks", "config", "info")] if kept == "shared" else []
    read = _read_only(history.common, str(history.common))
    return [*read, "--bind", str(top), str(top), *(part for path in obeyed for part in _read_only(path, str(path)))]


def _kept(history: LinkedWorktree, kept: str) -> Path:
    return history.common if kept == "shared" else history.git_dir


def _own_objects(history: LinkedWorktree) -> dict[str, str]:
    """New objects lie beside the worktree's index; those of the repository are read."""
    (history.git_dir / "objects").mkdir(exist_ok=True)
    return {
        "GIT_OBJECT_DIRECTORY": str(history.git_dir / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(history.common / "objects"),
    }


def _read_only(path: Path, place: str) -> list[str]:
    return ["--ro-bind", str(path), place] if path.exists() else []
