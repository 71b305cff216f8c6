"""What has changed below a directory of this machine since it was last asked, as the kernel tells it.

Owns `Watch`, over inotify. The kernel notes a change before the call that made it returns, so who asks after a command
has ended is told of all it did. Where it cannot know everything it says so, by None: events were lost, a directory came
or went, or a file that decides which files there are was touched. Not offered on file systems whose changes may come
from elsewhere (networks, FUSE). A file written through a memory map is noted when it is closed, and one that has a
second name outside is not noted at all: who asks takes care of those itself. Reads no file.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from etude.host import beneath

MOST_FOLDERS, _MOST_EVENTS = 30_000, 20_000
_LOCAL = {0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0x2FC12FC1, 0xF2F52010, 0xCA451A4E}
"""ext, XFS, btrfs, tmpfs, overlay, ZFS, F2FS, bcachefs: `statfs` calls them so."""
_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED, _CREATE, _DELETE, _SELF = 0x2, 0x4, 0x8, 0xC0, 0x100, 0x200, 0xC00
_ONLY_DIRECTORY, _IS_DIRECTORY = 0x01000000, 0x40000000
_WATCHED = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _SELF | _ONLY_DIRECTORY
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16
_DECIDE = (".git", ".gitignore")
"""Files of these names decide which others there are."""
_MAKE_ONE = ("HEAD", "objects", "refs", "commondir")
"""Those make a directory `.git` one, and what is around it a repository of its own."""


class Watch:
    """Of the directory `root`. `close` it, or its watches stay as long as the process."""

    def __init__(self, root: Path) -> None:
        """Raises OSError where this system or this file system cannot tell."""
        self._root = root
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1") or self._file_system() not in _LOCAL:
            raise OSError(f"{root}: changes there cannot be watched")
        self._fd = -1
        self._begin()
        self._device, self._inode = _number(root)
        self.covered: set[str] = set()
        """The directories whose files are watched, by their paths below the root; "" is the root."""

    def cover(self, but: Collection[str] = ()) -> None:
        """Watch all directories, without `but` and what is below those. What happened before is forgotten, and what was
        watched before is not any more. Raises OSError where that is too many."""
        self._begin()
        self.covered.clear()
        waiting = [""]
        for folder, handle in beneath.each_folder(self._root, _taken_from(waiting)):
            if (watched := self._watch(folder, handle)) is None or folder.endswith("/.git"):
                continue
            with os.scandir(watched) as entries:
                inside = [f"{folder}/{each.name}".lstrip("/") for each in entries if each.is_dir(follow_symlinks=False)]
            waiting += [each for each in inside if each not in but and each != ".git"]

    def add(self, folder: str) -> None:
        """Watch one directory."""
        for _, handle in beneath.each_folder(self._root, [folder]):
            self._watch(folder, handle)

    def _begin(self) -> None:
        self.close()
        self._folders: dict[int, str] = {}
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def _watch(self, folder: str, handle: int | OSError) -> int | None:
        """Its handle; None for what is gone, or a link, and is not watched: its parent tells."""
        if isinstance(handle, FileNotFoundError | NotADirectoryError):
            return None
        if isinstance(handle, OSError):
            raise handle
        if os.fstat(handle).st_dev != self._device:
            raise OSError(f"{folder} is of another file system")
        number = self._libc.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % handle, _WATCHED)
        if number < 0 or len(self.covered) >= MOST_FOLDERS:
            raise OSError(ctypes.get_errno(), f"{folder} cannot be watched")
        self._folders[number] = folder
        self.covered.add(folder)
        return handle

    def changed(self) -> set[str] | None:
        """Paths of files that came, went or may be other than at the last call; None: anything may be."""
        found: set[str] = set()
        everything = False
        for seen, (number, mask, name) in enumerate(self._events()):
            folder = self._folders.get(number)
            if folder is not None and folder.endswith("/.git"):  # of a repository within, of which git has the say
                everything |= name in _MAKE_ONE or not name
                continue
            decides = not name or name in _DECIDE or mask & _IS_DIRECTORY
            everything |= folder is None or bool(decides)
            found.add(f"{folder}/{name}".lstrip("/"))
            if seen > _MOST_EVENTS:  # who makes them as fast as they are read is not waited for
                return None
        return None if everything else found

    def in_place(self) -> bool:
        """Whether the root's path still leads to the directory that is watched."""
        try:
            return _number(self._root) == (self._device, self._inode)
        except OSError:
            return False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)

    def _events(self) -> Iterator[tuple[int, int, str]]:
        while True:
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                yield number, mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))
                at += length

    def _file_system(self) -> int:
        found = ctypes.create_string_buffer(512)
        if self._libc.statfs(os.fsencode(self._root), found):
            return 0
        return int.from_bytes(found.raw[:8], "little") & 0xFFFFFFFF  # its first field, a word


def _number(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


def _taken_from(waiting: list[str]) -> Iterator[str]:
    """The last first: what was found in a directory comes right after it."""
    while waiting:
        yield waiting.pop()
