"""A file of lines that is only appended to, by one process at a time, and outlives that process.

Owns `Journal`. `append` returns when the line is the kernel's, so that no `kill -9` can take it back; `sync` when it
is the disk's, so that no power cut can. A line is whole or not there: the next process to open the file cuts off one
that was being written. Knows nothing of what its lines mean, but that each is a JSON object; `harness.events` does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from etude.durable import append_whole, cut, sync_directory
from etude.errors import CheckpointError
from etude.host.lock import hold


class InUse(CheckpointError):
    """Another process has the journal open."""


class Journal:
    """Open for as long as the object is; a second process that opens the same path meanwhile is refused.

    With `lazy` the disk has its lines when the kernel likes: for what may lose its end when the power is cut.
    """

    def __init__(self, path: Path, lazy: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path, self._lazy = path, lazy
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            hold(self._file)
            self._length = whole_length(path)
            cut(self._file, self._length, path)
            if not lazy:
                sync_directory(path.parent)
        except BlockingIOError as error:
            os.close(self._file)
            raise InUse(
                f"{path}: another process has this session open ({error.strerror}); end it there, or fork it"
            ) from None
        except BaseException:
            os.close(self._file)
            raise
        self._synced = self._length
        self._failed: OSError | None = None

    def append(self, line: bytes) -> None:
        """Add one line; `line` is without its newline. CheckpointError where the disk refuses, and nothing is added."""
        data = line + b"\n"
        try:
            append_whole(self._file, data, self.path)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written ({error}); make room there") from error
        self._length += len(data)

    async def sync(self) -> None:
        """CheckpointError where the disk fails, and ever after: asked again it would say that all is well, having
        forgotten what it could not write."""
        length = self._length
        if length > self._synced and not self._lazy:
            if self._failed is None:
                try:
                    await asyncio.to_thread(os.fdatasync, self._file)
                except OSError as error:
                    self._failed = error
            if self._failed is not None:
                raise CheckpointError(
                    f"{self.path}: the disk fails ({self._failed}); look at the kernel's log, make room, and go on anew"
                ) from self._failed
            self._synced = max(self._synced, length)

    def cut(self, lines: int) -> None:
        """Keep the first so many lines."""
        kept = sum(len(line) + 1 for line in itertools.islice(self, lines))
        os.ftruncate(self._file, kept)
        self._length, self._synced = kept, min(self._synced, kept)

    def __iter__(self) -> Iterator[bytes]:
        """The lines so far, read from the disk, without their newlines."""
        return whole_lines(self.path)

    def close(self) -> None:
        """Let another process have it. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def whole_lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a journal that another process may be writing."""
    length = whole_length(path)
    with path.open("rb") as file:
        while file.tell() < length:
            yield file.readline().removesuffix(b"\n")


def whole_length(path: Path) -> int:
    """How many bytes at the start of a journal are whole lines.

    A process that is killed leaves at most one line without its end; a power cut may leave more that is garbage. So
    what follows the last line that is an object is cut off; garbage before it is damage, and its reader will say so.
    """
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start, line = _last_line(file, end)
            if line.endswith(b"\n") and _is_object(line):
                return end
            end = start
    return 0


def _last_line(file: BinaryIO, end: int) -> tuple[int, bytes]:
    """The line that ends at `end`, and where it starts."""
    start, tail = end, b""
    while start and b"\n" not in tail[:-1]:
        step = min(65536, start)
        start -= step
        file.seek(start)
        tail = file.read(step) + tail
    cut = tail.rfind(b"\n", 0, -1) + 1
    return start + cut, tail[cut:]


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
