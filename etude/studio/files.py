"""The files of one run's directory, which somebody else may have written.

Owns `Directory`: bounded reads through no link (`host.beneath`), what is there, and whether a process has the run; and
`Tail`, the lines that a growing file gets, by byte offset. A line that was cut, or is longer than any of a run's, is
passed over. Knows nothing of what the lines say.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.host import beneath, lock

MOST_JSON = 32 << 20
"""Bytes of one file that is read whole."""
_MOST_ENTRIES = 1000
_LOOKED_INTO = ("archive/", "archive/chunks/")
INDEX = ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm", "index.lock")
"""Of an archive: whoever reads it changes these, and the run itself does not."""
_PIECE = 4 << 20
LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A file as the directory tells of it. `mtime` is in seconds."""

    size: int
    mtime: float
    inode: int


class Directory:
    """Of one run. What it returns is bounded, and never of a file elsewhere."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> dict[str, Entry]:
        """The regular files that the run has written into the directory itself and into `archive/`, whose index is not
        the run's; none where it is gone."""
        found: dict[str, Entry] = {}
        waiting = [""]
        while waiting:
            below = waiting.pop()
            with contextlib.suppress(OSError), beneath.opened(self.path, below) as handle, os.scandir(handle) as listed:
                for each in itertools.islice(listed, _MOST_ENTRIES):
                    told = each.stat(follow_symlinks=False)
                    if stat.S_ISREG(told.st_mode) and not (below and each.name in INDEX):
                        found[below + each.name] = Entry(told.st_size, told.st_mtime, told.st_ino)
                    elif f"{below}{each.name}/" in _LOOKED_INTO and stat.S_ISDIR(told.st_mode):
                        waiting.append(f"{below}{each.name}/")
        return found

    def json(self, name: str) -> Any:
        """What a JSON file says; None where there is none, or none that can be read."""
        try:
            return shallow(json.loads(beneath.read(self.path, name, MOST_JSON)))
        except (OSError, ValueError, RecursionError):
            return None

    def table(self, name: str) -> dict[str, Any]:
        """The same of one that holds an object; an empty one otherwise."""
        found = self.json(name)
        return found if isinstance(found, dict) else {}

    def last(self, name: str, most_bytes: int) -> list[bytes]:
        """The last whole lines of a file."""
        try:
            found = beneath.lstat(self.path, name)
            begins = max(0, found.st_size - most_bytes) if found else 0
            data, _ = beneath.piece(self.path, name, begins, most_bytes)
        except OSError:
            return []
        lines = data.split(b"\n")[:-1]
        return lines[1:] if begins else lines

    def is_held(self, name: str) -> bool:
        """Whether a process of this machine has the lock of that name."""
        try:
            with beneath.opened(self.path) as within:
                handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
        except OSError:
            return False
        try:
            return stat.S_ISREG(os.fstat(handle).st_mode) and lock.is_held(handle)
        finally:
            os.close(handle)


def shallow(value: Any, depth: int = 32) -> Any:
    """The same, without what lies so deep that whoever writes it down again would give up."""
    if isinstance(value, dict):
        return {key: shallow(each, depth - 1) for key, each in value.items()} if depth else "…"
    if isinstance(value, list):
        return [shallow(each, depth - 1) for each in value] if depth else "…"
    return value


@dataclass(frozen=True)
class Piece:
    """Some lines of a file, each with the byte it begins at. `anew`: the file is another than before, and these are its
    first. `more`: there are others already."""

    lines: list[tuple[int, bytes]]
    anew: bool
    more: bool


class Tail:
    """The lines of a file that were not read yet. A file that was replaced, or cut, is read from its beginning."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory, self._name = directory, name
        self._inode, self._at, self._passing = -1, 0, False

    def read(self) -> Piece:
        """The next lines, of a few megabytes at most."""
        try:
            data, found = beneath.piece(self._directory.path, self._name, self._at, _PIECE)
            anew = found.st_ino != self._inode or found.st_size < self._at
            if anew:
                self._inode, self._at, self._passing = found.st_ino, 0, False
                data, found = beneath.piece(self._directory.path, self._name, 0, _PIECE)
        except OSError:  # gone, or no file any more
            anew, self._inode, self._at = self._inode != -1, -1, 0
            return Piece([], anew, False)
        return Piece(self._split(data), anew, found.st_size > self._at and len(data) == _PIECE)

    def _split(self, data: bytes) -> list[tuple[int, bytes]]:
        lines, at = [], self._at
        *whole, rest = data.split(b"\n")
        for line in whole:
            if not self._passing and len(line) <= LONGEST_LINE:
                lines.append((at, line))
            self._passing = False
            at += len(line) + 1
        if len(rest) > LONGEST_LINE:  # its end is not worth waiting for
            self._passing, at = True, at + len(rest)
        self._at = at
        return lines
