"""Credit: what each segment of a trajectory is worth, and which of its tokens are a summary.

Owns `assign_advantages`, `segment_advantages` and `summary_tokens`. A trajectory is a chain of segments, and it has one
reward:

- *trajectory* (the default): every segment has the trajectory's advantage, summaries included; in the group's baseline
  each trajectory counts once, however many segments it has.
- *segment*: segment k of a trajectory has the advantage of its reward among the rewards of those trajectories of the
  group that have a segment k. What is common to all that came so far is then credited to none of them, and the later
  segments are not paid for the luck of having been reached. Where no other came as far, it is the trajectory's.

Over a whole batch, advantages may be divided by their deviation, in which each trajectory counts once, and trajectories
that a limit has cut may be taught nothing. Knows neither tokens' losses nor models. Golden numbers in
tests/trainer/test_credit.py. Shapes: G trajectories of a group, T tokens of one segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from etude.records import Bools, Floats, Group, Segment, Truncated, reward_of
from etude.trainer.advantages import LEAST_DEVIATION, advantages_of, group_advantages
from etude.trainer.config import AdvantageConfig, CreditConfig

_COUNTED = {
    "baseline": ("mean", "baselined_rollouts"),
    "normalise": ("none", "normalised_rollouts"),
    "overlong": ("train", "overlong_rollouts"),
}
"""Each switch of `AdvantageConfig`, without which all is computed a second time: what it is then, and what counts the
trajectories whose advantages are others."""


class AssignedAdvantages(NamedTuple):
    """The advantages of a batch: of each group, of each of its trajectories, one a segment; and for how many
    trajectories or segments each switch has changed something.
    """

    advantages: list[list[Floats]]
    used: dict[str, int]


def assign_advantages(groups: Sequence[Group], config: AdvantageConfig, credit: CreditConfig) -> AssignedAdvantages:
    """Raises ValueError if a trajectory has no reward."""
    values, used = _of_batch(groups, config, credit), {}
    for key, (usual, counter) in _COUNTED.items():
        if getattr(config, key) != usual:
            without = _of_batch(groups, config.model_copy(update={key: usual}), credit)
            used[counter] = _differing(values, without)
    if credit.baseline == "segment":
        shared = [segment_advantages(group, config, credit) for group in groups]
        used["recredited_segments"] = sum(
            _apart(group, mine, config) for group, mine in zip(groups, shared, strict=True)
        )
    return AssignedAdvantages(values, used)


def _of_batch(groups: Sequence[Group], config: AdvantageConfig, credit: CreditConfig) -> list[list[Floats]]:
    values = [segment_advantages(group, config, credit) for group in groups]
    if config.normalise == "batch":
        deviation = _deviation([each for shares in values for each in shares]) + LEAST_DEVIATION
        values = [[(each / deviation).astype(np.float32) for each in shares] for shares in values]
    if config.overlong == "leave":
        cut = [[isinstance(each.outcome, Truncated) for each in group.trajectories] for group in groups]
        values = [
            [each * (not late) for each, late in zip(shares, lates, strict=True)]
            for shares, lates in zip(values, cut, strict=True)
        ]
    return values


def _differing(values: Sequence[Sequence[Floats]], others: Sequence[Sequence[Floats]]) -> int:
    """How many trajectories have other advantages, by more than two ways of rounding make."""
    pairs = [pair for both in zip(values, others, strict=True) for pair in zip(*both, strict=True)]
    return sum(not np.allclose(mine, other, rtol=1e-4, atol=1e-6) for mine, other in pairs)


def _apart(group: Group, shares: Sequence[Floats], config: AdvantageConfig) -> int:
    """How many segments have another advantage than their trajectory."""
    whole_G = group_advantages(group, config)
    return sum(int((mine != np.float32(value)).sum()) for mine, value in zip(shares, whole_G, strict=True))


def _deviation(values: Sequence[Floats]) -> float:
    """Of advantages, each trajectory counting once whatever its number of segments."""
    nonempty = [each for each in values if len(each)]
    everything = np.concatenate(nonempty)
    weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in nonempty])
    mean = np.average(everything, weights=weights)
    return float(np.sqrt(np.average((everything - mean) ** 2, weights=weights)))


def segment_advantages(group: Group, config: AdvantageConfig, credit: CreditConfig) -> list[Floats]:
    """For each trajectory of a group, in order, one advantage a segment. Raises ValueError if one has no reward."""
    counts_G = np.asarray([len(trajectory.segments) for trajectory in group.trajectories])
    whole_G = group_advantages(group, config)
    shares = [np.full(count, value, np.float32) for count, value in zip(counts_G, whole_G, strict=True)]
    if credit.baseline == "trajectory":
        return shares
    rewards_G = np.asarray([reward_of(trajectory.outcome) for trajectory in group.trajectories], np.float32)
    for place in range(counts_G.max(initial=0)):
        there = np.flatnonzero(counts_G > place)
        if len(there) > 1:
            for member, value in zip(there, advantages_of(rewards_G[there], config), strict=True):
                shares[member][place] = value
    return shares


def summary_tokens(segment: Segment) -> Bools:
    """[T]: the summary that a segment of that kind ends with, the thinking before it included."""
    mask = np.zeros(len(segment.token_ids), bool)
    if segment.kind == "summary":
        sampled = np.flatnonzero(segment.sampled)
        breaks = np.flatnonzero(np.diff(sampled) > 1)
        mask[sampled[breaks[-1] + 1 if len(breaks) else 0] : sampled[-1] + 1] = True
    return mask
