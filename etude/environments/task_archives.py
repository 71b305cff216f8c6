"""The files of a task as archives that a guest unpacks."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator, Mapping

from etude.environments.base import ARCHIVE_MAX
from etude.environments.store import workspace_paths
from etude.errors import ConfigError

_HEADERS = 2048
"""More than those of any member take."""
_MOST = ARCHIVE_MAX - (64 << 10)


def archives(files: Mapping[str, bytes]) -> Iterator[bytes]:
    """Tar archives with all of `files`, none larger than an agent takes."""
    batch: dict[str, bytes] = {}
    size = 0
    for path, content in files.items():
        takes = len(content) + _HEADERS + 2 * len(path.encode(errors="surrogatepass"))
        if takes > _MOST:
            raise ConfigError(f"files: {path!r} has {len(content)} bytes; a task's file may have {_MOST >> 20} MiB")
        if size + takes > _MOST:
            yield _archive(batch)
            batch, size = {}, 0
        batch[path] = content
        size += takes
    if batch:
        yield _archive(batch)


def _archive(files: Mapping[str, bytes]) -> bytes:
    out, now = io.BytesIO(), int(time.time())
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, path in workspace_paths(files).items():
            member = tarfile.TarInfo(str(path))
            member.size, member.mtime, member.mode = len(files[name]), now, 0o644
            archive.addfile(member, io.BytesIO(files[name]))
    return out.getvalue()
