"""A short run whose only purpose is to be measured.

Owns `probed`: the recipe as it stands, for some seconds of training, with next to no evaluation, in a directory that is
gone afterwards. What it trains is thrown away.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from etude.rollouts.config import ControlConfig, RunConfig
from etude.rollouts.plan.rates import Rates, read_rates
from etude.rollouts.run import Run


def brief(config: RunConfig, seconds: float) -> RunConfig:
    """The recipe with so much training and one task of each rung evaluated."""
    rollouts = config.rollouts.model_copy(update={"max_minutes": seconds / 60, "total_minutes": None})
    evaluation = config.evaluation.model_copy(update={"per_rung": 1, "heldout_per_rung": 0, "real": False})
    control = ControlConfig(enabled=False)
    return config.model_copy(update={"rollouts": rollouts, "evaluation": evaluation, "control": control})


async def probed(config: RunConfig, seconds: float) -> Rates:
    """The rates of this machine, from so many seconds of training. Raises ConfigError where they are too few."""
    with tempfile.TemporaryDirectory(prefix="etude-probe-") as directory:
        run = Run(brief(config, seconds), Path(directory) / "run", resume=False, quiet=True)
        await run.execute()
        return read_rates(run.directory)
