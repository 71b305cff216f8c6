"""Copying and removing directory trees that untrusted processes wrote.

Owns two operations on an overlay's upper directory. Both walk by directory descriptor and never follow a symlink, so a
tree cannot lead them elsewhere, not even while it changes. Whiteouts (deletions) and opaque marks are kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


def copy_upper(source: Path, target: Path, first_id: int = 0) -> None:
    """Copy an upper directory to `target`, which must not exist; owners, modes, times and hard links are kept.

    `first_id` is subtracted from every owner and group: the host's number for a sandbox's user 0.
    """
    os.mkdir(target, 0o700)
    source_fd, target_fd = os.open(source, _DIRECTORY), os.open(target, _DIRECTORY)
    try:
        copy = _Copy(target_fd, first_id)
        copy.entries(source_fd, target_fd, "")
        copy.metadata(os.fstat(source_fd), target_fd)
    finally:
        os.close(source_fd)
        os.close(target_fd)


def remove_tree(path: Path) -> None:
    """Remove a tree, whatever modes its directories have; fine when it does not exist."""
    for _ in range(3):  # a sweep by another process may be removing the same tree
        with contextlib.suppress(FileNotFoundError):
            try:
                shutil.rmtree(path)
            except PermissionError:  # without root, a directory its owner closed must be opened first
                _open_directories(path)
                shutil.rmtree(path)
        if not path.exists():
            return
    raise OSError(f"{path} cannot be removed: something is still writing there")


class _Copy:
    """One copy under way: where its root is, and the paths below it of files that have several names."""

    def __init__(self, root: int, first_id: int) -> None:
        self._root = root
        self._first_id = first_id
        self._links: dict[tuple[int, int], str] = {}

    def entries(self, source: int, target: int, path: str) -> None:
        with os.scandir(source) as entries:
            for entry in entries:
                self._entry(entry, source, target, path + entry.name)

    def metadata(self, info: os.stat_result, target: int) -> None:
        if os.geteuid() == 0:
            os.fchown(target, *self._owner(info))
        os.fchmod(target, stat.S_IMODE(info.st_mode))
        os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _entry(self, entry: os.DirEntry[str], source: int, target: int, path: str) -> None:
        info = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            os.mkdir(entry.name, 0o700, dir_fd=target)
            self._pair(source, target, entry.name, info, _DIRECTORY, _DIRECTORY, path)
            return
        if info.st_nlink > 1 and not _is_whiteout(info):
            first = self._links.setdefault((info.st_dev, info.st_ino), path)
            if first != path:
                os.link(first, entry.name, src_dir_fd=self._root, dst_dir_fd=target, follow_symlinks=False)
                return
        if stat.S_ISREG(info.st_mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._pair(source, target, entry.name, info, flags, os.O_WRONLY | os.O_CREAT | os.O_EXCL, path)
            return
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(entry.name, dir_fd=source), entry.name, dir_fd=target)
        else:  # a whiteout is a character device 0, 0, which anyone may make; else a FIFO or a socket
            os.mknod(entry.name, info.st_mode, info.st_rdev, dir_fd=target)
        if os.geteuid() == 0 and not _is_whiteout(info):
            os.chown(entry.name, *self._owner(info), dir_fd=target, follow_symlinks=False)

    def _pair(
        self, source: int, target: int, name: str, info: os.stat_result, reading: int, writing: int, path: str
    ) -> None:
        from_fd, shut = _open_owned(name, reading, source)
        try:
            to_fd = os.open(name, writing, 0o600, dir_fd=target)
            try:
                if stat.S_ISDIR(info.st_mode):
                    self.entries(from_fd, to_fd, path + "/")
                    _copy_opaque(from_fd, to_fd)
                else:
                    _copy_content(from_fd, to_fd)
                self.metadata(info, to_fd)
            finally:
                os.close(to_fd)
        finally:
            if shut:
                os.fchmod(from_fd, stat.S_IMODE(info.st_mode))
            os.close(from_fd)

    def _owner(self, info: os.stat_result) -> tuple[int, int]:
        return info.st_uid - self._first_id, info.st_gid - self._first_id


def _is_whiteout(info: os.stat_result) -> bool:
    """The kernel may keep all of an overlay's whiteouts as one file of many names."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _open_owned(name: str, flags: int, directory: int) -> tuple[int, bool]:
    """Open a file or directory even when its owner, who we are unless root, shut it; says whether that was so."""
    needed = os.R_OK | os.X_OK if flags & os.O_DIRECTORY else os.R_OK
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        shut = not os.access(f"/proc/self/fd/{handle}", needed)
        if shut:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(name, flags, dir_fd=directory), shut
    finally:
        os.close(handle)


def _copy_content(source: int, target: int) -> None:
    offset = 0
    while sent := os.sendfile(target, source, offset, 1 << 20):
        offset += sent


def _copy_opaque(source: int, target: int) -> None:
    for name in _OPAQUE:
        with contextlib.suppress(OSError):  # absent, or of the kind this user cannot see
            os.setxattr(target, name, os.getxattr(source, name))


def _open_directories(path: Path) -> None:
    path.chmod(0o700)
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _open_directories(Path(entry.path))
