"""Paths inside a file tree that is not ours to trust: resolved as the tree's own processes would, never leaving it.

Owns `Confined`: names are looked up from the tree's root, `..` stops there, and a symlink, an absolute one too, leads
to a place in the tree. What it writes, it writes at such a place. The tree must not change meanwhile, which
holds for one that nothing runs in.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from etude.environments.trees import remove_tree
from etude.errors import SandboxError

_MAX_LINKS = 40  # as the kernel's own
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Confined:
    """One tree. Paths given to it are the tree's own; a leading slash means its root, and so does none."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def resolve(self, path: str, follow: bool = True) -> Path:
        """The host's path of `path`, no part of it a symlink, except the last where `follow` is False.

        What does not exist is taken as it is written. Raises OSError(ELOOP) for a circle of links.
        """
        done: list[str] = []
        ahead = _parts(path)
        links = 0
        while ahead:
            part = ahead.pop(0)
            if part == "..":
                done = done[:-1]
                continue
            here = self.root.joinpath(*done, part)
            if (ahead or follow) and here.is_symlink():
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(here)
                if target.startswith("/"):
                    done = []
                ahead = [*_parts(target), *ahead]
            else:
                done.append(part)
        return self.root.joinpath(*done)

    def inside(self, path: Path) -> str:
        """The tree's own name for a host's path below its root."""
        return "/" + path.relative_to(self.root).as_posix().removeprefix(".")

    def directory(self, path: str, owner: tuple[int, int] = (0, 0)) -> Path:
        """The directory at `path`, made with its parents (0755, `owner`) where missing."""
        place = self.root
        for part in self.resolve(path).relative_to(self.root).parts:
            place /= part
            if not place.is_dir():
                if place.exists():
                    raise SandboxError(f"{self.inside(place)} is not a directory, so {path} cannot be made below it")
                place.mkdir()
                place.chmod(0o755)
                os.chown(place, *owner)
        return place

    def vacate(self, path: str, for_directory: bool = False) -> Path:
        """Where an entry of this name goes: its parents made, what was there removed, unless both are directories."""
        parent, _, name = path.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            if for_directory:
                return self.directory(path)
            raise SandboxError(f"{path!r} is no name for a file")
        place = self.directory(parent) / name
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            place.unlink()
        elif place.exists() and not for_directory:
            remove_tree(place)
        return place


def write_file(place: Path, content: BinaryIO) -> None:
    """Write a new file. Its owner and mode are the caller's to set."""
    with os.fdopen(os.open(place, _NEW_FILE, 0o600), "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)


def own(place: Path, uid: int, gid: int, mode: int) -> None:
    """Set owner and mode of the entry itself, not of what a symlink names."""
    os.chown(place, uid, gid, follow_symlinks=False)  # first: it clears setuid bits
    if not stat.S_ISLNK(place.lstat().st_mode):
        os.chmod(place, mode & 0o7777)


def _parts(path: str) -> list[str]:
    return [part for part in PurePosixPath("/", path).parts[1:] if part != "."]
