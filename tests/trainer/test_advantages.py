"""What a rollout is worth: every switch beside plain float64 NumPy, and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proofs import often

from etude.records import Group, InfraFailed, Scored, Segment, Task, Trajectory, Truncated, Verifier
from etude.trainer.advantages import advantages_of, group_advantages
from etude.trainer.config import AdvantageConfig, CreditConfig
from etude.trainer.credit import assign_advantages

ONE = Segment(
    np.array([1, 2], np.int32), np.array([False, True]), np.zeros(2, np.float32), np.zeros(2, np.int32),
    np.zeros((0, 0, 0), np.uint8),
)  # fmt: skip
TASK = Task("t", "do", {}, Verifier({}))


def group(rewards, cut=()):
    outcomes = [Truncated("turns", r, {}) if at in cut else Scored(r, {}) for at, r in enumerate(rewards)]
    return Group("g", TASK, tuple(Trajectory(str(at), "t", "g", (ONE,), (), o) for at, o in enumerate(outcomes)))


def credit(groups, config):
    """The advantages [groups, members] of trajectories of one segment, and what was used."""
    found = assign_advantages(groups, config, CreditConfig())
    return np.array([[float(each[0]) for each in shares] for shares in found.advantages]), found.used


def plain(batch, baseline, normalise):
    """The same in float64, one rollout after another."""
    values = []
    for rewards in np.float64(batch):
        baselines = {
            "mean": [np.mean(rewards) for _ in rewards],
            "leave_one_out": [np.mean(np.delete(rewards, at)) for at in range(len(rewards))],
        }
        values.append([
            (reward - base) / (np.std(rewards) + 1e-6 if normalise == "group" else 1)
            for reward, base in zip(rewards, baselines[baseline], strict=True)
        ])  # fmt: skip
    return np.asarray(values) / (np.std(values) + 1e-6 if normalise == "batch" else 1)


def test_baselines_by_hand():
    rewards = np.array([1, 0, 0, 1], np.float32)
    np.testing.assert_allclose(advantages_of(rewards, AdvantageConfig()), [0.5, -0.5, -0.5, 0.5])
    leave_one_out = advantages_of(rewards, AdvantageConfig(baseline="leave_one_out"))
    np.testing.assert_allclose(leave_one_out, [2 / 3, -2 / 3, -2 / 3, 2 / 3], rtol=1e-6)
    np.testing.assert_allclose(advantages_of(rewards, AdvantageConfig(normalise="group")), [1, -1, -1, 1], atol=1e-5)
    assert advantages_of(np.ones(1, np.float32), AdvantageConfig(baseline="leave_one_out")).tolist() == [0]


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("normalise", ["none", "group", "batch"])
@settings(max_examples=often(30, 100))
@given(rewards=st.lists(st.lists(st.sampled_from([0, 0.25, 0.9, 1]), min_size=5, max_size=5), min_size=1, max_size=4))
def test_a_batch_is_as_plain_numpy_has_it(baseline, normalise, rewards):
    found, _ = credit([group(each) for each in rewards], AdvantageConfig(baseline=baseline, normalise=normalise))
    expected = plain(rewards, baseline, normalise)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=0.05 if expected.std() < 1e-4 else 1e-6)


def test_a_cut_rollout_counts_in_the_baseline_and_is_not_taught():
    found, used = credit([group([1, 0, 0, 1], cut={1, 3})], AdvantageConfig(overlong="leave"))
    np.testing.assert_allclose(found, [[0.5, 0, -0.5, 0]])
    assert used == {"overlong_rollouts": 2}
    found, used = credit([group([1, 0.5, 0, 0.5], cut={1, 2})], AdvantageConfig(overlong="leave"))
    np.testing.assert_allclose(found, [[0.5, 0, 0, 0]])
    assert used == {"overlong_rollouts": 1}  # the other's was 0 already
    kept, used = credit([group([1, 0, 0, 1], cut={1, 3})], AdvantageConfig())
    np.testing.assert_allclose(kept, [[0.5, -0.5, -0.5, 0.5]])
    assert used == {}


def test_a_batch_deviation_counts_each_trajectory_once_whatever_its_segments():
    long = Trajectory("l", "t", "g", (ONE,) * 9, (), Scored(1, {}))
    both = Group("g", TASK, (long, *group([0, 0.4]).trajectories))
    found = assign_advantages([both], AdvantageConfig(normalise="batch"), CreditConfig()).advantages[0]
    np.testing.assert_allclose([each[0] for each in found], plain([[1, 0, 0.4]], "mean", "batch")[0], rtol=1e-4)
    assert [len(each) for each in found] == [9, 1, 1]


def test_every_switch_counts_what_it_changed():
    rows = [group([1, 0, 0, 1]), group([1, 1, 1, 1])]
    chosen = AdvantageConfig(baseline="leave_one_out", normalise="batch", overlong="leave")
    _, used = credit(rows, chosen)
    assert used == {"baselined_rollouts": 0, "normalised_rollouts": 4, "overlong_rollouts": 0}, (
        "of groups of one size the batch's deviation divides by what leave_one_out multiplies with"
    )
    assert set(used) == set(chosen.features)
    assert AdvantageConfig().features == ()
    used = assign_advantages([*rows, group([1, 0])], chosen, CreditConfig()).used
    assert used["baselined_rollouts"] == 6


@pytest.mark.parametrize("normalise", ["none", "group", "batch"])
def test_a_baseline_that_is_the_mean_by_another_name_has_changed_nothing(normalise):
    named = AdvantageConfig(baseline="etude.trainer.advantages:less_mean", normalise=normalise)
    assert credit([group([0.3, 0, 0.1])], named)[1]["baselined_rollouts"] == 0
    other = AdvantageConfig(baseline="leave_one_out", normalise="none" if normalise == "batch" else normalise)
    assert credit([group([0.3, 0, 0.1]), group([1, 1, 1])], other)[1]["baselined_rollouts"] == 3


def test_a_deviation_of_1_has_changed_nothing():
    _, used = credit([group([2, 0]), group([1, 0])], AdvantageConfig(normalise="group"))
    assert used == {"normalised_rollouts": 2}


def test_a_rollout_without_a_reward_is_refused():
    failed = Group("g", TASK, (Trajectory("a", "t", "g", (), (), InfraFailed("disk")),))
    with pytest.raises(ValueError, match="infrastructure"):
        group_advantages(failed, AdvantageConfig())
