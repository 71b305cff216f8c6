"""The chunk files of an archive: which there are, and one that is written by this process alone.

    archive/chunks/000001.chunk    append-only; a process that writes opens a new one, and locks it while it does

Owns `ChunkFile`, `chunks` and `chunk_path`. No process ever writes into another's chunk, so a frame that was cut is
always the last of its chunk, and writers never wait for each other. A chunk that is full is closed, and the next is
begun. Numbers go up; they say nothing of the time between two processes' frames.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path

from etude.archive.frames import START, new_header
from etude.durable import append_whole, naming, sync_directory
from etude.errors import CheckpointError
from etude.host.lock import try_hold

CHUNK_BYTES = 32 << 20
"""A chunk that is as long is closed: it is as much as is removed at once."""
_NAME = re.compile(r"([0-9]{6,12})\.chunk")


def chunks(directory: Path) -> dict[int, Path]:
    """The chunks of the archive in `directory` by number, in their order."""
    folder = directory / "chunks"
    try:
        found = [(match, entry) for entry in os.scandir(folder) if (match := _NAME.fullmatch(entry.name))]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {int(match[1]): Path(entry.path) for match, entry in sorted(found, key=lambda each: int(each[0][1]))}


def chunk_path(directory: Path, number: int) -> Path:
    return directory / "chunks" / f"{number:06d}.chunk"


def is_written(path: Path) -> bool:
    """Whether a process has it open to write."""
    with path.open("rb") as file:
        return not try_hold(file.fileno())


class ChunkFile:
    """One process's way into the archive. One thread at a time adds; any may wait for the disk."""

    def __init__(self, directory: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        """Makes no file before there is something to write."""
        self.directory, self._chunk_bytes = directory, chunk_bytes
        self._file, self._length, self._path = -1, 0, directory
        self._added = self._synced = 0
        """Bytes of frames, over all chunks: that were added, and that the disk has."""
        self._syncing = threading.Lock()
        self._failed: OSError | None = None
        self.begun = 0
        """Chunks that this process has opened."""

    @property
    def is_full(self) -> bool:
        """Whether what is added next begins a chunk."""
        return self._file < 0 or self._length >= self._chunk_bytes

    def append(self, frames: bytes) -> int:
        """Add frames, whole, behind each other: they are the kernel's when this returns. Returns what `sync` is to be
        told to have them on the disk. Raises OSError where it refuses, and then nothing was added.
        """
        if self.is_full:
            self._next()
        append_whole(self._file, frames, self._path)
        self._length += len(frames)
        self._added += len(frames)
        return self._added

    def sync(self, added: int) -> None:
        """Return when the disk has all that was added up to there; who waits at the same time waits for one write.
        Raises CheckpointError where the disk fails, and ever after: asked again it would say that all is well.
        """
        with self._syncing:
            if self._synced < added:
                self._sync()

    def _sync(self) -> None:
        reached = self._added
        if self._failed is None:
            try:
                os.fdatasync(self._file)
            except OSError as error:
                self._failed = error
        if self._failed is not None:
            raise CheckpointError(
                f"{self._path}: the disk fails ({self._failed}); look at the kernel's log, make room, and go on anew"
            ) from self._failed
        self._synced = reached

    def _next(self) -> None:
        """Open a chunk with a number that nobody had."""
        self.close()
        folder = self.directory / "chunks"
        folder.mkdir(parents=True, exist_ok=True)
        number = max(chunks(self.directory), default=0) + 1
        while True:
            path = chunk_path(self.directory, number)
            with contextlib.suppress(FileExistsError), naming(path):
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
                break
            number += 1
        try_hold(self._file)
        self._path, self._length = path, START
        append_whole(self._file, new_header(), path)
        sync_directory(folder)
        self.begun += 1

    def close(self) -> None:
        """What was added is on the disk. Safe to call twice."""
        with self._syncing:
            if self._file >= 0:
                try:
                    if self._synced < self._added:
                        self._sync()
                finally:
                    os.close(self._file)
                    self._file = -1
