"""What of the host a sandbox sees: its toolchain, read-only, and nothing that is anybody's.

Owns the choice of directories and of the Python interpreter, and the skeleton: a small read-only root directory with
the mount points and the few files of /etc that programs need. Never /root, /home, /work, /var or the host's /tmp.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from etude.errors import ConfigError, MissingDependency

SANDBOX_UID = 1000
HOME = "/home/agent"
ENVIRONMENT = {
    "HOME": HOME,
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
}
"""What every command finds, on whatever root."""
_MOUNT_POINTS = ("proc", "dev", "tmp", "workspace", "tests", "logs", "home/agent", "usr", "opt", "var", "guest")
_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "localtime", "mime.types", "debian_version", "os-release", "inputrc")
_PASSWD = f"root:x:0:0:root:/root:/bin/sh\nagent:x:{SANDBOX_UID}:{SANDBOX_UID}:agent:{HOME}:/bin/bash\n"
_PASSWD += "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUP = f"root:x:0:\nagent:x:{SANDBOX_UID}:\nnogroup:x:65534:\n"
_WRITTEN = {
    "passwd": _PASSWD,
    "group": _GROUP,
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hosts": "127.0.0.1 localhost\n",
    "hostname": "sandbox\n",
}


@dataclass(frozen=True)
class Toolchain:
    """Read-only binds (host directory, place inside), and the environment that goes with them."""

    binds: tuple[tuple[Path, str], ...]
    path: str


def find_toolchain(python: Path | None) -> Toolchain:
    """The host's /usr, and the interpreter's own tree where that lies elsewhere.

    `python` names an interpreter; None takes /usr/bin/python3 when it is of this interpreter's version (it starts in a
    third of the time of a pyenv or conda one with packages), else this one's base installation.
    """
    binds = [(Path("/usr"), "/usr")]
    for name in _TOP_LEVEL:
        directory = Path("/", name)
        if directory.is_dir() and not directory.is_symlink():
            binds.append((directory, f"/{name}"))
    path = "/usr/local/bin:/usr/bin:/bin"
    prefix = _prefix_of(python) if python is not None else _default_prefix()
    if prefix != Path("/usr"):
        path = f"{prefix}/bin:{path}"
    if not prefix.is_relative_to("/usr"):
        binds.append((prefix, str(prefix)))
    return Toolchain(tuple(binds), path)


def build_skeleton(root: Path, targets: list[str]) -> None:
    """Fill the empty directory `root`; `targets` are further absolute mount points inside.

    Raises ConfigError where one cannot be a directory there.
    """
    for point in _MOUNT_POINTS:
        (root / point).mkdir(parents=True, exist_ok=True)
    (root / "guest" / "guest").touch()
    for name in _TOP_LEVEL:
        source = Path("/", name)
        if source.is_symlink():
            (root / name).symlink_to(os.readlink(source))
        elif source.is_dir():
            (root / name).mkdir(exist_ok=True)
    (root / "var" / "tmp").symlink_to("/tmp")
    etc = root / "etc"
    (etc / "alternatives").mkdir(parents=True)
    for name in _ETC:
        if Path("/etc", name).is_file():
            shutil.copyfile(Path("/etc", name), etc / name)
    for name, text in _WRITTEN.items():
        (etc / name).write_text(text)
    for link in os.scandir("/etc/alternatives") if os.path.isdir("/etc/alternatives") else ():
        if link.is_symlink():  # Debian: awk, editor, java … are links through here, hundreds of them
            os.symlink(os.readlink(link.path), f"{etc}/alternatives/{link.name}")
    (etc / "mtab").symlink_to("/proc/mounts")
    for target in targets:
        _make_point(root, target)
    for directory, _, files in os.walk(root):  # readable to the sandbox's user whatever our umask
        os.chmod(directory, 0o755)
        for path in (f"{directory}/{name}" for name in files):
            if not os.path.islink(path):
                os.chmod(path, 0o644)


def _make_point(root: Path, target: str) -> None:
    """Through no link: it would lead out of `root`."""
    place = root
    for part in target.strip("/").split("/"):
        place /= part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            taken = f"/{place.relative_to(root)} is a {'link' if place.is_symlink() else 'file'} in a sandbox"
            raise ConfigError(f"binds: nothing can be seen as {target}, for {taken}; name another place")
        place.mkdir(exist_ok=True)


def _default_prefix() -> Path:
    system = Path("/usr/bin/python3")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if system.exists() and system.resolve().name == version:
        return Path("/usr")
    return Path(sys.base_prefix).resolve()


def _prefix_of(python: Path) -> Path:
    resolved = python.resolve()
    if not resolved.is_file() or resolved.parent.name != "bin":
        raise MissingDependency(f"{python} is not an interpreter in a bin directory; name one such as /usr/bin/python3")
    return resolved.parent.parent
