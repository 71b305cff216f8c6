"""Checkpoints in the background: a step waits for the copy of what is saved, and for nothing else.

Owns `Saving`, one rank's thread: `put` copies the rank's state on the host and returns, the thread writes the copy, one
checkpoint at a time; the next one waits for room, and that is measured. `Checkpoints` are those of rank 0, which writes
the file that makes a checkpoint whole. Nobody may rely on a checkpoint before `on_disk` says so: a process that is
killed earlier leaves the one before it. A write that failed stays failed, and is raised to whoever waits next. Never
chooses when to save. Talks to: step, checkpoint.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded
from etude.trainer.checkpoint import save, shards_path

if TYPE_CHECKING:
    from etude.trainer.step import Trainer

_SAVED_S = 300.0
"""Longest wait for a checkpoint to be on the disk."""
_SLOWEST = 10_000_000.0
"""Bytes a second that a large one is given beyond that."""


def copied(state: Any) -> Any:
    """The same, with tensors of its own on the host: what it is a copy of may change."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: copied(value) for key, value in state.items()}
    return [copied(each) for each in state] if isinstance(state, list) else state


def bytes_of(state: Any) -> int:
    """Of all tensors in it."""
    if isinstance(state, Tensor):
        return state.nbytes
    inside = state.values() if isinstance(state, Mapping) else state if isinstance(state, list) else ()
    return sum(map(bytes_of, inside))


class Saving:
    """Use `put` from the thread that trains, the rest from any."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._writing: Future[None] | None = None
        self._deadline_s = scaled(_SAVED_S)

    def put(self, shards: Path | None, finish: Callable[[dict[str, Any]], None] = lambda state: None) -> float:
        """Have the trainer's present state saved; returns the milliseconds of waiting for the one before. `finish` gets
        what the checkpoint's file is to hold of it, once what else there is lies in `shards`. Raises what kept the one
        before from being written, or DeadlineExceeded.
        """
        started = time.perf_counter()
        self.wait()
        stalled_ms = 1000 * (time.perf_counter() - started)
        state = self.trainer.copied(shards)
        self._deadline_s = scaled(_SAVED_S + bytes_of(state) / _SLOWEST)
        self._writing = self._thread.submit(self._write, state, shards, finish)
        return stalled_ms

    def _write(self, state: dict[str, Any], shards: Path | None, finish: Callable[[dict[str, Any]], None]) -> None:
        finish(self.trainer.trained.written(state, shards))

    def wait(self) -> None:
        """Until what was put is on the disk. Raises what kept it from there, or DeadlineExceeded."""
        if (writing := self._writing) is None:
            return
        if not concurrent.futures.wait([writing], self._deadline_s).done:
            hint = "the disk is slow: raise deadlines.scale, or rollouts.checkpoint_every"
            raise DeadlineExceeded("a checkpoint to be on the disk", self._deadline_s, hint)
        writing.result()

    def close(self) -> None:
        """End the thread, once it has written or failed."""
        self._thread.shutdown()


class OnDisk(NamedTuple):
    """The newest checkpoint that is whole, and how long after its copy was begun."""

    step: int
    saved_ms: float


class Checkpoints(Saving):
    """A run's, in its directory. `written` counts those that were written while the trainer could go on."""

    def __init__(self, trainer: Trainer, directory: Path, keep: int = 2) -> None:
        super().__init__(trainer)
        self.directory, self.keep = directory, keep
        self.written = 0
        self._on_disk, self._version = OnDisk(0, 0.0), trainer.version

    def taken_up(self, step: int) -> None:
        """The trainer goes on from the checkpoint of this step."""
        self._on_disk, self._version = OnDisk(step, 0.0), self.trainer.version

    def are_due(self, every: int) -> bool:
        """Whether the trainer's version is one of those to be saved, and not saved yet: a step that was skipped has
        made none, and is no reason to write over one that is whole.
        """
        return self.trainer.version != self._version and self.trainer.version % every == 0

    def save(self, step: int, beside: Mapping[str, Any]) -> float:
        """Have the state after this step saved, with what belongs to it `beside`, as one file that is whole or not
        there; returns as `put` does.
        """
        version, began = self.trainer.version, time.perf_counter()
        self._version = version
        shards = None if self.trainer.config.mesh is None else shards_path(self.directory, version)

        def finish(state: dict[str, Any]) -> None:
            save(self.directory, version, {**beside, "trainer": state}, self.keep, shards)
            self.written += 1
            self._on_disk = OnDisk(step, 1000 * (time.perf_counter() - began))

        return self.put(shards, finish)

    def on_disk(self, step: int = 0) -> OnDisk:
        """Wait for the checkpoint of a step, if it is on its way; returns the newest whole one. Raises as `wait`."""
        if self._on_disk.step < step:
            self.wait()
        return self._on_disk
