"""Advantages: what a rollout is worth compared with the others of its group.

    A_i = (r_i - baseline) / deviation

Owns the baselines (the mean of the group, or of its other members; others are found by name, `etude.advantages`) and
the deviation (1, or that of the group's rewards). One reward counts per trajectory, whatever its number of segments;
infrastructure failures have none and must be gone before (`rollouts.groups` leaves them out). What takes a whole batch
is `trainer.credit`'s. Golden numbers in tests/trainer/test_advantages.py. G rollouts of a group.
"""

from __future__ import annotations

import numpy as np

from etude.plugins import find
from etude.records import Floats, Group, reward_of
from etude.trainer.config import AdvantageConfig

LEAST_DEVIATION = 1e-6


def group_advantages(group: Group, config: AdvantageConfig) -> Floats:
    """One advantage for each trajectory of a group, in order. Raises ValueError if one has no reward."""
    rewards = [reward_of(trajectory.outcome) for trajectory in group.trajectories]
    if None in rewards:
        raise ValueError(
            f"group {group.id} holds a rollout without a reward: infrastructure failures leave before the baseline"
        )
    return advantages_of(np.asarray(rewards, np.float32), config)


def advantages_of(rewards_G: Floats, config: AdvantageConfig) -> Floats:
    """Rewards minus their baseline; a group of one has no baseline and so no advantage."""
    centred_G = find("advantages", config.baseline)(rewards_G)
    if config.normalise == "group":
        centred_G = centred_G / (rewards_G.std() + LEAST_DEVIATION)
    return centred_G.astype(np.float32)


def less_mean(rewards_G: Floats) -> Floats:
    """Dr. GRPO (arXiv 2503.20783)."""
    return rewards_G - rewards_G.mean()


def less_others(rewards_G: Floats) -> Floats:
    """RLOO (arXiv 2402.14740): each is compared with the mean of the others, one alone with itself."""
    size = len(rewards_G)
    return less_mean(rewards_G) * size / max(size - 1, 1)
