"""Weights & Biases. `WANDB_PROJECT`, `WANDB_MODE` and its other variables say where and how."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from etude.bench.sinks.base import PROJECT, RunFacts, Sink


class Wandb(Sink):
    """A run of W&B, whose files are in the run's own directory."""

    library = "wandb"

    def start(self, run: RunFacts) -> None:
        import wandb

        self.directory = run.directory
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run.id,
            name=run.name,
            resume="allow",
            dir=str(run.directory),
            config=dict(run.recipe),
            settings=wandb.Settings(console="off"),
        )
        self.run.define_metric("*", step_metric="step")  # a version is delivered when later steps are told already

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self.run.log({**figures, "step": step})

    def finish(self, figures: Mapping[str, float]) -> str:
        self.run.summary.update(dict(figures))
        where = self.run.url or f"wandb sync {self.directory}/wandb/offline-run-*-{self.run.id}"  # one of each life
        self.run.finish(exit_code=0 if figures else 1)
        return where
