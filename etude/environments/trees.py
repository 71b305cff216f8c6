"""Copying and removing directory trees that untrusted processes wrote.

Owns two operations on an overlay's upper directory. Both walk by directory descriptor and never follow a symlink, so a
tree cannot lead them elsewhere, not even while it changes; and they hold one descriptor however deep it is, so that no
tree is too deep to be copied or removed. Whiteouts (deletions) and opaque marks are kept, and holes stay holes: a copy
takes the room of its source, whatever the sizes of its files say.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

from etude.durable import SICK
from etude.errors import SandboxSpoiled

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RIVAL_S = 10.0
"""How long a tree that others write to, or remove, is tried again."""
_RIVALLED = {errno.ENOENT, errno.ENOTEMPTY, errno.ESTALE, errno.ENOTDIR, errno.EISDIR}
"""What a walk meets where something is gone, new, moved, or of another kind than it was a moment ago."""
_FULL = SICK | {errno.ENOMEM}
"""A disk or a machine that fails. A copy takes no more room than its source, which has a limit."""


def copy_upper(source: Path, target: Path, first_id: int = 0) -> None:
    """Copy an upper directory to `target`, which must not exist; owners, modes, times and hard links are kept.

    `first_id` is subtracted from every owner and group: the host's number for a sandbox's user 0. Raises SandboxSpoiled
    where another tree can be copied there and this one, which is still there, cannot; else OSError.
    """
    try:
        _copy(source, target, first_id)
    except OSError as error:
        if error.errno in _FULL or not source.exists() or not _takes_trees(target):  # or whoever shows it was killed
            raise
        raise SandboxSpoiled(f"what was changed cannot be copied: {error}"[:2000]) from error


def _copy(source: Path, target: Path, first_id: int = 0) -> None:
    several = target.with_name(f"{target.name}.links")
    os.mkdir(target, 0o700)
    os.mkdir(several, 0o700)
    try:
        with contextlib.closing(_Cursor(source)) as ours, contextlib.closing(_Cursor(target)) as theirs:
            _Copy(ours, theirs, several, first_id).run()
    finally:
        remove_tree(several)


def _takes_trees(target: Path) -> bool:
    """The control: whether a tree that nobody wrote to, an empty one, can be copied to where this one could not."""
    empty, copy = (target.with_name(f"{target.name}.{name}") for name in ("control", "copied"))
    try:
        os.mkdir(empty)
        _copy(empty, copy)
    except OSError:
        return False
    finally:
        for tree in (empty, copy):
            remove_tree(tree)
    return True


def is_empty(path: Path) -> bool:
    """Of a directory that its owner may have shut."""
    with contextlib.closing(_Cursor(path)) as place, os.scandir(place.fd) as entries:
        return next(entries, None) is None


def remove_tree(path: Path) -> None:
    """Remove a tree, whatever modes its directories have; fine when it does not exist.

    What others do in it meanwhile, as a sweep by another process does, is no reason to give up before the deadline.
    """
    deadline = time.monotonic() + _RIVAL_S
    while True:
        try:
            return _remove(path)
        except OSError as error:
            if error.errno not in _RIVALLED:
                raise
            if not path.exists():
                return
            if time.monotonic() > deadline:
                said = f"{path} cannot be removed in {_RIVAL_S:.0f} s: something is still writing there ({error})"
                raise OSError(error.errno, said) from error
        time.sleep(0.01)


class _Cursor:
    """A place in a tree, moved down by name and up again; `fd` is the directory there.

    A directory that its owner shut is opened, and shut again behind it; in a tree to be removed it is left open, so
    that nobody else who removes the same tree is shut in.
    """

    def __init__(self, root: Path, shut_again: bool = True) -> None:
        self.fd, shut = _open_owned(str(root), _DIRECTORY, None)
        self._above: list[tuple[int, int, str, int | None]] = []
        self._root_mode = shut if shut_again else None
        self._shut_again = shut_again

    def down(self, name: str) -> None:
        info = os.fstat(self.fd)
        below, shut = _open_owned(name, _DIRECTORY, self.fd)
        self._above.append((info.st_dev, info.st_ino, name, shut if self._shut_again else None))
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

    def close(self) -> None:
        """Leave every directory as it was found."""
        with contextlib.suppress(OSError):
            while self._above:
                os.close(self.up())
        if self._root_mode is not None:
            os.fchmod(self.fd, self._root_mode)
        os.close(self.fd)


class _Copy:
    """One copy under way. A file of several names has a further one in the directory `several`, to link the next from:
    the way to its first may be longer than a path can be."""

    def __init__(self, source: _Cursor, target: _Cursor, several: Path, first_id: int) -> None:
        self._source = source
        self._target = target
        self._several = os.open(several, _DIRECTORY)
        self._first_id = first_id
        self._links: dict[tuple[int, int], str] = {}

    def run(self) -> None:
        try:
            self._walk()
        finally:
            os.close(self._several)

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
        if info.st_nlink > 1 and not _is_whiteout(info):
            self._linked(name, info)
        else:
            self._made(name, info)

    def _made(self, name: str, info: os.stat_result) -> None:
        source, target = self._source.fd, self._target.fd
        if stat.S_ISREG(info.st_mode):
            self._content(name, info)
            return
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        else:  # a whiteout is a character device 0, 0, which anyone may make; else a FIFO or a socket
            os.mknod(name, info.st_mode, info.st_rdev, dir_fd=target)
        if os.geteuid() == 0 and not _is_whiteout(info):
            os.chown(name, *self._owner(info), dir_fd=target, follow_symlinks=False)

    def _linked(self, name: str, info: os.stat_result) -> None:
        known = self._links.get((info.st_dev, info.st_ino))
        if known is not None:
            os.link(known, name, src_dir_fd=self._several, dst_dir_fd=self._target.fd, follow_symlinks=False)
            return
        self._made(name, info)
        known = self._links[info.st_dev, info.st_ino] = str(len(self._links))
        os.link(name, known, src_dir_fd=self._target.fd, dst_dir_fd=self._several, follow_symlinks=False)

    def _content(self, name: str, info: os.stat_result) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        from_fd, shut = _open_owned(name, flags, self._source.fd)
        try:
            to_fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._target.fd)
            try:
                _copy_data(from_fd, to_fd)
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
    with contextlib.closing(_Cursor(path, shut_again=False)) as place:
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


def _copy_data(source: int, target: int) -> None:
    """What lies between holes, and the length."""
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    end = 0
    while end < size:
        try:
            at = os.lseek(source, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # the rest is a hole
            raise
        end = os.lseek(source, at, os.SEEK_HOLE)
        os.lseek(target, at, os.SEEK_SET)
        while at < end and (sent := os.sendfile(target, source, at, min(end - at, 1 << 20))):
            at += sent


def _copy_opaque(source: int, target: int) -> None:
    """The mark that the kernel would read, and not the other kind, which commands may have set themselves."""
    name = "trusted.overlay.opaque" if os.geteuid() == 0 else "user.overlay.opaque"
    with contextlib.suppress(OSError):  # absent
        os.setxattr(target, name, os.getxattr(source, name))
