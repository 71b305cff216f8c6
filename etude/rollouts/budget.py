"""How long a run trains, where the recipe says how long the whole run may take.

Owns one sum: what the evaluation of the base has taken tells how fast this machine is, and so what the evaluations and
the control still to come will take. Measures nothing itself.
"""

from __future__ import annotations

from etude.errors import ConfigError
from etude.rollouts.config import RunConfig

LATER = 1.4
"""An evaluation after training against that of the base, whose sessions end early (measured: 1.25 to 1.4)."""
CONTROL = 1.06
"""The control against reinforcement learning, by the clock: the same CPU time, less evenly on all cores."""


def training_minutes(config: RunConfig, elapsed_s: float, evaluation_s: float) -> float:
    """Minutes for reinforcement learning, `elapsed_s` into the run, after a base evaluation of `evaluation_s`.

    Raises ConfigError where nothing is left.
    """
    budget = config.rollouts
    if budget.total_minutes is None:
        return budget.max_minutes
    evaluations, shares = (2, 1 + CONTROL) if config.control.enabled else (1, 1)
    minutes = (60 * budget.total_minutes - elapsed_s - evaluations * LATER * evaluation_s) / 60 / shares
    if minutes <= 0:
        raise ConfigError(
            f"rollouts.total_minutes: {budget.total_minutes} leave no time to train, {elapsed_s:.0f} s are gone and an "
            f"evaluation takes {evaluation_s:.0f} s: allow more, or evaluate fewer tasks (evaluation.per_rung)"
        )
    return min(budget.max_minutes, minutes)
