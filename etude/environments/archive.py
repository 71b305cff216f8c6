"""Directories of a sandbox, taken out of it: what outlives the sandbox, its backend and the process that made both.

Owns `Archive`, `take_out` and `lay_down`. A snapshot belongs to the backend that made it; an archive is bytes, and can
be laid into a sandbox of another process, machine or backend. It holds files, directories, symbolic and hard links with
their modes and times; no processes, sockets or devices. Talks to any `Sandbox`; decides nothing about what it holds.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import shlex
import tarfile
from dataclasses import dataclass

from etude.environments.base import WORKSPACE, Sandbox
from etude.errors import SandboxError

_COMMAND_S = 60.0


@dataclass(frozen=True)
class Archive:
    """`places` are the directories it was taken of, `parts` their tars, each with the directory it belongs in."""

    places: tuple[str, ...] = (WORKSPACE,)
    parts: tuple[tuple[str, bytes], ...] = ()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(len(tar) for _, tar in self.parts)

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


async def take_out(sandbox: Sandbox, *places: str) -> Archive:
    """The directories, /workspace if none is named; one that is too large for a single tar comes in several, and one
    that is not there is left out.

    What its owner has shut is opened first, as an owner may. Raises OSError where a file can still not be read, or is
    by itself too large (EFBIG): both are the doing of whoever worked there.
    """
    places = places or (WORKSPACE,)
    try:
        return await _taken(sandbox, places)
    except PermissionError:
        paths = " ".join(map(shlex.quote, places))
        await sandbox.exec(f"chmod -R u+rwX {paths}", cwd="/", timeout_s=_COMMAND_S)
        return await _taken(sandbox, places)


async def lay_down(archive: Archive, sandbox: Sandbox) -> None:
    """In place of what the sandbox has there: what is not in the archive is gone afterwards. Raises SandboxError."""
    try:
        for place in archive.places:
            for entry in await sandbox.list_dir(place):
                await sandbox.remove(f"{place}/{entry.name}", recursive=True)
        for directory, tar in archive.parts:
            await sandbox.upload(tar, directory)
    except OSError as error:
        raise SandboxError(f"cannot lay {', '.join(archive.places)} into a fresh sandbox: {error}") from error


async def _taken(sandbox: Sandbox, places: tuple[str, ...]) -> Archive:
    there, parts = [], []
    for place in places:
        with contextlib.suppress(FileNotFoundError):
            parts += await _parts(sandbox, place)
            there.append(place)
    return Archive(tuple(there), tuple(parts))


async def _parts(sandbox: Sandbox, directory: str) -> list[tuple[str, bytes]]:
    try:
        return [(directory, await sandbox.download(directory))]
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
    parts = []
    for entry in await sandbox.list_dir(directory):
        path = f"{directory}/{entry.name}"
        if entry.is_dir:
            parts += await _parts(sandbox, path)
        else:
            parts.append((directory, await _single(sandbox, path, entry.name)))
    return parts


async def _single(sandbox: Sandbox, path: str, name: str) -> bytes:
    """One file or link; a link to a directory would be followed, so it is made again from what it says."""
    said = await sandbox.exec(f"readlink -n -- {shlex.quote(path)}", timeout_s=_COMMAND_S)
    if said.exit_code:
        return await sandbox.download(path)
    link, buffer = tarfile.TarInfo(name), io.BytesIO()
    link.type, link.linkname = tarfile.SYMTYPE, said.output.decode("utf-8", "surrogateescape")
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(link)
    return buffer.getvalue()
