"""Files that are whole or not there, and on the disk before anybody relies on them.

Owns `write_whole`, `write_new`, `write_private`, `overwrite`, `append_whole`, `cut`, `sync_directory` and `naming`, and
`SICK`, the errors of a machine that fails. Knows nothing of what is written; whoever writes says what a full disk
means.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO

SICK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE})
"""A disk that is full, read-only or failing, and descriptors that are used up: nothing that was written is to blame."""


@contextlib.contextmanager
def naming(path: Path) -> Generator[None]:
    """What the disk refuses in the block is an error that names `path`: a write knows its descriptor alone."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_whole(
    path: Path, data: bytes | Callable[[BinaryIO], object], *, listed: bool = False, shared: bool = False
) -> None:
    """Put `data`, or what it writes, in the place of what is there, at once. With `listed` the file's name is on the
    disk too when this returns; with `shared` several processes may do this at a time. Raises OSError, and then what was
    there stands untouched."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial" if shared else f"{path.name}.partial")
    try:
        with naming(path):
            with partial.open("wb") as file:
                data(file) if callable(data) else file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            if listed:
                sync_directory(path.parent)
    except OSError:
        with contextlib.suppress(OSError):  # a disk that is read-only by now
            partial.unlink(missing_ok=True)
        raise


def write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Make a file that is whole from the moment its name is there. FileExistsError where there is one: it stays."""
    with _unseen(path, data, mode) as partial:
        try:
            os.link(partial, path)
        except PermissionError:  # a file system that knows no second name
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            partial.rename(path)


def write_private(path: Path, data: bytes) -> None:
    """Put a file that only its owner can read, and this user owns, in the place of what is there, at once: also where
    others may write to its directory."""
    with _unseen(path, data, 0o600) as partial:
        os.replace(partial, path)
        sync_directory(path.parent)


@contextlib.contextmanager
def _unseen(path: Path, data: bytes, mode: int) -> Generator[Path]:
    """A whole file beside `path`, of a name that nobody can have put something at before."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with naming(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(partial, flags, mode), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield partial
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def overwrite(path: Path, data: bytes) -> None:
    """Put `data` into a file of the user's, which stays the file that it was: its links, rights and owner. Raises
    OSError; where that is for want of room, what was there stands."""
    with naming(path):
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            before = os.fstat(file).st_size
            try:
                os.posix_fallocate(file, 0, max(1, len(data)))
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV):
                    os.ftruncate(file, before)
                    raise
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.ftruncate(file, len(data))
        finally:
            os.close(file)


def append_whole(handle: int, data: bytes, path: Path) -> None:
    """Add `data` at the end of the open file `path`: all of it, or nothing where the disk refuses."""
    before, done = os.fstat(handle).st_size, 0
    with naming(path):
        try:
            while done < len(data):
                done += os.write(handle, data[done:])
        except OSError:
            cut(handle, before, path)
            raise


def cut(handle: int, length: int, path: Path) -> None:
    """Cut the open file `path` off, if it is longer: a quota that is used up refuses to cut nothing off, too."""
    with naming(path):
        if os.fstat(handle).st_size > length:
            os.ftruncate(handle, length)


def sync_directory(directory: Path) -> None:
    """A new file is on disk only when its directory is."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        with naming(directory):
            os.fsync(handle)
    finally:
        os.close(handle)
