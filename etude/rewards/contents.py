"""What a state holds: the one reading of the archives that a sandbox made, for all who judge them.

    Archive ──contents_of──► {path: Entry} ──archive_of──► Archive, which the verifier's sandbox gets

Owns both. No two readers of tar agree on every archive, and where they differ a session could show one workspace and
be paid for another. So whoever judges reads here, and what is laid down is written anew from what was read, in the form
that the guest itself writes. What a sandbox would refuse, or could be laid down in more than one way, is refused here;
and as the names of one file cost an archive next to nothing, so is a state that is many times larger than its archive:
whoever reads every name of it ends. What is written anew is not kept beside what was read: a state may have hundreds of
megabytes, and many are judged at once. Talks to nobody.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from operator import eq

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
        return None if self.member.isdir() else self.beginning(self.size)

    def beginning(self, most: int) -> bytes:
        """So many bytes of a file, or all it has; the rest is not copied."""
        return bytes(self.view[:most])

    @property
    def view(self) -> memoryview:
        """Of a file, what it holds, where it is."""
        return memoryview(self.tar)[self.member.offset_data : self.member.offset_data + self.size]

    @property
    def target(self) -> str | None:
        """None for what is no symbolic link."""
        return self.member.linkname if self.member.issym() else None


def contents_of(archive: Archive) -> dict[str, Entry]:
    """Everything in it, by its absolute path. Raises SandboxSpoiled for what cannot be laid down as it is read, and
    StorageFailed for a torn archive."""
    found, size = dict[str, Entry](), 0
    for place, data in archive.parts:
        size += len(data)
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
    if shown > max(LINKED * size, SHOWN_LEAST):
        raise SandboxSpoiled(f"hard links show {size >> 20} MiB as {shown >> 20} MiB, too much to be read")
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


@dataclass(frozen=True, eq=False)
class Written(Collection[tuple[str, bytes]]):
    """The parts of an archive, each written anew where it is asked for, so that not all are in memory at once."""

    contents: Mapping[str, Entry]
    """What is in it, known without reading it again."""
    plans: list[tuple[str, list[bytes | memoryview]]] = field(default_factory=list)
    """Of each part its place, and the pieces that its tar is put together from."""

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return ((place, b"".join(pieces)) for place, pieces in self.plans)

    def __contains__(self, part: object) -> bool:
        return any(part == each for each in self)

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same, a part beside a part."""
        return isinstance(other, Collection) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None


def archive_of(places: tuple[str, ...], contents: Mapping[str, Entry]) -> Archive:
    """These entries of an archive of `places`, and nothing else. Its parts are `Written`."""
    written, size = Written(contents), 0
    named: dict[Entry, str] = {}
    for path, entry in contents.items():
        first = named.setdefault(entry, path)
        header = tarfile.TarInfo(_name(entry, path))
        header.mode, header.type = entry.member.mode, entry.kind
        header.mtime = int(entry.member.mtime) if 0 <= entry.member.mtime < _TIMES else 0
        header.linkname = entry.target or ""
        if first != path:
            header.type, header.linkname = tarfile.LNKTYPE, _name(entry, first)
        else:
            header.size = entry.size
        head = header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        padding = bytes(-header.size % tarfile.BLOCKSIZE)
        block = len(head) + header.size + len(padding)
        if not written.plans or written.plans[-1][0] != entry.place or size + block + len(_END) > ARCHIVE_MAX:
            written.plans.append((entry.place, []))
            size = 0
        written.plans[-1][1].extend((head, entry.view[: header.size], padding))
        size += block
    for _, pieces in written.plans:
        pieces.append(_END)
    return Archive(places, written)


def entries_of(archive: Archive) -> Mapping[str, Entry]:
    """As `contents_of`; of what was written here the entries it was written of, so that nothing is read again."""
    return archive.parts.contents if isinstance(archive.parts, Written) else contents_of(archive)


def _name(entry: Entry, path: str) -> str:
    return path[len(entry.place) :].lstrip("/")
