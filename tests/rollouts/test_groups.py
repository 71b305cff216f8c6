"""The life of a group: closed when enough are in, dropped with a reason, given out once, never stale."""

from dataclasses import replace

import numpy as np

from etude.harness.sampler import NO_ROUTES
from etude.records import InfraFailed, Scored, Segment, Task, Trajectory, Truncated, Verifier, reward_of
from etude.rollouts.groups import GroupConfig, GroupPool
from etude.rollouts.slots import Slots

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


def pool_of(**config):
    return GroupPool(GroupConfig(**config), Slots(0))


def sent(pool, index):
    """The slots of a new group, all with workers."""
    slots = pool.start(index, TASK).slots
    for slot in slots:
        pool.slots.move(slot, "starting")
    return slots


def come_in(pool, slot, reward, version=0, now=0.0):
    if reward is not None:
        pool.slots.observe(slot, 1, "scored")
    pool.add(rollout(slot, reward, version), now)


def filled(pool, index, rewards, version=0):
    for slot, reward in zip(sent(pool, index), rewards, strict=True):
        come_in(pool, slot, reward, version)


def test_a_full_group_is_ready_and_given_out_once():
    pool = pool_of(size=4)
    filled(pool, 0, [0, 1, 1, 0])
    [group] = pool.take(1, version=0)
    assert [m.outcome.reward for m in group.trajectories] == [0, 1, 1, 0]
    assert pool.take(1, version=0) is None


def test_infrastructure_failures_leave_before_the_baseline():
    pool = pool_of(size=4)
    filled(pool, 0, [0, 1, None, None])
    [group] = pool.take(1, version=0)
    assert len(group.trajectories) == 2
    filled(pool, 1, [1, None, None, None])
    assert pool.dropped["too_few_scored"] == 1
    assert pool.take(1, version=0) is None


def test_a_rollout_that_a_limit_cut_keeps_its_verdict_or_leaves_before_the_baseline():
    for drop, left in ((False, [0, 1, 0, 1]), (True, [0, 1])):
        pool = pool_of(size=4, drop_overlong=drop)
        for at, slot in enumerate(sent(pool, 0)):
            played = rollout(slot, at % 2)
            cut = replace(played, outcome=Truncated("turns", float(at % 2), {})) if at > 1 else played
            pool.slots.observe(slot, 1, "scored")
            pool.add(cut, now=0.0)
        [group] = pool.take(1, version=0)
        assert [reward_of(member.outcome) for member in group.trajectories] == left
        assert pool.slots.dropped["overlong"] == 4 - len(left)


def test_groups_without_variance_are_dropped_and_counted():
    pool = pool_of(size=4)
    filled(pool, 0, [1, 1, 1, 1])
    assert pool.dropped["zero_variance"] == 1
    keep = pool_of(size=4, drop_zero_variance=False)
    filled(keep, 0, [1, 1, 1, 1])
    assert keep.take(1, version=0)


def test_stale_groups_are_dropped_when_they_would_be_trained_on():
    pool = pool_of(size=2, max_staleness=2)
    filled(pool, 0, [0, 1], version=1)
    filled(pool, 1, [0, 1], version=3)
    [group] = pool.take(1, version=4)
    assert group.id == "g1"
    assert pool.dropped["stale"] == 1


def test_stragglers_do_not_hold_a_group():
    pool = pool_of(size=4, early_close_share=0.75, straggler_s=5)
    ids = sent(pool, 0)
    for slot, reward in zip(ids[:3], [0, 1, 0], strict=True):
        come_in(pool, slot, reward, now=10.0)
    assert pool.close_stragglers(now=14.0) == []
    assert pool.close_stragglers(now=16.0) == [ids[3]]
    [group] = pool.take(1, version=0)
    assert len(group.trajectories) == 3
    come_in(pool, ids[3], 1, now=17.0)  # it comes in after all, and changes nothing
    assert pool.take(1, version=0) is None
    assert pool.closed_early == 1
    assert pool.slots.dropped == {"straggler": 1}


def test_what_is_owed_is_what_was_dispatched_and_not_given_out():
    pool = pool_of(size=2)
    filled(pool, 3, [0, 1])
    filled(pool, 4, [1, 1])
    pool.start(5, TASK)
    assert pool.pending() == [3, 5]
    pool.take(1, version=0)
    assert pool.pending() == [5]


def test_every_sample_ends_as_its_group_does():
    pool = pool_of(size=2, max_staleness=2)
    filled(pool, 0, [0, 1])
    filled(pool, 1, [1, 1])
    filled(pool, 2, [1, None])
    filled(pool, 3, [0, 1], version=-3)
    groups = pool.take(1, version=0)
    assert pool.slots.counts()["grouped"] == 2
    pool.trained(groups)
    assert pool.slots.trained == 2
    assert pool.slots.dropped == {"zero_variance": 2, "too_few_scored": 1, "infra": 1, "stale": 2}


def test_groups_of_a_lost_step_are_ready_again_before_all_others():
    pool = pool_of(size=2)
    for index in range(3):
        filled(pool, index, [0, 1])
    lost = pool.take(2, version=0)
    pool.put_back(lost)
    assert [group.id for group in pool.take(3, version=0)] == ["g0", "g1", "g2"]


def test_members_stand_in_the_order_of_their_slots():
    pool = pool_of(size=3)
    ids = sent(pool, 0)
    for slot in (ids[2], ids[0], ids[1]):
        come_in(pool, slot, float(slot == ids[0]))
    [group] = pool.take(1, version=0)
    assert [member.id for member in group.trajectories] == ids
