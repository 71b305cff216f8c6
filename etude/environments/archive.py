"""Directories of a sandbox, taken out of it: what outlives the sandbox, its backend and the process that made both.

Owns `Archive`, `take_out`, `unpack` and `opened`. A snapshot belongs to the backend that made it; an archive is bytes,
and can be laid into a sandbox of another process, machine or backend. It holds files, directories, symbolic and hard
links with their modes and times; no processes, sockets or devices. Talks to any `Sandbox`; decides nothing about what
it holds.

Both say whose fault it is where they fail: SandboxSpoiled where what is in the directories will not be moved,
StorageFailed where the disk is to blame. A sandbox that has ended says nothing of why.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import tarfile
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial

from etude.environments.base import WORKSPACE, Sandbox, TarChunk
from etude.errors import SandboxError, SandboxSpoiled

_OURS = {errno.EIO, errno.ENOMEM, errno.ENFILE, errno.ENOSYS, errno.EBADMSG}
"""What no content of a directory brings about: a disk or a machine that fails, an archive that was torn."""


class StorageFailed(SandboxError):
    """A disk, a memory or an archive failed: ours, whatever is in it."""


@dataclass(frozen=True)
class Archive:
    """`places` are the directories it was taken of, `parts` their tars, each with the directory it belongs in."""

    places: tuple[str, ...] = (WORKSPACE,)
    parts: Collection[tuple[str, bytes]] = ()

    def encoded(self) -> bytes:
        """As one file: a line of JSON that says what follows, and the tars."""
        said = {"places": self.places, "parts": [[directory, len(tar)] for directory, tar in self.parts]}
        return b"".join([json.dumps(said).encode(), b"\n", *(tar for _, tar in self.parts)])

    @classmethod
    def decoded(cls, data: bytes) -> Archive:
        """Raises ValueError for what is no whole archive."""
        head, _, rest = data.partition(b"\n")
        said, at, parts = json.loads(head), 0, []
        for directory, size in said["parts"]:
            parts.append((directory, rest[at : at + size]))
            at += size
        if at != len(rest):
            raise ValueError(f"an archive of {at} bytes has {len(rest)}")
        return cls(tuple(said["places"]), tuple(parts))


async def take_out(sandbox: Sandbox, *places: str, still: bool = True) -> Archive:
    """The directories, /workspace if none is named, in as many tars as it takes; one that is not there is left out.

    All of it is one moment's: every process stands still meanwhile, unless `still` is False, for whoever lets others
    read the sandbox beside it. What its owner has shut is in it all the same.
    Raises SandboxSpoiled where something cannot be read, or is more than the sandbox's `state_mb` and `state_entries`,
    or by itself more than one archive takes; and where processes do not stand still.
    """
    there, parts = [], []
    try:
        if still:
            await sandbox.pause()
        for place in places or (WORKSPACE,):
            with contextlib.suppress(FileNotFoundError):
                what = f"{place} cannot be taken out"
                parts += [(place, tar) for tar in await all_parts(partial(sandbox.part, place), what)]
                there.append(place)
    finally:
        if still:
            await sandbox.resume()
    return Archive(tuple(there), tuple(parts))


async def unpack(archive: Archive, sandbox: Sandbox) -> None:
    """In place of what the sandbox has there: what is not in the archive is gone afterwards."""
    try:
        for place in archive.places:
            for entry in await sandbox.list_dir(place):
                await sandbox.remove(f"{place}/{entry.name}", recursive=True)
        for directory, tar in archive.parts:
            await sandbox.upload(tar, directory)
            del tar  # before the next is made
    except OSError as error:
        raise blamed(error, f"cannot lay {', '.join(archive.places)} into a fresh sandbox") from error


def opened(tar: bytes) -> tarfile.TarFile:
    """A sandbox's tar, for reading, with all members known. `tarfile.open` would guess: it takes one for gzip whose
    first name begins so, and reads what a command has put there.

    Raises StorageFailed for what is no whole tar."""
    try:
        found = tarfile.TarFile(fileobj=io.BytesIO(tar), encoding="utf-8", errors="surrogateescape")
        found.getmembers()
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise StorageFailed(f"no whole tar archive: {error}") from error
    end = tar[found.offset : found.offset + tarfile.BLOCKSIZE]
    if end != bytes(tarfile.BLOCKSIZE):  # tarfile takes a damaged header for the end
        raise StorageFailed(f"no whole tar archive: it is damaged at byte {found.offset}")
    return found


def blamed(error: OSError, what: str) -> SandboxError:
    """`error` is what a sandbox answered when it was to read or write what commands can have made."""
    kind = StorageFailed if error.errno in _OURS else SandboxSpoiled
    return kind(f"{what}: {error}"[:2000])  # a path may be thousands of characters long


async def all_parts(part: Callable[[int], Awaitable[TarChunk]], what: str) -> list[bytes]:
    """The tars of a directory, of what gives the one that begins with an entry; `what` it is for, in errors."""
    tars: list[bytes] = []
    begin = 0
    try:
        while not tars or begin:
            found = await part(begin)
            tars.append(found.tar)
            begin = found.next
    except FileNotFoundError:
        raise
    except OSError as error:
        raise blamed(error, what) from error
    return tars
