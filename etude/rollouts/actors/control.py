"""The process of the fine-tuning control.

Runs `rollouts.control` apart from the controller, which never loads torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.environments.cluster.calls import actor
from etude.rollouts.config import RunConfig


@actor(num_cpus=0)
class ControlActor:
    """The fine-tuning control: records clean demonstrations, trains on them, hands over the weights."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def run(self, cpu_seconds: float, directory: Path) -> tuple[Any, dict[str, float]]:
        """Recording counts against the budget, as rollouts count against reinforcement learning's; saving does not."""
        from etude.rollouts.control import fine_tuned_control

        return fine_tuned_control(self.config, cpu_seconds, directory)
