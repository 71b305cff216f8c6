"""How the guest agent is asked for a verb: a letter, what follows it, and what its answer means.

Owns the form of each as `guest/serve.c` reads and writes it, and what an errno that it answers with is raised as. The
frames around them are the business of `channel`.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from etude.environments.base import ARCHIVE_MAX, DirEntry, Metrics, ProcessInfo, Resources, TarChunk
from etude.environments.process import CUT_NOTE_BYTES

FRAME_MAX = 64 << 20
_EXEC_LIMITS = struct.Struct("<II")
_READ_LIMIT = struct.Struct("<Q")
_PACK = struct.Struct("<4Q")
_WHOLE = 2**64 - 1
_ANY = 2**63
_ENTRY = struct.Struct("<?Q")
_METRICS = struct.Struct("<QQIQQ")
_COMMAND = struct.Struct("<I?")
_MAX_TIMEOUT_MS = 2**31


@dataclass(frozen=True)
class GuestVerb:
    """One verb: its letter, the body that asks for it, and the value that an answer's body is."""

    letter: str
    body: Callable[..., bytes | tuple[bytes, ...]]
    value: Callable[[bytes], Any] = lambda body: None


def encoded(text: str) -> bytes:
    """Raises OSError(EINVAL), as for any other impossible path, for text no path or command can hold."""
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        raise OSError(errno.EINVAL, "not encodable as UTF-8", text) from None
    if 0 in data:
        raise OSError(errno.EINVAL, "holds a NUL character", text)
    return data


def nul_terminated(texts: Iterator[str]) -> bytes:
    """Each with a NUL behind it."""
    return b"".join(encoded(text) + b"\0" for text in texts)


def command(command: str, cwd: str, timeout_s: float | None, env: Mapping[str, str], max_output_bytes: int) -> bytes:
    """What starts one, in the foreground or not."""
    cap = min(max(max_output_bytes - CUT_NOTE_BYTES, 0), FRAME_MAX // 2)
    timeout_ms = 0 if timeout_s is None else min(max(int(timeout_s * 1000), 1), _MAX_TIMEOUT_MS)
    texts = (cwd, command, *(f"{key}={value}" for key, value in env.items()))
    return _EXEC_LIMITS.pack(timeout_ms, cap) + nul_terminated(iter(texts))


def _records(body: bytes, head: struct.Struct) -> Iterator[tuple[Any, ...]]:
    """What is listed: a head of fixed size, and a text."""
    at = 0
    while at < len(body):
        end = body.index(0, at + head.size)
        yield *head.unpack_from(body, at), os.fsdecode(body[at + head.size : end])
        at = end + 1


def _entries(body: bytes) -> list[DirEntry]:
    return sorted(
        (DirEntry(name, is_dir, size) for is_dir, size, name in _records(body, _ENTRY)), key=lambda entry: entry.name
    )


def _commands(body: bytes) -> list[ProcessInfo]:
    """Oldest first."""
    return [ProcessInfo(number, text, running) for number, running, text in _records(body, _COMMAND)][::-1]


def _metrics(body: bytes) -> Metrics:
    """What the agent sees from inside; its memory leaves out what the kernel holds for the sandbox."""
    cpu_us, memory, pids, disk, uptime_ms = _METRICS.unpack(body)
    return Metrics(cpu_us / 1e6, memory, pids, disk, uptime_ms / 1e3)


def _pack(path: str, skip: int, resources: Resources) -> bytes:
    most = resources.state_mb << 20, resources.state_entries
    return _PACK.pack(ARCHIVE_MAX, *most, min(skip, _ANY)) + encoded(path)


ASKED: dict[str, GuestVerb] = {
    "processes": GuestVerb("c", lambda: b"", _commands),
    "read_file": GuestVerb("r", lambda path, max_bytes: _READ_LIMIT.pack(max_bytes) + encoded(path), bytes),
    "write_file": GuestVerb("w", lambda path, data: b"".join((encoded(path), b"\0", data))),
    "list_dir": GuestVerb("l", lambda path: encoded(path), _entries),
    "remove": GuestVerb("d", lambda path, recursive: bytes([recursive]) + encoded(path)),
    "upload": GuestVerb("u", lambda path, archive: (encoded(path) + b"\0", archive)),
    "download": GuestVerb(
        "p",
        lambda path: _PACK.pack(ARCHIVE_MAX, ARCHIVE_MAX, _ANY, _WHOLE) + encoded(path),
        lambda body: TarChunk.decoded(body).tar,
    ),
    "part": GuestVerb("p", _pack, TarChunk.decoded),
    "metrics": GuestVerb("m", lambda: b"", _metrics),
}
"""Commands are streams, and asked for by `Channel` itself."""


def check(status: int, failed_at: bytes, path: str = "", resources: Resources | None = None, **_: object) -> None:
    """Raise what the agent answered a verb with, whose arguments these are."""
    if not status:
        return
    said = os.strerror(status)
    if status == errno.EBADMSG:
        said = "not a tar archive, or a damaged one"
    elif status == errno.EKEYREJECTED:  # of the guard of a workspace
        status, said = errno.EPERM, "programs on the user's machine obey it, and only the user may write it"
    elif status == errno.EPERM and failed_at:
        said = "a member that leads outside the directory it is unpacked in"
    elif status in (errno.EFBIG, errno.E2BIG) and resources is not None:
        said = (
            f"more is there than {resources.state_mb} MiB or {resources.state_entries} entries, or a file than an "
            "archive takes"
        )
    raise OSError(status, said, f"{path}: {os.fsdecode(failed_at)}" if failed_at else path)
