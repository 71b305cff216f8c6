"""Trackio: its SQLite file on this machine, or where `TRACKIO_SPACE_ID` and its other variables say.

Its local runs are known by their names, so the name holds the id.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from etude.bench.sinks.base import PROJECT, RunFacts, Sink


class Trackio(Sink):
    """A run of Trackio."""

    library = "trackio"

    def start(self, run: RunFacts) -> None:
        import trackio

        self.project, self.last = os.environ.get("TRACKIO_PROJECT", PROJECT), 0
        self.run: Any = trackio.init(
            project=self.project,
            name=f"{run.name}-{run.id}",
            resume="allow",
            config=dict(run.recipe),
            embed=False,
            auto_log_cpu=False,  # of this process, which is not the one that trains
            auto_log_gpu=False,
        )

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self.run.log(dict(figures), step=step)
        self.last = max(self.last, step)

    def finish(self, figures: Mapping[str, float]) -> str:
        import trackio

        if figures:
            self.log(figures, self.last)
        trackio.finish()  # by name: else it ends the run once more with the process, and prints that
        return f"trackio show --project {self.project}"
