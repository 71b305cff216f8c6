"""Where trajectories are, from their first turn until a checkpoint says that they were trained on.

    trajectories/g12/3/
      events.jsonl    the session's own log: every event, with token ids, log-probabilities and versions
      routes          the experts of every position, which the log only points at
      turn-3.files    the sandbox's files after a turn; the log's checkpoints name it
      turn-3.memory   the name of a snapshot with processes and memory, where the backend has such that outlive us
      sealed          the files that the session left, and its `Sample`; there when it is over, until it is scored
      score           the `Sample` with its verdict; there from the moment it counts as scored

A token is written once, into the log, by the worker that plays; and read once, by the trainer. Everybody between them
has the `Sample`.

Owns `TrajectoryStore` and `StoredTrajectory`. What a session knows is the fold of its log (`harness.state`), so going
on from a checkpoint is: cut the log where the checkpoint says, lay its files into a fresh sandbox, and play. A slot's
directory belongs to one process at a time, by a lock that dies with it. Files of a sandbox are on the disk, whole,
before a checkpoint names them; log and routes are the kernel's until the session is judged, so a kill takes nothing
from them, and of what a power cut takes the checkpoints before it stand. All workers of a run, its trainer and whoever
resumes it must see the directory. Plays nothing, and decides nothing: `rollouts.session` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import pickle
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.deadlines import scaled
from etude.durable import append_whole, sync_directory, write_whole
from etude.environments.archive import Archive, take_out
from etude.environments.base import WORKSPACE, Backend, Sandbox, Snapshot
from etude.environments.toolchain import HOME
from etude.errors import CheckpointError, DeadlineExceeded, SandboxError, SandboxSpoiled
from etude.harness.dialogue import segments_of
from etude.harness.events import Record, decoded
from etude.harness.journal import InUse, Journal
from etude.harness.session import SessionPersistence
from etude.records import Event, Routes, Segment, Trajectory
from etude.rollouts.sample import Sample

CLAIM_S = 20.0
"""How long to wait for a process that died a moment ago to let go of its slot."""
PLACES = (WORKSPACE, "/tmp", HOME)
"""What a sandbox's user can write to and expects to find again."""
_LOGGED = ("events.jsonl", "routes")
GIVEN = "given"
"""The snapshot of a session that has changed nothing yet: the task's own files."""


@dataclass(frozen=True)
class Resumption:
    """Where a session goes on."""

    turn: int
    """After this one."""
    start: Archive | None
    """What its sandbox holds; None: the task's own files."""
    memory: Snapshot | None = None
    """The same with all that ran there; None where no backend could keep that."""


