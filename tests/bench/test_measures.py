"""Golden numbers of rates and tests, and intervals that hold what they should as often as they say."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.bench.measures import (
    bootstrap,
    mcnemar,
    pass_at_k,
    pass_rate,
    rate_interval,
    sign_permutation,
    worth_of,
)


@pytest.mark.parametrize(
    ("count", "k", "chance"), [((1, 4), 1, 0.25), ((1, 4), 2, 0.5), ((2, 4), 2, 5 / 6), ((0, 4), 4, 0), ((3, 4), 2, 1)]
)
def test_pass_at_k(count, k, chance):
    assert pass_at_k(count, k) == pytest.approx(chance)


@given(st.integers(1, 12), st.data())
def test_pass_at_k_grows_with_k_and_ends_at_whether_any_was_solved(played, data):
    solved = data.draw(st.integers(0, played))
    chances = [pass_at_k((solved, played), k) for k in range(1, played + 1)]
    assert chances == sorted(chances)
    assert chances[0] == pytest.approx(solved / played) and chances[-1] == float(solved > 0)


def test_more_attempts_than_there_are_have_no_chance():
    with pytest.raises(ValueError, match="pass@5 of 4"):
        pass_at_k((1, 4), 5)


@pytest.mark.parametrize(
    ("first", "second", "p"), [(0, 0, 1.0), (1, 0, 1.0), (0, 6, 2 / 64), (2, 8, 2 * 56 / 1024), (5, 5, 1.0)]
)
def test_mcnemar(first, second, p):
    assert mcnemar(first, second) == pytest.approx(p)


def test_permutation_agrees_with_the_exact_test():
    """With differences of 1 and -1 it is the binomial, but that it counts a sum as far out on either side."""
    assert sign_permutation([1.0] * 8 + [-1.0] * 2) == pytest.approx(mcnemar(2, 8), abs=0.015)
    assert sign_permutation([0.0] * 10) == 1.0


def test_attempts_are_worth_between_one_a_task_and_all():
    assert worth_of([(0, 4), (4, 4)] * 10) == pytest.approx(20, rel=0.1)  # alike within a task: each tells once
    assert worth_of([(4, 4)] * 20) == 20  # no spread tells nothing of how alike they are
    assert worth_of([(2, 4)] * 20) == 80
    assert worth_of([(1, 1), (0, 1), (1, 1)]) == 3


def covered(rates, attempts, rng, trials=300):
    """How often an interval for the mean of `rates`' distribution holds it."""
    truth, hits = 0.5, 0
    for _ in range(trials):
        chosen = [rng.choice(rates) for _ in range(30)]
        counts = [(sum(rng.random() < rate for _ in range(attempts)), attempts) for rate in chosen]
        low, high = rate_interval(counts)
        hits += low <= truth <= high
    return hits / trials


@pytest.mark.parametrize("rates", [(0.5,), (0.1, 0.9), (0.0, 1.0)], ids=["alike", "spread", "all or nothing"])
def test_intervals_hold_the_truth_as_often_as_they_say(rates):
    assert covered(rates, 4, random.Random(1)) >= 0.92


def test_an_interval_of_independent_attempts_would_not():
    """What the design effect is for: where tasks are all or nothing, four attempts tell no more than one."""
    rng, hits = random.Random(2), 0
    for _ in range(300):
        counts = [(4 * rng.choice((0, 1)), 4) for _ in range(30)]
        rate = pass_rate(counts)
        hits += abs(rate - 0.5) <= 1.96 * math.sqrt(rate * (1 - rate) / 120)
    assert hits / 300 < 0.85


def test_bootstrap_is_the_same_every_time_and_holds_the_mean():
    values = [0.0, 0.25, 0.5, 1.0, 1.0]
    assert bootstrap(values) == bootstrap(values)
    low, high = bootstrap(values)
    assert low < sum(values) / 5 < high
    assert bootstrap([0.5, 0.5]) == (0.5, 0.5)
