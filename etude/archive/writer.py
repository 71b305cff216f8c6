"""How a run writes its archive: each process that has something to say, into a chunk of its own.

Owns `ArchiveWriter`. A reward worker keeps each trajectory before it hands back the verdict, so that no verdict counts
that the archive does not have; the trainer adds what a step made of each token, before the checkpoint that says so. An
attempt that is judged again is kept again: the later verdict stands. Never waits for a reader, and no reader for it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from etude.archive.chunks import CHUNK_BYTES, ChunkFile
from etude.archive.contents import frame_of, marks_frames, resumed_frame, task_frame
from etude.archive.records import Kept, Marks
from etude.archive.retention import OF_A_RUN, Retention, remove_old

ARCHIVE = "archive"
"""In a run's directory."""


class ArchiveWriter:
    """One process's. Use it from any thread."""

    def __init__(self, run: Path, retention: Retention = OF_A_RUN, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`run` is the run's directory; nothing is made there before there is something to keep."""
        self.directory, self.retention = run / ARCHIVE, retention
        self._chunk, self._turn = ChunkFile(self.directory, chunk_bytes), threading.Lock()
        self._tasks: set[str] = set()
        """Those that the chunk has."""

    def keep(self, kept: Kept) -> int:
        """A trajectory was judged: it is the disk's when this returns. Returns its bytes there. Raises OSError where
        there is no room, CheckpointError where the disk fails.
        """
        frame = frame_of(kept)
        with self._turn:
            if begins := self._chunk.is_full:  # the next one has no task yet
                self._tasks.clear()
            if kept.task.id not in self._tasks:
                frame = task_frame(kept.task) + frame
            added = self._chunk.append(frame)
            self._tasks.add(kept.task.id)
        self._on_disk(added, begins)
        return len(frame)

    def mark(self, step: int, marks: Sequence[Marks]) -> None:
        """A step has trained on these. Raises what `keep` does."""
        self._add(marks_frames(step, marks))

    def resumed(self, step: int) -> None:
        """The trainer goes on after that step, whatever an earlier life of it has made beyond."""
        self._add(resumed_frame(step))

    def _add(self, frames: bytes) -> None:
        with self._turn:
            if begins := self._chunk.is_full:  # the next one has no task yet
                self._tasks.clear()
            added = self._chunk.append(frames)
        self._on_disk(added, begins)

    def _on_disk(self, added: int, begins: bool) -> None:
        self._chunk.sync(added)
        if begins:
            remove_old(self.directory, self.retention)

    def close(self) -> None:
        with self._turn:
            self._chunk.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
