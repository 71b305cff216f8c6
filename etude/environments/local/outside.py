"""What of the machine outside the workspace commands are not shown: secrets, the home's dot files, sockets.

Owns `concealed` (bubblewrap's arguments for it) and `absent` (the paths, for who must know). Tools keep their tokens in
the home's dot files, and a new one does so tomorrow: so no list names what is hidden there, `SHOWN` names what is not,
toolchains and caches. What is no dot file is the user's other projects and data, and stays. A dot file that comes into
being later is not there either, for the home is a directory of the sandbox's own with the rest mounted into it.

Reading is enough to use a socket, and a network namespace does not hold those that have a path. The kernel lists the
ones in use; /tmp and /run, where most of them are, are the sandbox's own anyway. A socket that is bound later outside
the home's dot files, /tmp and /run is reachable. One without a path (abstract) is in a network: with "full", in the
host's, and there Landlock holds it (see guest/confine.c); `abstract_sockets_held` says whether this kernel can.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from etude.environments.local.config import WorkspaceConfig
from etude.host.home import private_caches

_LANDLOCK_CREATE_RULESET, _VERSION, _WITH_SCOPES = 444, 1, 6
_OWN = [Path("/run"), Path("/tmp"), Path("/proc"), Path("/dev")]
_BOUND = Path("/proc/net/unix")
_BESIDE = ("lib", "lib64", "libexec", "share", "include")
_TREES = ("config", "local", "cache")
"""Dot directories of which only parts are shown, `~/.config` and its like."""


def concealed(directory: Path, config: WorkspaceConfig) -> tuple[list[str], list[str]]:
    """The arguments that take it away, and those that close it when everything else is mounted."""
    argv: list[str] = []
    closing: list[str] = []
    for home in _homes(directory, config):
        argv += ["--perms", "0755", "--size", str(1 << 20), "--tmpfs", str(home), *_shown(home, config)]
        closing += ["--remount-ro", str(home)]
    for hidden in _hidden(directory, config):
        argv += emptied(hidden, str(hidden))
    private = [part for place in _private(directory, config) for part in emptied(place, str(place))]
    return argv, [*private, *closing]  # last, for what is shown or writable may hold it


def turns_by() -> Path:
    """The file whose lock the guards of all of this user's sessions take turns by (`guest/planted.c`). No command sees
    it, whatever is shown, or one could keep the lock."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return state.resolve() / "etude" / "guard.lock"


def _private(directory: Path, config: WorkspaceConfig) -> list[Path]:
    """What no command sees, whatever is shown: the lock's directory, and what Etude keeps of other projects."""
    writable = [place.resolve() for place in config.writable]
    gone = [hidden for hidden in _hidden(directory, config) if not _within(hidden, writable)]
    return [
        place
        for place in (turns_by().parent, *private_caches())
        if place.is_dir() and not directory.is_relative_to(place) and not _within(place, gone)
    ]


def absent(directory: Path, config: WorkspaceConfig) -> list[str]:
    """The real paths that are not there for commands, or empty, of what exists now."""
    masked = [Path(os.path.realpath(directory / name)) for name in config.masked]
    dots = [
        entry for home in _homes(directory, config) for entry in _dots(home) if not _within(entry, _kept(home, config))
    ]
    gone = (*_hidden(directory, config), *masked, *dots, *_private(directory, config), Path("/run"))
    return [str(found) for found in gone]


def sockets(directory: Path) -> list[str]:
    """Those in use below the workspace, relative to it."""
    return [str(path.relative_to(directory)) for path in _bound() if path.is_relative_to(directory)]


def abstract_sockets_held() -> bool:
    """Whether this kernel keeps commands from the host's sockets without a path where they share its network."""
    version = ctypes.CDLL(None).syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    return version >= _WITH_SCOPES


