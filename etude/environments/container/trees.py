"""The workspace that an image has of its own, as archives.

Owns the division of what is too large for one archive. Everything arrives as the sandbox's user, whoever owned it.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

from etude.environments.archive import opened
from etude.environments.base import ARCHIVE_MAX
from etude.errors import ConfigError

_KEPT = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
_PART = ARCHIVE_MAX - (1 << 20)
_HEADERS = 2048
"""More than those of most members take; `_PART` leaves room for the others."""


def workspace_of_image(archive: bytes, image: str) -> Iterator[bytes]:
    """The engine's tar of an image's workspace, whose members all lie below one directory, as tars for a sandbox."""
    with opened(archive) as source:
        batch: list[tarfile.TarInfo] = []
        size = 0
        for member in source:
            if member.type not in _KEPT or not _below_top(member.name):
                continue
            if member.size > _PART:
                raise ConfigError(f"image {image}: {member.name} has {member.size >> 20} MiB; keep it elsewhere in it")
            if size + member.size + _HEADERS > _PART:
                yield _written(source, batch)
                batch, size = [], 0
            batch.append(member)
            size += member.size + _HEADERS
        yield _written(source, batch)


def _written(source: tarfile.TarFile, members: list[tarfile.TarInfo]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target:
        for member in members:
            link = _below_top(member.linkname) if member.islnk() else member.linkname
            moved = member.replace(name=_below_top(member.name), linkname=link)
            moved.pax_headers = {}  # they name the old place
            target.addfile(moved, source.extractfile(member) if member.isreg() else None)
    return out.getvalue()


def _below_top(name: str) -> str:
    return name.strip("/").partition("/")[2]
