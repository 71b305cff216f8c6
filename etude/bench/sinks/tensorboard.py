"""TensorBoard: event files below `tensorboard/` in the run's directory, by its own writer and without TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from etude.bench.sinks.base import RunFacts, Sink


class TensorBoard(Sink):
    """A file of events for each life of the run; TensorBoard reads them as one."""

    library = "tensorboard"

    def start(self, run: RunFacts) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.directory, self.last = run.directory / "tensorboard", 0
        self.writer: Any = EventFileWriter(str(self.directory), flush_secs=10)

    def log(self, figures: Mapping[str, float], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=figure) for name, figure in figures.items()]
        self.writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self.last = max(self.last, step)

    def finish(self, figures: Mapping[str, float]) -> str:
        if figures:
            self.log(figures, self.last)
        self.writer.close()
        return f"tensorboard --logdir {self.directory.parent}"
