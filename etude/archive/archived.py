"""One trajectory as it was kept: each part read from its chunk when it is asked for.

Owns `Archived`. Reads frames alone, and no index; knows neither tokenizer nor model, so that tokens are ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from etude.archive.chunks import chunk_path
from etude.archive.columns import events_unpacked, files_unpacked, joined, marks_unpacked, tokens_unpacked
from etude.archive.contents import row_of, task_of
from etude.archive.frames import Frame, Kind, frame_at, opened, section
from etude.archive.records import FileChange, KeptTask, Marks, Record, Said, Tokens, TrajectoryRow
from etude.errors import CheckpointError
from etude.records import Event

T = TypeVar("T")
_ODD = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""What comes of reading bytes that are sound, and say something else than a run's: an archive may be a stranger's."""


@dataclass(frozen=True)
class Place:
    """Of a frame."""

    chunk: int
    at: int


@dataclass(frozen=True)
class Archived:
    """Every part raises CheckpointError where its chunk was damaged, or removed as it was too old."""

    directory: Path
    """The archive's."""
    row: TrajectoryRow
    place: Place
    task_place: Place | None
    marks_place: Place | None

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """evidence, findings (whole), usage, conduct, environment, seed, temperature, attempt, segments."""
        return self._unpacked("about", _about)

    @cached_property
    def said(self) -> list[Said]:
        """The events of its session in order, each with the place of its tokens."""
        return self._unpacked("events", events_unpacked)

    @cached_property
    def tokens(self) -> Tokens:
        return self._unpacked("tokens", lambda data: tokens_unpacked(data, self.about["segments"]))

    @property
    def files(self) -> tuple[FileChange, ...]:
        """Those that the session changed; none where it did not come to its end."""
        return self._unpacked("files", files_unpacked)

    @property
    def verifier(self) -> str:
        """What it printed at the end."""
        return self._section("verifier").decode("utf-8", "replace")

    @cached_property
    def task(self) -> KeptTask | None:
        """None where its frame was damaged."""
        if self.task_place is None:
            return None
        with self._frame(self.task_place, Kind.TASK) as (_, frame):
            return task_of(frame.head)

    @cached_property
    def marks(self) -> Marks | None:
        """What the step that trained on it made of its sampled tokens; None where none has."""
        if self.marks_place is None:
            return None
        with self._frame(self.marks_place, Kind.MARKS) as (file, frame):
            data = section(file, frame, "marks")
        return self._sound("marks", lambda: marks_unpacked(data, self.row.id))

    def log(self) -> list[tuple[Event, Record]]:
        """The session's, as it was, less the routes."""
        return joined(self.said, self.tokens)

    def _unpacked(self, name: str, unpack: Callable[[bytes], T]) -> T:
        data = self._section(name)
        return self._sound(name, lambda: unpack(data))

    def _sound(self, name: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except _ODD as error:
            said = f"{chunk_path(self.directory, self.place.chunk)}: {name} of {self.row.id[:100]} are of no trajectory"
            raise CheckpointError(f"{said} ({type(error).__name__}): this archive was made by something else") from None

    def _section(self, name: str) -> bytes:
        with self._frame(self.place, Kind.TRAJECTORY) as (file, frame):
            if row_of(frame.head).id != self.row.id:
                raise CheckpointError(f"{file.name}: is another archive's by now; look for {self.row.id} again")
            return section(file, frame, name)

    @contextmanager
    def _frame(self, place: Place, kind: Kind) -> Generator[tuple[BinaryIO, Frame]]:
        try:
            file = opened(chunk_path(self.directory, place.chunk))
        except FileNotFoundError as error:
            said = f"{error.filename}: was removed, for age or size, and {self.row.id} with it"
            raise CheckpointError(said) from None
        with file:
            frame = frame_at(file, place.at)
            if frame.kind != kind:
                raise CheckpointError(f"{file.name}: holds something else at byte {place.at}; look again")
            yield file, frame


def _about(data: bytes) -> dict[str, Any]:
    told = json.loads(data)
    if not all(isinstance(told[name], kind) for name, kind in _ABOUT.items()):
        raise TypeError("about")
    return told


_ABOUT = {"segments": list, "findings": list, "usage": dict, "environment": dict}
