"""The digest of a file tree, which is an image's identity.

Owns one definition: a Merkle hash over names, kinds, modes, owners, symlink targets, device numbers, file contents, and
which names are one file (hard links). Left out are times, which no two builds share, and extended attributes, which no
image keeps. Reads by directory descriptor and follows no symlink, so a tree cannot make it look elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from etude.errors import SandboxError

MAX_DEPTH = 256
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class TreeInfo:
    """What a tree is and how large: `digest` in hexadecimal, every entry counted, bytes of each file once."""

    digest: str
    entries: int
    size: int


def digest_tree(root: Path) -> TreeInfo:
    """Raises SandboxError for a tree deeper than MAX_DEPTH, which nothing but malice makes."""
    walk = _Walk()
    descriptor = os.open(root, _DIRECTORY)
    try:
        top = walk.directory(descriptor, os.fstat(descriptor), b"")
    finally:
        os.close(descriptor)
    groups = sorted(sorted(paths) for paths in walk.links.values() if len(paths) > 1)
    whole = _hash(b"tree", top, *(_hash(b"links", *paths) for paths in groups))
    return TreeInfo(whole.hex(), walk.entries, walk.size)


class _Walk:
    """One pass over a tree: the counts so far, and the paths of every file that has several."""

    def __init__(self) -> None:
        self.entries = 0
        self.size = 0
        self.links: dict[tuple[int, int], list[bytes]] = defaultdict(list)

    def directory(self, descriptor: int, info: os.stat_result, path: bytes) -> bytes:
        if path.count(b"/") > MAX_DEPTH:
            raise SandboxError(f"a tree of more than {MAX_DEPTH} directories below each other: {path[:80]!r}…")
        with os.scandir(descriptor) as entries:
            names = sorted(os.fsencode(entry.name) for entry in entries)
        parts = []
        for name in names:
            parts += [name, self._entry(name, descriptor, path + b"/" + name)]
        return _hash(b"directory", _owner(info), *parts)

    def _entry(self, name: bytes, parent: int, path: bytes) -> bytes:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        self.entries += 1
        if stat.S_ISDIR(info.st_mode):
            descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
            try:
                return self.directory(descriptor, info, path)
            finally:
                os.close(descriptor)
        if info.st_nlink > 1:
            self.links[info.st_dev, info.st_ino].append(path)
        if stat.S_ISREG(info.st_mode):
            if info.st_nlink == 1 or len(self.links[info.st_dev, info.st_ino]) == 1:
                self.size += info.st_size
            return _hash(b"file", _owner(info), _content(name, parent))
        if stat.S_ISLNK(info.st_mode):
            return _hash(b"symlink", _owner(info), os.readlink(name, dir_fd=parent))
        kind = stat.S_IFMT(info.st_mode)  # a device, FIFO or socket
        return _hash(b"special", _owner(info), f"{kind} {info.st_rdev}".encode())


def _content(name: bytes, parent: int) -> bytes:
    with os.fdopen(os.open(name, _FILE, dir_fd=parent), "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _owner(info: os.stat_result) -> bytes:
    return f"{stat.S_IMODE(info.st_mode):o} {info.st_uid} {info.st_gid}".encode()


def _hash(*parts: bytes) -> bytes:
    """Each part goes in with its length, so that no two lists of parts look alike."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()
