"""Which process listens on a port of this machine, as the kernel tells it (proc(5)).

Owns `noted`, by which a server of ours says where it listens, and `is_noted`, by which a client on this machine finds
out whether it is that very process which has a port, and it alone: other programs of the same user may listen there
for somebody else, such as a tunnel or a container's forwarder. Opens no connection. Without /proc nobody is known.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from etude.durable import write_new
from etude.host.processes import process_start

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"


@contextmanager
def noted(beside: Path, port: int) -> Generator[None]:
    """In the block this process says that it listens on the port: in a file beside that one, of its own, as several
    servers may share a token. What servers that were killed have left there is removed."""
    own = beside.with_name(f"{_prefix(beside)}{os.getpid()}.{port}")
    with suppress(OSError):  # a token may lie where nobody writes: then clients are told of it and do not find it
        for note, (pid, _) in _notes(beside).items():
            if not _is_by(note, pid):
                note.unlink(missing_ok=True)
        write_new(own, f"{process_start(os.getpid())}\n".encode())
    try:
        yield
    finally:
        with suppress(OSError):
            own.unlink()


def is_noted(beside: Path, port: int) -> bool:
    """Whether a process that said so in a file beside that one listens on the port, and no other does."""
    sockets = _listening(port)
    return bool(sockets) and any(
        said == port and _is_by(note, pid) and sockets <= _sockets_of(pid)
        for note, (pid, said) in _notes(beside).items()
    )


def _prefix(beside: Path) -> str:
    """Of the notes of this machine: others may have the same home."""
    return f"{beside.name}.{socket.gethostname()}."


def _notes(beside: Path) -> dict[Path, tuple[int, int]]:
    """Each with the process and the port of its name."""
    found = {}
    for path in beside.parent.iterdir():
        pid, _, port = path.name.removeprefix(_prefix(beside)).partition(".")
        if path.name.startswith(_prefix(beside)) and pid.isdecimal() and port.isdecimal():
            found[path] = int(pid), int(port)
    return found


def _is_by(note: Path, pid: int) -> bool:
    """Whether this user wrote it, and from the process that has the number now: an earlier one may have had it too."""
    try:
        status, born = note.lstat(), note.read_text().strip()
    except (OSError, ValueError):
        return False
    private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
    return private and status.st_uid == os.getuid() and born == process_start(pid)


def _listening(port: int) -> set[str]:
    """The inodes of all sockets that listen on the TCP port, at any address."""
    found = set()
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # no IPv6, or no /proc
            continue
        for _, local, _, state, _, _, _, _, _, inode, *_ in map(str.split, lines):
            if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                found.add(inode)
    return found


def _sockets_of(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    found = set()
    try:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                kind, _, inode = os.readlink(handle).partition(":")
                if kind == "socket":
                    found.add(inode.strip("[]"))
    except OSError:  # it is gone, or another user's
        return set()
    return found
