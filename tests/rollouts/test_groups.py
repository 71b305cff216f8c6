"""The life of a group: closed when enough are in, dropped with a reason, given out once, never stale."""

import numpy as np

from etude.harness.sampler import NO_ROUTES
from etude.records import InfraFailed, Scored, Segment, Task, Trajectory, Verifier
from etude.rollouts.groups import GroupConfig, GroupPool

TASK = Task("t", "do", {}, Verifier({}))


def rollout(rollout_id, reward, version=0):
    segment = Segment(
        np.array([1, 2], np.int32),
        np.array([False, True]),
        np.zeros(2, np.float32),
        np.full(2, version, np.int32),
        NO_ROUTES,
    )
    outcome = InfraFailed("sandbox") if reward is None else Scored(reward, {"tests": reward})
    return Trajectory(rollout_id, "t", rollout_id.partition("/")[0], () if reward is None else (segment,), (), outcome)


def filled(pool, name, rewards, index=0, version=0):
    for rollout_id, reward in zip(pool.start(name, TASK, index), rewards, strict=True):
        pool.add(rollout(rollout_id, reward, version), now=0.0)


def test_a_full_group_is_ready_and_given_out_once():
    pool = GroupPool(GroupConfig(size=4))
    filled(pool, "g", [0, 1, 1, 0])
    [group] = pool.take(1, version=0)
    assert [m.outcome.reward for m in group.trajectories] == [0, 1, 1, 0]
    assert pool.take(1, version=0) is None


def test_infrastructure_failures_leave_before_the_baseline():
    pool = GroupPool(GroupConfig(size=4))
    filled(pool, "g", [0, 1, None, None])
    [group] = pool.take(1, version=0)
    assert len(group.trajectories) == 2
    filled(pool, "h", [1, None, None, None])
    assert pool.dropped["too_few_scored"] == 1
    assert pool.take(1, version=0) is None


def test_groups_without_variance_are_dropped_and_counted():
    pool = GroupPool(GroupConfig(size=4))
    filled(pool, "g", [1, 1, 1, 1])
    assert pool.dropped["zero_variance"] == 1
    keep = GroupPool(GroupConfig(size=4, drop_zero_variance=False))
    filled(keep, "g", [1, 1, 1, 1])
    assert keep.take(1, version=0)


def test_stale_groups_are_dropped_when_they_would_be_trained_on():
    pool = GroupPool(GroupConfig(size=2, max_staleness=2))
    filled(pool, "old", [0, 1], version=1)
    filled(pool, "new", [0, 1], version=3)
    [group] = pool.take(1, version=4)
    assert group.id == "new"
    assert pool.dropped["stale"] == 1


def test_stragglers_do_not_hold_a_group():
    pool = GroupPool(GroupConfig(size=4, early_close_share=0.75, straggler_s=5))
    ids = pool.start("g", TASK, 0)
    for rollout_id, reward in zip(ids[:3], [0, 1, 0], strict=True):
        pool.add(rollout(rollout_id, reward), now=10.0)
    assert pool.close_stragglers(now=14.0) == []
    assert pool.close_stragglers(now=16.0) == [ids[3]]
    [group] = pool.take(1, version=0)
    assert len(group.trajectories) == 3
    pool.add(rollout(ids[3], 1), now=17.0)  # it comes in after all, and changes nothing
    assert pool.take(1, version=0) is None
    assert pool.closed_early == 1


def test_what_is_owed_is_what_was_dispatched_and_not_given_out():
    pool = GroupPool(GroupConfig(size=2))
    filled(pool, "a", [0, 1], index=3)
    filled(pool, "b", [1, 1], index=4)
    pool.start("c", TASK, 5)
    assert pool.pending() == [3, 5]
    pool.take(1, version=0)
    assert pool.pending() == [5]