class TrajectoryStore:
    """The trajectories of one run; `directory` need not be there yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._removable: set[str] = set()

    async def claim(self, slot_id: str) -> StoredTrajectory:
        """The slot's trajectory, for this process alone; a new one where there is none.

        Waits for another process to let go of it. Raises DeadlineExceeded where it does not, CheckpointError where the
        disk refuses.
        """
        deadline = time.monotonic() + scaled(CLAIM_S)
        while True:
            try:
                return StoredTrajectory(self._of(slot_id))
            except InUse:
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(f"another process to let go of {slot_id}", scaled(CLAIM_S)) from None
            await asyncio.sleep(0.05)

    def remove(self, slot_id: str) -> None:
        """Forget a trajectory that nobody needs any more. Fine when there is none."""
        directory = self._of(slot_id)
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(OSError):  # other members of its group are there
            directory.parent.rmdir()

    def hand_over(self, slot_id: str, other: TrajectoryStore) -> None:
        """Have another store keep a trajectory from now on."""
        with contextlib.suppress(FileNotFoundError):  # removed, as its group has ended
            other._of(slot_id).parent.mkdir(parents=True, exist_ok=True)
            self._of(slot_id).rename(other._of(slot_id))

    def remove_group(self, group: str) -> None:
        """Forget all trajectories of a group, or of an evaluation. Fine when there is none."""
        shutil.rmtree(self.directory / group, ignore_errors=True)

    def clear(self) -> None:
        """Forget all of them."""
        for group in self.directory.glob("*"):
            self.remove_group(group.name)

    def ended(self, groups: Iterable[str]) -> None:
        """A saved checkpoint says that these groups have ended: the next call removes what is theirs, for the newest
        checkpoint may be damaged.
        """
        removable, self._removable = self._removable, set(groups)
        for group in removable:
            self.remove_group(group)

    def slots(self) -> list[str]:
        """Those that have a trajectory here."""
        found = self.directory.glob("*/*/events.jsonl")
        return sorted("/".join(path.parent.relative_to(self.directory).parts) for path in found)

    # --- sessions that are over ---------------------------------------------------------------------------------------

    def sealed(self, slot_id: str) -> tuple[Any, Sample]:
        """What `StoredTrajectory.seal` was given. Raises CheckpointError where there is nothing of the kind."""
        if (found := _unpickled(self._of(slot_id) / "sealed")) is None:
            raise CheckpointError(f"{slot_id}: what its session has left cannot be read; it is played again")
        return found

    def settle(self, slot_id: str) -> int:
        """Have the disk hold log and routes; returns their checksum."""
        directory = self._of(slot_id)
        for name in _LOGGED:
            with (directory / name).open("rb") as file:
                os.fsync(file.fileno())
        for place in (directory, *list(directory.parents)[: len(slot_id.split("/"))]):
            sync_directory(place)
        return _checksum(directory)

    async def keep(self, sample: Sample) -> None:
        """A sample is scored: it is on the disk when this returns, and all that only playing it needed is gone. Raises
        CheckpointError where the disk is full.
        """
        await asyncio.to_thread(self._keep, sample)

    def _keep(self, sample: Sample) -> None:
        directory = self._of(sample.id)
        _write(directory / "score", sample.encoded(), listed=True)
        for path in (*directory.glob("*.files"), *directory.glob("*.memory"), directory / "sealed"):
            path.unlink(missing_ok=True)

    def sample(self, slot_id: str) -> Sample | None:
        """The scored sample of a slot; None where there is none, or where the disk has damaged it: it is played again
        then, and comes out the same or is as good.
        """
        try:
            sample = Sample.decoded((self._of(slot_id) / "score").read_bytes())
            return sample if _checksum(self._of(slot_id)) == sample.checksum else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def events(self, slot_id: str) -> tuple[Event, ...]:
        """The log of a session."""
        return tuple(event for event, _ in self.log(slot_id))

    def log(self, slot_id: str) -> Iterator[tuple[Event, Record]]:
        """The same, each event with its record, read one by one."""
        return decoded(self._of(slot_id) / "events.jsonl")

    def trajectory(self, sample: Sample) -> Trajectory:
        """With its tokens and events. Raises CheckpointError where they are not what they were when it was scored."""
        directory = self._of(sample.id)
        if _checksum(directory) != sample.checksum:
            raise CheckpointError(f"{directory}: was changed after {sample.id} was scored; go on with --resume")
        with contextlib.closing(_RouteFile(directory / "routes")) as routes:
            return sample.trajectory(*_read(directory / "events.jsonl", routes))

    def _of(self, slot_id: str) -> Path:
        parts = slot_id.split("/")
        if len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
            raise CheckpointError(f"{slot_id!r} is no slot's id: they are of the form g12/3")
        return self.directory.joinpath(*parts)


class StoredTrajectory:
    """One slot's trajectory. Use it as a context manager: at its end another process can have it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.journal = Journal(directory / "events.jsonl", lazy=True)
        self.routes = _RouteFile(directory / "routes")
        self.snapshot = ""
        """The newest that the log names."""
        self.memory: Snapshot | None = None
        """The newest with processes and memory."""
        self.usage = {"checkpoints": 0, "checkpoint_bytes": 0, "checkpoint_ms": 0, "memory_checkpoints": 0}
        """Snapshots of files that this process has taken, and what they came to."""

    def __enter__(self) -> StoredTrajectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.routes.close()
        self.journal.close()

    # --- going on -------------------------------------------------------------------------------------------------

    def sealed(self) -> tuple[Any, Sample] | None:
        """What `seal` was given; None for a session that is not over, or was sealed by a program of another version."""
        return _unpickled(self.directory / "sealed")

    def log(self) -> tuple[tuple[Segment, ...], tuple[Event, ...]]:
        """The segments that are sealed, and all events."""
        return _read(self.journal.path, self.routes)

    def take_up(self) -> Resumption | None:
        """Cut the log where its last whole checkpoint stands. None where there is none: the session begins anew."""
        routed, ends, found = 0, [0], None
        for line, (event, record) in zip(self.journal, decoded(self.journal.path), strict=True):
            if "routes" in record:
                routed = _end_of(record["routes"])
            ends.append(routed)
            if self._is_whole(event, ends):
                found = event, line
        if found is None:
            self.begin_anew()
            return None
        event, line = found
        self.journal.cut(event.data["line"])
        self.journal.append(line)
        self.routes.cut(ends[event.data["line"]])
        self.snapshot = event.data["snapshot"]
        start = None
        if self.snapshot != GIVEN:
            start = Archive.decoded((self.directory / self.snapshot).read_bytes())
        self.memory = _memory_in(self.directory / self.snapshot)
        return Resumption(event.data["turn"], start, self.memory)

    def begin_anew(self) -> None:
        """Forget what was played."""
        self.journal.cut(0)
        self.routes.cut(0)

    def _is_whole(self, event: Event, ends: Sequence[int]) -> bool:
        """Whether a session can go on from there; `ends` says, for so many lines, how far their routes reach."""
        data = event.data
        if event.kind != "checkpoint" or data["of"] != "turn" or "snapshot" not in data:
            return False
        has_files = data["snapshot"] == GIVEN or (self.directory / data["snapshot"]).exists()
        return has_files and ends[data["line"]] <= self.routes.length

    # --- keeping ----------------------------------------------------------------------------------------------------

    def kept(self, sandbox: Sandbox, backend: Backend, after_s: float | None) -> SessionPersistence:
        """For `run_session` in this sandbox of that backend; without `after_s` its log alone is kept."""
        files = None if after_s is None else _Files(self, sandbox, backend)
        return SessionPersistence(self.journal, files, after_s or 0.0, self.routes)

    async def forget_memory(self, backend: Backend) -> None:
        """Nobody needs the snapshot with processes and memory any more."""
        memory, self.memory = self.memory, None
        if memory is not None:
            with contextlib.suppress(SandboxError):  # its server is gone, or will forget it in time
                await backend.release(memory)

    async def seal(self, left: Any, sample: Sample) -> None:
        """Keep what a session that is over has left. Raises CheckpointError where the disk refuses."""
        await asyncio.to_thread(_write, self.directory / "sealed", pickle.dumps((left, sample)))


