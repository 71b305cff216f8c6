"""Files that are whole or not there, and on the disk before anybody relies on them.

Owns `write_whole` and `sync_directory`. Knows nothing of what is written; whoever writes says what a full disk means.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes, *, listed: bool = False) -> None:
    """Put `data` in the place of what is there, at once. With `listed` the file's name is on the disk too when this
    returns. Raises OSError, and then what was there stands untouched."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        if listed:
            sync_directory(path.parent)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """A new file is on disk only when its directory is."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
