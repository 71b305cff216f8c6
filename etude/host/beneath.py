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
import posixpath
import stat
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PIECE = 1 << 20
_DEPTH, _ENTRIES, _MOST_OPEN = 100, 16_000_000, 200


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


def piece(root: Path, path: str, at: int, most_bytes: int) -> tuple[bytes, os.stat_result]:
    """The bytes of a regular file of `root` from one on, at most so many however large it is, and what the file is."""
    with _regular(root, path, sys.maxsize) as (file, found):
        file.seek(at)
        return file.read(most_bytes), found


def copy(root: Path, path: str, target: Path, most_bytes: int) -> None:
    """A regular file of `root`, with its mode and times, to where there is none. What it grows by is not copied."""
    with _regular(root, path, most_bytes) as (file, found), target.open("xb") as written:
        for at in range(0, found.st_size, _PIECE):
            written.write(file.read(min(_PIECE, found.st_size - at)))
        written.flush()
        os.fchmod(written.fileno(), stat.S_IMODE(found.st_mode) & 0o777)
        os.utime(written.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))


def copy_tree(root: Path, path: str, target: Path, most_bytes: int) -> None:
    """A file, or a directory with all files in it; links as links, and what is neither not at all."""
    found = lstat(root, path)
    if found is None:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISREG(found.st_mode):
        copy(root, path, target, most_bytes)
    elif stat.S_ISLNK(found.st_mode):
        with opened(root, posixpath.dirname(path)) as within:
            target.symlink_to(os.readlink(posixpath.basename(path), dir_fd=within))
    elif stat.S_ISDIR(found.st_mode):
        for here, names in walk(root, path, depth=_DEPTH, most_entries=_ENTRIES, enter=lambda _: True):
            place = target / posixpath.relpath(here, path)
            place.mkdir(parents=True, exist_ok=True)
            for name in names:
                copy_tree(root, f"{here}/{name}", place / name, most_bytes)


def lstat(root: Path, path: str) -> os.stat_result | None:
    """What a path is; None where there is nothing of that name, or a link leads to it."""
    try:
        *parents, name = _parts(path)
        with opened(root, "/".join(parents)) as within:
            return os.stat(name, dir_fd=within, follow_symlinks=False)
    except OSError:
        return None


def blocked(root: Path, path: str, new: bool) -> bool:
    """Whether writing `path` would destroy something else: a file in place of one of its directories, a directory in
    its own place, or, where it is `new`, anything at all."""
    parts = _parts(path)
    for depth in range(1, len(parts)):
        parent = lstat(root, "/".join(parts[:depth]))
        if parent is None:
            return False
        if not stat.S_ISDIR(parent.st_mode):
            return True
    there = lstat(root, path)
    return there is not None and (new or stat.S_ISDIR(there.st_mode))


def remove(root: Path, paths: Iterable[str]) -> list[str]:
    """Remove files, and the directories that are empty then; those that were removed."""
    with opened(root) as handle:
        return [path for path in paths if _remove(handle, path)]


def make_room(root: Path, paths: Iterable[str]) -> None:
    """Where a file should be written and a directory stands that holds nothing but such directories, remove it. What is
    too deep to look through is let be."""
    for path in paths:
        *parents, name = path.split("/")
        with contextlib.suppress(OSError, RecursionError), opened(root, "/".join(parents)) as handle:
            if _is_hollow(name, handle):
                _remove_hollow(name, handle)


def walk(
    root: Path, start: str = "", *, depth: int, most_entries: int, enter: Callable[[str], bool]
) -> Iterator[tuple[str, list[str]]]:
    """Directories of `root` from `start`, each with the names in it that are no directories, in order. Goes no deeper
    than `depth`, only where `enter` says of a directory's name that it should, and ends when it has seen so many
    entries; of one directory it sees an eighth of them, so that a crowded one does not hide the others."""
    waiting, most_here = [start], most_entries // 8
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
        if len(_parts(here)) - len(_parts(start)) < depth:
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
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise _refused(errno.EINVAL, "is no regular file", path)
        if found.st_size > most_bytes:
            raise _refused(errno.EFBIG, f"is larger than {most_bytes} bytes", path)
        with open(handle, "rb", closefd=False) as file:
            yield file, found
    finally:
        os.close(handle)


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


def each_folder(root: Path, folders: Iterable[str]) -> Iterator[tuple[str, int | OSError]]:
    """Each with its handle, which is open until the next is asked for, or with what is wrong: it is gone, or a link
    leads to it. Those below a directory that was given before them are opened from there, while it is not too deep."""
    with opened(root) as top:
        chain: list[tuple[str, int]] = [("", top)]
        try:
            for folder in folders:
                while len(chain) > 1 and not f"{folder}/".startswith(f"{chain[-1][0]}/"):
                    os.close(chain.pop()[1])
                try:
                    for part in _parts(folder.removeprefix(chain[-1][0]).lstrip("/")):
                        here, handle = chain[-1]
                        deeper = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
                        chain.append((f"{here}/{part}".lstrip("/"), deeper))
                    yield folder, chain[-1][1]
                except OSError as error:
                    yield folder, error
                while len(chain) > _MOST_OPEN:
                    os.close(chain.pop()[1])
        finally:
            for _, handle in chain[1:]:
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


def _remove(root: int, path: str) -> bool:
    with contextlib.ExitStack() as stack:
        handles = [root]
        try:
            *parents, name = _parts(path)
            for part in parents:
                handles.append(stack.enter_context(_within(part, handles[-1])))
            os.unlink(name, dir_fd=handles[-1])
            for depth in range(len(parents), 0, -1):
                if os.listdir(handles[depth]):
                    break
                os.rmdir(parents[depth - 1], dir_fd=handles[depth - 1])
        except OSError:
            return False
    return True


def _is_hollow(name: str, within: int) -> bool:
    try:
        with _within(name, within) as handle:
            return all(_is_hollow(each, handle) for each in os.listdir(handle))
    except OSError:  # not a directory, or none of ours to look into
        return False


def _remove_hollow(name: str, within: int) -> None:
    with _within(name, within) as handle:
        for each in os.listdir(handle):
            _remove_hollow(each, handle)
    os.rmdir(name, dir_fd=within)


@contextlib.contextmanager
def _within(name: str, directory: int) -> Generator[int]:
    handle = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    try:
        yield handle
    finally:
        os.close(handle)
