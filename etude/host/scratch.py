"""A directory beside all others of the machine, for as long as the process that made it lives.

Owns `Scratch`. Whoever is killed removes nothing, so the next one who needs such a directory does: a process that lives
has a lock on its own. Touches no directory of another user, and none whose name begins otherwise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

from etude.host.lock import try_hold

_NEW_S = 60.0
"""One that was made so lately may not be locked yet."""


class Scratch:
    """A directory whose name begins with `prefix`; it goes with this object, or with the next one after a kill."""

    def __init__(self, prefix: str) -> None:
        for entry in os.scandir(tempfile.gettempdir()):
            if entry.name.startswith(prefix):
                _remove_if_left(entry)
        self._made = tempfile.TemporaryDirectory(prefix=prefix)
        self.path = Path(self._made.name)
        handle = _opened(self._made.name)
        try_hold(handle)
        weakref.finalize(self, os.close, handle)

    def remove(self) -> None:
        self._made.cleanup()


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _remove_if_left(entry: os.DirEntry[str]) -> None:
    with contextlib.suppress(OSError):  # it is no directory, or gone
        info = entry.stat(follow_symlinks=False)
        if info.st_uid != os.geteuid() or time.time() - info.st_mtime < _NEW_S:
            return
        handle = _opened(entry.path)
        try:
            if try_hold(handle):
                shutil.rmtree(entry.path, ignore_errors=True)
        finally:
            os.close(handle)