def emptied(path: Path, place: str, entered: bool = True) -> list[str]:
    """An empty directory, or a file that cannot be opened, in its place. One that cannot be `entered` lists nothing,
    and does not say of a name that it is not there: git would take that for a file somebody removed, and commit it."""
    if not path.is_dir():
        return ["--ro-bind", "/dev/null", place]
    return [*(() if entered else ("--perms", "0444")), "--tmpfs", place, "--remount-ro", place]


def _hidden(directory: Path, config: WorkspaceConfig) -> list[Path]:
    """What is named, and sockets: those that exist and would be seen, but for what the workspace lies in."""
    homes = _homes(directory, config)
    kept = [shown for home in homes for shown in _kept(home, config)]
    named = [Path(os.path.realpath(os.path.expanduser(name))) for name in config.hidden]
    wanted = [
        found
        for found in dict.fromkeys((*named, *_bound()))
        if os.path.exists(found) and not directory.is_relative_to(found)
    ]
    seen = [
        found for found in wanted
        if not any(found.is_relative_to(place) for place in (*_OWN, directory))
        and not any(_in_dots(found, home) and not _within(found, kept) for home in homes)
    ]  # fmt: skip
    return [found for found in seen if not any(found != other and found.is_relative_to(other) for other in seen)]


def _homes(directory: Path, config: WorkspaceConfig) -> list[Path]:
    """The homes whose dot files are left out: the user's, by the environment and by the machine's own book."""
    if "~" in config.shown:
        return []
    known = [Path.home()]
    with contextlib.suppress(KeyError):  # a user without an entry has no other home
        known.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    real = [home.resolve() for home in known]
    return [
        home
        for home in dict.fromkeys(real)
        if home.is_dir() and home != Path("/") and not _within(home, [*_OWN, directory])
    ]


def _shown(home: Path, config: WorkspaceConfig) -> list[str]:
    """The home's entries laid into the empty one: all that are no dot files, and the dot files that are shown."""
    argv: list[str] = []
    plain = [Path(entry.path) for entry in os.scandir(home) if not entry.name.startswith(".")]
    for entry in sorted([*plain, *_kept(home, config)]):
        if entry.is_symlink():
            argv += ["--symlink", os.readlink(entry), str(entry)]
        elif entry.is_dir() or entry.is_file():
            argv += ["--ro-bind-try", str(entry), str(entry)]
    return argv


def _kept(home: Path, config: WorkspaceConfig) -> list[Path]:
    """The dot files that are shown: those of the list, and directories of PATH with what programs there need beside."""
    named = [home / name.removeprefix("~/") for name in config.shown if name.startswith("~/")]
    hidden = [Path(os.path.expanduser(name)) for name in config.hidden]
    for place in (
        Path(entry) for entry in config.env.get("PATH", os.environ.get("PATH", "")).split(":") if entry.startswith("/")
    ):
        for at in {place, Path(os.path.realpath(place))}:
            if _in_dots(at, home) and not _within(at, hidden):
                in_tree = at.relative_to(home).parts[0][1:] in _TREES
                named += [at] if in_tree else [at, *(at.parent / name for name in _BESIDE)]
    found = [at for at in dict.fromkeys(named) if os.path.lexists(at)]
    return [at for at in found if not any(at != other and at.is_relative_to(other) for other in found)]


def _dots(home: Path) -> Iterator[Path]:
    return (Path(entry.path) for entry in os.scandir(home) if entry.name.startswith("."))


def _in_dots(path: Path, home: Path) -> bool:
    return path.is_relative_to(home) and path != home and path.relative_to(home).parts[0].startswith(".")


def _within(path: Path, places: Iterable[Path]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def _bound() -> list[Path]:
    """The sockets with a path in this network namespace."""
    lines = [line.split(maxsplit=7) for line in _BOUND.read_text(errors="surrogateescape").splitlines()[1:]]
    paths = [Path(line[7].strip()) for line in lines if len(line) == 8 and line[7].startswith("/")]
    return [path.resolve() for path in dict.fromkeys(paths) if _is_socket(path)]


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
