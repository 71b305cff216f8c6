"""Files below a directory that somebody else may have written, reached without leaving it.

Owns every way in which Etude itself, outside a sandbox, opens, lists and removes what lies in a workspace. A path is
walked part by part and no link in it is followed, so that one which is swapped in meanwhile leads nowhere either; what
is opened is a regular file or it is not read; nothing waits for a pipe, and everything has a bound. Errors are OSError:
ELOOP for a link, EXDEV for a path that leads out, EINVAL for no regular file, EFBIG for one that is too large, EMLINK
for one that has a second name. What is done with the bytes is the caller's business.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import BinaryIO

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 20


def read(root: Path, path: str, most_bytes: int, *, alone: bool = False) -> bytes:
    """A regular file of `root`. With `alone` it may have no second name: the owner of a hard link is not who named it,
    and what is outside may be meant."""
    with _regular(root, path, most_bytes) as (file, found):
        if alone and found.st_nlink > 1:
            raise _refused(errno.EMLINK, "has a second name", path)
        data = file.read(most_bytes + 1)
        if len(data) > most_bytes:  # it has grown
            raise _refused(errno.EFBIG, f"is larger than {most_bytes} bytes", path)
        return data


def copy(root: Path, path: str, target: Path, most_bytes: int) -> None:
    """A regular file of `root`, with its mode and times, to where there is none. What it grows by is not copied."""
    with _regular(root, path, most_bytes) as (file, found), target.open("xb") as written:
        for _ in range(0, found.st_size, _PIECE):
            written.write(file.read(_PIECE))
        written.flush()
        os.fchmod(written.fileno(), stat.S_IMODE(found.st_mode) & 0o777)
        os.utime(written.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))


def lstat(root: Path, path: str) -> os.stat_result | None:
    """What a path is; None where there is nothing of that name, or a link leads to it."""
    try:
        *parents, name = _parts(path)
        with opened(root, "/".join(parents)) as within:
            return os.stat(name, dir_fd=within, follow_symlinks=False)
    except OSError:
        return None


def walk(root: Path, *, depth: int, most_entries: int, enter: Callable[[str], bool]) -> Iterator[tuple[str, list[str]]]:
    """Directories from the top, each with the names in it that are no directories, in order. Goes no deeper than
    `depth`, only where `enter` says of a directory's name that it should, and ends when it has seen so many entries; of
    one directory it sees an eighth of them, so that a crowded one does not hide the others."""
    waiting, most_here = [""], most_entries // 8
    while waiting and most_entries > 0:
        here = waiting.pop()
        directories, others = [], []
        try:
            with opened(root, here) as handle, os.scandir(handle) as entries:
                for entry in itertools.islice(entries, min(most_here, most_entries)):
                    (directories if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
        except OSError:
            continue  # it is gone, or is not ours to look into
        most_entries -= 1 + len(directories) + len(others)
        yield here, sorted(others)
        if len(_parts(here)) < depth:
            waiting += [f"{here}/{name}".lstrip("/") for name in sorted(directories, reverse=True) if enter(name)]


@contextlib.contextmanager
def _regular(root: Path, path: str, most_bytes: int) -> Generator[tuple[BinaryIO, os.stat_result]]:
    *parents, name = _parts(path)
    with opened(root, "/".join(parents)) as within:
        try:
            handle = os.open(name, _FILE, dir_fd=within)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket
                raise _refused(errno.EINVAL, "is no regular file", path) from None
            raise
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise _refused(errno.EINVAL, "is no regular file", path)
        if found.st_size > most_bytes:
            raise _refused(errno.EFBIG, f"is larger than {most_bytes} bytes", path)
        yield file, found


@contextlib.contextmanager
def opened(root: Path, path: str = "") -> Generator[int]:
    """The handle of a directory of `root`, whose own path is the caller's to trust."""
    handle = os.open(root, _DIRECTORY)
    try:
        for part in _parts(path):
            deeper = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = deeper
        yield handle
    finally:
        os.close(handle)


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise _refused(errno.EXDEV, "leads out of the directory", path)
    if "\0" in path:
        raise _refused(errno.EINVAL, "is no path", path)
    return parts


def _refused(number: int, why: str, path: str) -> OSError:
    return OSError(number, why, path)
