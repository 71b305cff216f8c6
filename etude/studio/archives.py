"""The archives of runs, opened when somebody asks, and looked at anew when their files have changed.

Owns `Archives`. A run's directory may be somebody else's: what lies in its archive is looked through before it is
opened, and a link, a pipe or a second name among it is refused. The reader fills an index beside the chunks, as it does
for whoever reads; nothing else is written. An index that lacks much is filled by a thread of its own, so that nobody
waits minutes for an answer. All of it is for threads beside the event loop.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from etude.archive.reader import ArchiveReader
from etude.errors import EtudeError
from etude.host import beneath
from etude.product.sessions.errors import Refused
from etude.studio.files import INDEX
from etude.studio.run import Run

_MOST_OPEN = 16
SMALL = 8 << 20
"""Bytes of chunks that whoever asks waits for until they are in the index: some seconds."""
_WATCHED = ("archive/chunks", "archive", "ledger")
Seen = tuple[tuple[str, int, float], ...]


class _Opened:
    """One run's archive. Who waits for it to be read waits for no other."""

    def __init__(self, path: Path, most_waited_for: float) -> None:
        self._path, self._lock, self._most_waited_for = path, threading.Lock(), most_waited_for
        self._reader: ArchiveReader | None = None
        self._known: Seen = ()
        self._filling: threading.Thread | None = None
        self._fault: Exception | None = None

    def reader(self) -> ArchiveReader:
        with self._lock:
            if self._fault is not None:
                fault, self._fault = self._fault, None
                raise fault
            seen = tuple(_seen(self._path))
            if self._reader is None:
                self._reader = ArchiveReader(self._path, fill=False)
            if seen != self._known and not self.is_filling:
                if self._reader.behind() > self._most_waited_for:
                    name = "studio-index"
                    self._filling = threading.Thread(target=self._fill, args=(self._reader,), name=name, daemon=True)
                    self._filling.start()
                else:
                    self._reader.refresh()
                    self._known = seen
            return self._reader

    @property
    def is_filling(self) -> bool:
        return self._filling is not None and self._filling.is_alive()

    def _fill(self, reader: ArchiveReader) -> None:
        try:
            reader.refresh()
        except (EtudeError, OSError, sqlite3.Error) as error:
            self._fault = error  # for whoever asks next

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    def close(self) -> None:
        with self._lock:
            if self._filling is not None:
                self._filling.join()
            if self._reader is not None:
                self._reader.close()
            self._reader = None


class Archives:
    """Of one server's runs."""

    def __init__(self, most_waited_for: float = SMALL) -> None:
        """`most_waited_for` are bytes of chunks."""
        self._lock, self._most_waited_for = threading.Lock(), most_waited_for
        self._open: dict[str, _Opened] = {}

    def reader(self, run: Run) -> ArchiveReader:
        """The run's, which knows all that is there by now; where that is much that is new, what of it was read by now
        (`is_filling`). Raises Refused for what is no archive of a run's."""
        with self._lock:
            opened = self._open.pop(run.id, None) or _Opened(run.directory.path, self._most_waited_for)
            self._open[run.id] = opened  # the last
            for oldest in list(self._open)[:-_MOST_OPEN]:
                self._open.pop(oldest).stop()  # whoever reads it has it still
        return opened.reader()

    def is_filling(self, run: Run) -> bool:
        """Whether the index of the run's archive is being filled beside who asks: there is more than it says."""
        with self._lock:
            return run.id in self._open and self._open[run.id].is_filling

    def stop(self) -> None:
        """Who fills an index ends soon; `close` need not wait for long."""
        with self._lock:
            for opened in self._open.values():
                opened.stop()

    def close(self) -> None:
        self.stop()
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
                    if each.name not in INDEX:
                        yield name, found.st_size, found.st_mtime
        except (FileNotFoundError, NotADirectoryError):
            if beneath.lstat(path, folder) is not None:
                raise Refused("conflict", f"{folder!r} is no directory of the run's; its archive is not read") from None
        except OSError as error:
            raise Refused("conflict", f"{folder!r} of the run cannot be read: {error.strerror}") from None
