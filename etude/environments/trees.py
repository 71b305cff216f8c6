"""Copying and removing directory trees that untrusted processes wrote.

Owns two operations on an overlay's upper directory. Both walk by directory descriptor and never follow a symlink, so a
tree cannot lead them elsewhere, not even while it changes; and they hold one descriptor however deep it is, so that no
tree is too deep to be copied or removed. Whiteouts (deletions) and opaque marks are kept.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RIVAL_S = 10.0
"""How long a tree that others write to, or remove, is tried again."""
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


def copy_upper(source: Path, target: Path, first_id: int = 0) -> None:
    """Copy an upper directory to `target`, which must not exist; owners, modes, times and hard links are kept.

    `first_id` is subtracted from every owner and group: the host's number for a sandbox's user 0.
    """
    os.mkdir(target, 0o700)
    with contextlib.closing(_Cursor(source)) as ours, contextlib.closing(_Cursor(target)) as theirs:
        _Copy(ours, theirs, first_id).run()


def remove_tree(path: Path) -> None:
    """Remove a tree, whatever modes its directories have; fine when it does not exist."""
    deadline = time.monotonic() + _RIVAL_S
    while True:
        with contextlib.suppress(FileNotFoundError):  # a sweep by another process may be removing the same tree
            _remove(path)
        if not path.exists():
            return
        if time.monotonic() > deadline:
            raise OSError(f"{path} cannot be removed in {_RIVAL_S:.0f} s: something is still writing there")
        time.sleep(0.01)


class _Cursor:
    """A place in a tree, moved down by name and up again; `fd` is the directory there."""

    def __init__(self, root: Path) -> None:
        self.fd, shut = _open_owned(str(root), _DIRECTORY, None)
        self._above: list[tuple[int, int, str, int | None]] = []
        self._root_mode = shut

    def down(self, name: str) -> None:
        info = os.fstat(self.fd)
        below, shut = _open_owned(name, _DIRECTORY, self.fd)
        self._above.append((info.st_dev, info.st_ino, name, shut))
        os.close(self.fd)
        self.fd = below

    def up(self) -> int:
        """Returns the descriptor of the directory it leaves, for the caller to close."""
        device, inode, name, shut = self._above.pop()
        above = os.open("..", _DIRECTORY, dir_fd=self.fd)
        info = os.fstat(above)
        if (info.st_dev, info.st_ino) != (device, inode):
            os.close(above)
            raise OSError(errno.ESTALE, "moved elsewhere while it was walked", name)
        left, self.fd = self.fd, above
        if shut is not None:
            os.fchmod(left, shut)
        return left

    @property
    def path(self) -> str:
        """From the root, with a slash at its end; "" there."""
        return "".join(f"{name}/" for _, _, name, _ in self._above)

    def close(self) -> None:
        """Leave every directory as it was found."""
        with contextlib.suppress(OSError):
            while self._above:
                os.close(self.up())
        if self._root_mode is not None:
            os.fchmod(self.fd, self._root_mode)
        os.close(self.fd)


class _Copy:
    """One copy under way, and the paths below its root of files that have several names."""

    def __init__(self, source: _Cursor, target: _Cursor, first_id: int) -> None:
        self._source = source
        self._target = target
        self._root = os.dup(target.fd)
        self._first_id = first_id
        self._links: dict[tuple[int, int], str] = {}

    def run(self) -> None:
        try:
            self._walk()
        finally:
            os.close(self._root)

    def _walk(self) -> None:
        above = [os.fstat(self._source.fd)]
        waiting = [self._files()]
        while waiting:
            if waiting[-1]:
                name, info = waiting[-1].pop()
                self._source.down(name)
                self._target.down(name)
                above.append(info)
                waiting.append(self._files())
                continue
            waiting.pop()
            _copy_opaque(self._source.fd, self._target.fd)
            # a directory that may not be entered gets its mode when nothing is left to do in it
            finished = self._target.up() if waiting else os.dup(self._target.fd)
            try:
                self._metadata(above.pop(), finished)
            finally:
                os.close(finished)
            if waiting:
                os.close(self._source.up())

    def _files(self) -> list[tuple[str, os.stat_result]]:
        """Copies what is here, but of its directories only their names; returns those."""
        directories = []
        with os.scandir(self._source.fd) as entries:
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    os.mkdir(entry.name, 0o700, dir_fd=self._target.fd)
                    directories.append((entry.name, info))
                else:
                    self._file(entry.name, info)
        return directories

    def _file(self, name: str, info: os.stat_result) -> None:
        source, target = self._source.fd, self._target.fd
        if info.st_nlink > 1 and not _is_whiteout(info) and self._linked(name, info):
            return
        if stat.S_ISREG(info.st_mode):
            self._content(name, info)
            return
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        else:  # a whiteout is a character device 0, 0, which anyone may make; else a FIFO or a socket
            os.mknod(name, info.st_mode, info.st_rdev, dir_fd=target)
        if os.geteuid() == 0 and not _is_whiteout(info):
            os.chown(name, *self._owner(info), dir_fd=target, follow_symlinks=False)

    def _linked(self, name: str, info: os.stat_result) -> bool:
        path = self._target.path + name
        first = self._links.setdefault((info.st_dev, info.st_ino), path)
        if first == path:
            return False
        try:
            os.link(first, name, src_dir_fd=self._root, dst_dir_fd=self._target.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            return False  # so deep that no path leads there: it becomes a file of its own
        return True

    def _content(self, name: str, info: os.stat_result) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        from_fd, shut = _open_owned(name, flags, self._source.fd)
        try:
            to_fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._target.fd)
            try:
                offset = 0
                while sent := os.sendfile(to_fd, from_fd, offset, 1 << 20):
                    offset += sent
                self._metadata(info, to_fd)
            finally:
                os.close(to_fd)
        finally:
            if shut is not None:
                os.fchmod(from_fd, shut)
            os.close(from_fd)

    def _metadata(self, info: os.stat_result, target: int) -> None:
        if os.geteuid() == 0:
            os.fchown(target, *self._owner(info))
        os.fchmod(target, stat.S_IMODE(info.st_mode))
        os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _owner(self, info: os.stat_result) -> tuple[int, int]:
        return info.st_uid - self._first_id, info.st_gid - self._first_id


def _remove(path: Path) -> None:
    with contextlib.closing(_Cursor(path)) as place:
        waiting, names = [_unlink_files(place.fd)], [""]
        while True:
            if waiting[-1]:
                names.append(waiting[-1].pop())
                place.down(names[-1])
                waiting.append(_unlink_files(place.fd))
                continue
            waiting.pop()
            if not waiting:
                break
            os.close(place.up())
            os.rmdir(names.pop(), dir_fd=place.fd)
    os.rmdir(path)


def _unlink_files(directory: int) -> list[str]:
    """Removes what is in a directory but for its directories; returns their names."""
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    if found and os.geteuid() != 0:
        os.fchmod(directory, 0o700)  # it may be one its owner made read-only
    for name, is_directory in found:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in found if is_directory]


def _is_whiteout(info: os.stat_result) -> bool:
    """The kernel may keep all of an overlay's whiteouts as one file of many names."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _open_owned(name: str, flags: int, directory: int | None) -> tuple[int, int | None]:
    """Open a file or directory even when its owner, who we are unless root, shut it; says the mode it had then."""
    needed = os.R_OK | os.X_OK if flags & os.O_DIRECTORY else os.R_OK
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        shut = None
        if not os.access(f"/proc/self/fd/{handle}", needed):
            shut = stat.S_IMODE(os.fstat(handle).st_mode)
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(name, flags, dir_fd=directory), shut
    finally:
        os.close(handle)


def _copy_opaque(source: int, target: int) -> None:
    for name in _OPAQUE:
        with contextlib.suppress(OSError):  # absent, or of the kind this user cannot see
            os.setxattr(target, name, os.getxattr(source, name))
