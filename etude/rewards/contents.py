"""What a state holds: the one reading of the archives that a sandbox made, for all who judge them.

    Archive ──contents_of──► {path: Entry} ──archive_of──► Archive, which the verifier's sandbox gets

Owns both. No two readers of tar agree on every archive, and where they differ a session could show one workspace and
be paid for another. So whoever judges reads here, and what is laid down is written anew from what was read, in the form
that the guest itself writes. What a sandbox would refuse, or could be laid down in more than one way, is refused here;
and as the names of one file cost an archive next to nothing, so is a state that is many times larger than its archive:
whoever reads every name of it ends. Talks to nobody.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from etude.environments.archive import Archive, opened
from etude.environments.base import ARCHIVE_MAX
from etude.errors import SandboxSpoiled

LINKED, SHOWN_LEAST = 4, 64 << 20
"""All names of a state may show so many times what its archive has; so many bytes in any case."""
_END = bytes(2 * tarfile.BLOCKSIZE)
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_TIMES = 1 << 33
"""A header has no room for later ones."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A file, a directory or a symbolic link, of a place of the archive. The names of one file share it."""

    place: str
    member: tarfile.TarInfo
    tar: bytes

    @property
    def kind(self) -> bytes:
        """As tar has it: of a file, a directory or a symbolic link."""
        return tarfile.REGTYPE if self.member.isreg() else self.member.type

    @property
    def size(self) -> int:
        return self.member.size if self.member.isreg() else 0

    @property
    def data(self) -> bytes | None:
        """Of a file; nothing of a link, and None for a directory. Read anew each time."""
        if self.member.isdir():
            return None
        return self.tar[self.member.offset_data : self.member.offset_data + self.size]

    @property
    def target(self) -> str | None:
        """None for what is no symbolic link."""
        return self.member.linkname if self.member.issym() else None


def contents_of(archive: Archive) -> dict[str, Entry]:
    """Everything in it, by its absolute path. Raises SandboxSpoiled for what cannot be laid down as it is read, and
    StorageFailed for a torn archive."""
    found: dict[str, Entry] = {}
    for place, data in archive.parts:
        with opened(data) as tar:
            for member in tar:
                _enter(found, Entry(place, member, data))
    above = {""}
    for path, entry in found.items():
        parent = posixpath.dirname(path)
        while parent not in above and parent != entry.place:
            if parent in found and not found[parent].member.isdir():
                raise SandboxSpoiled(f"{parent[:200]!r} is no directory, and yet something is in it")
            above.add(parent)
            parent = posixpath.dirname(parent)
    shown = sum(entry.size for entry in found.values())
    if shown > max(LINKED * archive.size, SHOWN_LEAST):
        raise SandboxSpoiled(f"hard links show {archive.size >> 20} MiB as {shown >> 20} MiB, too much to be read")
    return found


def _enter(found: dict[str, Entry], entry: Entry) -> None:
    """What comes later replaces what has its name."""
    member = entry.member
    path = _path(entry.place, member.name)
    if path == entry.place:
        return
    if member.islnk():
        linked = found.get(_path(entry.place, member.linkname))
        if linked is None or linked.member.isdir() or linked.place != entry.place:
            raise SandboxSpoiled(f"{path[:200]!r} is a hard link to {member.linkname[:200]!r}, which is no file of it")
        entry = linked
    elif not (member.isdir() or member.issym() or member.type in _FILES) or member.issparse():
        raise SandboxSpoiled(f"{path[:200]!r} is no file, directory or link")
    elif "\0" in member.linkname:
        raise SandboxSpoiled(f"{path[:200]!r} is a link to what is no name")
    if path in found and found[path].member.isdir() != entry.member.isdir():
        raise SandboxSpoiled(f"{path[:200]!r} is a directory and none")
    found[path] = entry


def _path(place: str, name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise SandboxSpoiled(f"{name[:200]!r} leads out of {place}")
    return posixpath.join(place, *parts)


def archive_of(places: tuple[str, ...], contents: Mapping[str, Entry]) -> Archive:
    """These entries of an archive of `places`, and nothing else."""
    parts: list[tuple[str, bytearray]] = []
    named: dict[Entry, str] = {}
    for path, entry in contents.items():
        first = named.setdefault(entry, path)
        header = tarfile.TarInfo(_name(entry, path))
        header.mode, header.type = entry.member.mode, entry.kind
        header.mtime = int(entry.member.mtime) if 0 <= entry.member.mtime < _TIMES else 0
        header.linkname, data = entry.target or "", b""
        if first != path:
            header.type, header.linkname = tarfile.LNKTYPE, _name(entry, first)
        elif entry.size:
            data = entry.data or b""
        header.size = len(data)
        block = header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + data
        block += bytes(-len(block) % tarfile.BLOCKSIZE)
        if not parts or parts[-1][0] != entry.place or len(parts[-1][1]) + len(block) + len(_END) > ARCHIVE_MAX:
            parts.append((entry.place, bytearray()))
        parts[-1][1].extend(block)
    return Archive(places, tuple((place, bytes(part + _END)) for place, part in parts))


def _name(entry: Entry, path: str) -> str:
    return path[len(entry.place) :].lstrip("/")
