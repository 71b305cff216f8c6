"""Rates and how far they can be trusted. Pure functions."""

from __future__ import annotations

import math


def wilson(successes: float, trials: float, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a rate, 95% by default; (0, 1) for no trials. `trials` need not be whole: trials
    that depend on each other count for fewer than they are."""
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
