"""The format of a chunk: frames end to end, each whole by its checksums, or passed over.

    chunk   MAGIC, eight random bytes that tell it from an earlier chunk of its number; then frames
    frame   prefix | head | body
    prefix  FRAME (4) kind (1) version (1) 0 (2) head bytes (4) body bytes (8) crc32 of the prefix so far (4),
            little-endian
    head    zstd, with its checksum, of a JSON object; "sections": {name: [start, bytes]} of the body
    body    sections end to end, each compressed by itself, with its checksum

A head is all that an index needs; a section is read only by whoever asks for it. A frame is written at once and never
changed. One that was cut when its writer died is the last of its chunk; damage before that is passed over up to the
next frame. Owns `Frame`, `encoded`, `scan` and `section`. Knows nothing of what is in a head or a section.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from threading import local
from typing import Any, BinaryIO

import zstandard

from etude.errors import CheckpointError

MAGIC = b"etudeAr1"
FRAME = b"\xe7Fr1"
VERSION = 1
START = len(MAGIC) + 8
"""Bytes of a chunk before its first frame."""
_PREFIX = struct.Struct("<4sBBxxIQ")
PREFIX = _PREFIX.size + 4
_LEVEL = 3
_MOST_HEAD, _MOST_SECTION = 1 << 24, 1 << 31
"""Bytes that one may unpack to."""
_WINDOW = 1 << 20


class Kind(IntEnum):
    TASK = 1
    TRAJECTORY = 2
    MARKS = 3
    RESUMED = 4


@dataclass(frozen=True)
class Frame:
    """One frame as a scan finds it."""

    kind: int
    at: int
    """Where in its chunk it begins."""
    body: int
    """Where its body does."""
    stop: int
    head: Mapping[str, Any]


def new_header() -> bytes:
    """What a chunk begins with."""
    return MAGIC + secrets.token_bytes(8)


def encoded(kind: Kind, head: Mapping[str, Any], sections: Mapping[str, bytes] | None = None) -> bytes:
    """A frame; its sections are compressed here."""
    packs, places, body = _contexts().packs, {}, bytearray()
    for name, data in (sections or {}).items():
        piece = packs.compress(data)
        places[name] = [len(body), len(piece)]
        body += piece
    text = json.dumps({**head, "sections": places} if places else head, ensure_ascii=False, separators=(",", ":"))
    packed = packs.compress(text.encode("utf-8", "backslashreplace"))
    prefix = _PREFIX.pack(FRAME, kind, VERSION, len(packed), len(body))
    return prefix + zlib.crc32(prefix).to_bytes(4, "little") + packed + body


def nonce_of(file: BinaryIO) -> bytes | None:
    """What tells the chunk from others of its number; None for a file that is none, or not yet."""
    start = os.pread(file.fileno(), START, 0)
    return start[len(MAGIC) :] if len(start) == START and start.startswith(MAGIC) else None


def scan(file: BinaryIO, at: int = START) -> Iterator[Frame]:
    """Every whole frame from `at` on. Somebody may be adding to the file: what is not whole yet is not there yet."""
    size = os.fstat(file.fileno()).st_size
    while at + PREFIX <= size:
        found = _prefix_at(file, at)
        if found is None:
            at = _next_frame(file, at + 1, size)
            continue
        kind, head_bytes, body_bytes = found
        stop = at + PREFIX + head_bytes + body_bytes
        if stop > size:
            nearer = _next_frame(file, at + 1, size)  # a length that damage has made, or an end that was cut
            if nearer >= size:
                return
            at = nearer
            continue
        head = os.pread(file.fileno(), head_bytes, at + PREFIX)
        if (told := _unpacked(head)) is not None:
            yield Frame(kind, at, at + PREFIX + head_bytes, stop, told)
        at = stop


def frame_at(file: BinaryIO, at: int) -> Frame:
    """The frame that begins there. Raises CheckpointError where there is none."""
    frame = next(scan(file, at), None)
    if frame is None or frame.at != at:
        raise CheckpointError(f"{file.name}: has no whole frame at byte {at}: it was cut or damaged")
    return frame


def section(file: BinaryIO, frame: Frame, name: str) -> bytes:
    """A section of a frame, unpacked; empty where it has none of that name. Raises CheckpointError for damage."""
    places = frame.head.get("sections", {})
    if not isinstance(places, dict) or (place := places.get(name)) is None:
        return b""
    if not _is_in(place, frame.stop - frame.body):
        raise CheckpointError(f"{file.name}: {name} of the frame at byte {frame.at} is said to lie outside of it")
    start, size = place
    data = os.pread(file.fileno(), size, frame.body + start)
    try:
        return _decompressed(data, _MOST_SECTION)
    except zstandard.ZstdError as error:
        raise CheckpointError(f"{file.name}: {name} of the frame at byte {frame.at} is damaged ({error})") from None


def _is_in(place: Any, length: int) -> bool:
    """Whether it is where a section begins in a body of that length, and how long it is."""
    if not isinstance(place, list) or len(place) != 2 or not all(isinstance(each, int) for each in place):
        return False
    return min(place) >= 0 and sum(place) <= length


def opened(path: Path) -> BinaryIO:
    """A chunk to be read, a buffer of ours less: all reading is by place."""
    return path.open("rb", buffering=0)


def _prefix_at(file: BinaryIO, at: int) -> tuple[int, int, int] | None:
    """Kind, bytes of head and of body; None where no prefix is."""
    found = os.pread(file.fileno(), PREFIX, at)
    if len(found) < PREFIX or zlib.crc32(found[:-4]) != int.from_bytes(found[-4:], "little"):
        return None
    mark, kind, version, head_bytes, body_bytes = _PREFIX.unpack(found[:-4])
    return (kind, head_bytes, body_bytes) if mark == FRAME and version <= VERSION else None


def _next_frame(file: BinaryIO, at: int, size: int) -> int:
    """Where the next prefix stands that holds; `size` where there is none."""
    while at < size:
        window = os.pread(file.fileno(), _WINDOW, at)
        place = window.find(FRAME)
        while place >= 0:
            if _prefix_at(file, at + place) is not None:
                return at + place
            place = window.find(FRAME, place + 1)
        at += max(1, len(window) - len(FRAME) + 1)
    return size


def _unpacked(head: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(_decompressed(head, _MOST_HEAD))
    except (zstandard.ZstdError, ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _decompressed(data: bytes, most: int) -> bytes:
    """A run may have been copied from anywhere: what would unpack to more than `most` is damage."""
    if not 0 <= zstandard.frame_content_size(data) <= most:
        raise zstandard.ZstdError(f"it says that it unpacks to more than {most:,} bytes, or not to how many")
    return _contexts().unpacks.decompress(data, allow_extra_data=False)


class _PerThread(local):
    """A context may be used by one thread at a time, and is dear to make."""

    def __init__(self) -> None:
        self.packs = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
        self.unpacks = zstandard.ZstdDecompressor()


@cache
def _contexts() -> _PerThread:
    return _PerThread()
