"""Rates of a benchmark, their intervals, and whether two differ. Pure functions.

Attempts at one task depend on each other, so tasks are what is drawn: an interval that took every attempt for a new
trial would be too narrow.

  pass@1       the mean over tasks of the share solved; Wilson's interval, for as many trials as the attempts are worth
               (Kish's design effect, with the intraclass correlation of the analysis of variance)
  pass@k       1 - C(n - c, k) / C(n, k) of a task with c of n solved, averaged; a bootstrap over tasks
  difference   of paired tasks; a bootstrap over tasks, and a test: McNemar's exact one for single attempts, otherwise
               a permutation of the signs of the tasks' differences
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from etude.rewards.rates import wilson

DRAWS = 10_000
_CHUNK = 1000
Count: TypeAlias = tuple[int, int]
"""Solved and played, of one task; played is at least 1."""
Interval: TypeAlias = tuple[float, float]


def pass_at_k(count: Count, k: int) -> float:
    """The chance that k attempts drawn from those played hold a solved one; k is at most what was played."""
    solved, played = count
    if not 1 <= k <= played:
        raise ValueError(f"pass@{k} of {played} attempts")
    return 1.0 - math.comb(played - solved, k) / math.comb(played, k)


def pass_rate(counts: Sequence[Count]) -> float:
    """pass@1: every task counts the same, however often it was played."""
    return sum(solved / played for solved, played in counts) / len(counts)


def rate_interval(counts: Sequence[Count]) -> Interval:
    """95%, for `pass_rate`."""
    worth = worth_of(counts)
    return wilson(pass_rate(counts) * worth, worth)


def worth_of(counts: Sequence[Count]) -> float:
    """How many independent attempts these are worth: from the number of tasks to the number of attempts."""
    tasks, trials = len(counts), sum(played for _, played in counts)
    if trials == tasks or tasks < 2:
        return float(tasks)
    rate = sum(solved for solved, _ in counts) / trials
    squares = sum(played * played for _, played in counts)
    between = sum(n * (c / n - rate) ** 2 for c, n in counts) / (tasks - 1)
    within = sum(c * (n - c) / n for c, n in counts) / (trials - tasks)
    size = (trials - squares / trials) / (tasks - 1)
    spread = between + (size - 1) * within
    alike = 1.0 if spread == 0.0 else min(1.0, max(0.0, (between - within) / spread))  # no spread tells nothing
    return trials / (1.0 + (squares / trials - 1.0) * alike)


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """95% of the mean, over tasks drawn with replacement. The same for the same values."""
    array, rng = np.asarray(values, dtype=np.float64), np.random.default_rng(seed)
    size = len(array)
    means = np.concatenate([array[rng.integers(0, size, (_CHUNK, size))].mean(axis=1) for _ in range(DRAWS // _CHUNK)])
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p of tasks that one policy alone solved, by the exact binomial."""
    discordant = only_first + only_second
    tail = sum(math.comb(discordant, hits) for hits in range(min(only_first, only_second) + 1))
    return min(1.0, 2.0 * tail / 2**discordant)


def sign_permutation(differences: Sequence[float], seed: int = 0) -> float:
    """Two-sided p of the mean of paired differences, their signs drawn anew."""
    array, rng = np.asarray(differences, dtype=np.float64), np.random.default_rng(seed)
    observed, hits = abs(array.sum()) - 1e-9, 0
    for _ in range(DRAWS // _CHUNK):
        signs = rng.integers(0, 2, (_CHUNK, len(array))) * 2 - 1
        hits += int((np.abs(signs @ array) >= observed).sum())
    return (1 + hits) / (1 + DRAWS)