class _Files:
    """Implements the harness's `Snapshots`, with files that outlive sandbox and process."""

    def __init__(self, trajectory: StoredTrajectory, sandbox: Sandbox, backend: Backend) -> None:
        self._trajectory, self._sandbox, self._backend = trajectory, sandbox, backend

    async def take(self, label: str) -> str:
        if label.startswith("prompt"):  # a rollout has one prompt, and nobody has touched the files before it
            return GIVEN
        began, kept = time.perf_counter(), self._trajectory
        try:
            # the session's next calls may read meanwhile; what runs in the background is not what is judged
            archive = await take_out(self._sandbox, *PLACES, still=False)
        except SandboxSpoiled as error:
            raise CheckpointError(f"{label}: the sandbox's files cannot be taken out: {error}") from error
        data, name = archive.encoded(), f"{label.replace(' ', '-')}.files"
        memory = await self._with_memory()
        await asyncio.to_thread(self._replace, name, data, memory)
        await kept.forget_memory(self._backend)
        kept.memory = memory
        kept.usage["memory_checkpoints"] += memory is not None
        kept.usage["checkpoints"] += 1
        kept.usage["checkpoint_bytes"] += len(data)
        kept.usage["checkpoint_ms"] += round(1000 * (time.perf_counter() - began))
        return name

    async def _with_memory(self) -> Snapshot | None:
        offered = self._backend.capabilities
        if offered.snapshot != "full" or not offered.lasting:
            return None
        try:
            return await self._sandbox.snapshot()
        except (SandboxError, DeadlineExceeded):  # the files will do
            return None

    def _replace(self, name: str, data: bytes, memory: Snapshot | None) -> None:
        """The log names the newest snapshot but this one; those before it nobody needs any more."""
        kept = self._trajectory
        for old in (*kept.directory.glob("*.files"), *kept.directory.glob("*.memory")):
            if old.stem != Path(kept.snapshot).stem:
                old.unlink()
        if memory is not None:
            _write((kept.directory / name).with_suffix(".memory"), memory.id.encode())
        _write(kept.directory / name, data)
        kept.snapshot = name


class _RouteFile:
    """Implements the harness's `RouteStore`: rows end to end in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.length = os.fstat(self._file).st_size
        """Bytes."""

    def keep(self, rows: Routes) -> int:
        at, data = self.length, np.ascontiguousarray(rows).tobytes()
        try:
            append_whole(self._file, data, self._path)
        except OSError as error:
            raise CheckpointError(f"{self._path}: cannot be written ({error}); make room there") from error
        self.length += len(data)
        return at

    def kept(self, at: int, shape: Sequence[int], dtype: str) -> Routes:
        size = _end_of([at, *shape, dtype]) - at
        data = os.pread(self._file, size, at)
        if len(data) != size:
            raise CheckpointError(f"{self._path}: ends before byte {at + size}; remove {self._path.parent}")
        return np.frombuffer(data, dtype).reshape(shape)

    def cut(self, length: int) -> None:
        os.ftruncate(self._file, length)
        self.length = length

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _memory_in(files: Path) -> Snapshot | None:
    """The snapshot with processes and memory that was taken beside these files."""
    path = files.with_suffix(".memory")
    return Snapshot(path.read_text()) if files.suffix and path.exists() else None


def _end_of(where: Sequence[Any]) -> int:
    """The byte after the rows that a record points at."""
    at, *shape, dtype = where
    return at + math.prod(shape) * np.dtype(dtype).itemsize


def _read(log: Path, routes: _RouteFile) -> tuple[tuple[Segment, ...], tuple[Event, ...]]:
    lines = list(decoded(log))
    return segments_of(lines, routes), tuple(event for event, _ in lines)


def _checksum(directory: Path) -> int:
    """Of a slot's log and routes."""
    found = 0
    for name in _LOGGED:
        found = zlib.crc32((directory / name).read_bytes(), found)
    return found


def _unpickled(path: Path) -> Any:
    """None where there is nothing, or another version's."""
    try:
        return pickle.loads(path.read_bytes())
    except (FileNotFoundError, pickle.UnpicklingError, AttributeError, ImportError, TypeError):
        return None


def _write(path: Path, data: bytes, listed: bool = False) -> None:
    try:
        write_whole(path, data, listed=listed)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error}); make room there") from error
