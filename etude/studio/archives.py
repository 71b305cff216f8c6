"""The archives of runs, opened when somebody asks, and looked at anew when their files have changed.

Owns `Archives`. A run's directory may be somebody else's: what lies in its archive is looked through before it is
opened, and a link, a pipe or a second name among it is refused. The reader fills an index beside the chunks, as it does
for whoever reads; nothing else is written. All of it is for threads beside the event loop.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from etude.archive.reader import ArchiveReader
from etude.host import beneath
from etude.product.sessions.errors import Refused
from etude.studio.run import Run

_MOST_OPEN = 16
_WATCHED = ("archive/chunks", "archive", "ledger")
_IGNORED = ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm", "index.lock")
"""What whoever reads changes itself."""
Seen = tuple[tuple[str, int, float], ...]


class _Opened:
    """One run's archive. Who waits for it to be read waits for no other."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._reader: ArchiveReader | None = None
        self._known: Seen = ()

    def reader(self) -> ArchiveReader:
        with self._lock:
            seen = tuple(_seen(self._path))
            if self._reader is None:
                self._reader = ArchiveReader(self._path)
            elif seen != self._known:
                self._reader.refresh()
            self._known = seen
            return self._reader

    def close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = None


class Archives:
    """Of one server's runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, _Opened] = {}

    def reader(self, run: Run) -> ArchiveReader:
        """The run's, which knows all that is there by now. Raises Refused for what is no archive of a run's."""
        with self._lock:
            opened = self._open.pop(run.id, None) or _Opened(run.directory.path)
            self._open[run.id] = opened  # the last
            for oldest in list(self._open)[:-_MOST_OPEN]:
                del self._open[oldest]  # whoever reads it has it still
        return opened.reader()

    def close(self) -> None:
        with self._lock:
            for opened in self._open.values():
                opened.close()
            self._open.clear()


def _seen(path: Path) -> Iterator[tuple[str, int, float]]:
    """The files that an archive is read from. Raises Refused where one is not what it should be."""
    for folder in _WATCHED:
        try:
            with beneath.opened(path, folder) as handle, os.scandir(handle) as listed:
                for each in listed:
                    found = each.stat(follow_symlinks=False)
                    name = f"{folder}/{each.name}"
                    if folder == "archive" and each.name == "chunks" and stat.S_ISDIR(found.st_mode):
                        continue
                    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                        said = f"{name[:200]!r} is no plain file of the run's; its archive is not read"
                        raise Refused("conflict", said)
                    if each.name not in _IGNORED:
                        yield name, found.st_size, found.st_mtime
        except (FileNotFoundError, NotADirectoryError):
            if beneath.lstat(path, folder) is not None:
                raise Refused("conflict", f"{folder!r} is no directory of the run's; its archive is not read") from None
        except OSError as error:
            raise Refused("conflict", f"{folder!r} of the run cannot be read: {error.strerror}") from None
