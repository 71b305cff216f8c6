"""The life of a group: closed when enough are in, dropped with a reason, given out once, never stale."""

from dataclasses import replace
from functools import partial

import pytest
from played import TASK, come_in, filled, pool_in, rollout, sent

from etude.records import Cheated, Scored, Truncated, reward_of
from etude.rollouts.groups import HELD_S

WHOLE = 100  # a window that everything is within


@pytest.fixture
def pool_of(tmp_path):
    return partial(pool_in, tmp_path)


def names(groups):
    return groups and [group.id for group in groups]


def test_a_full_group_is_ready_and_given_out_once(pool_of):
    pool = pool_of(size=4)
    filled(pool, 0, [0, 1, 1, 0])
    [group] = pool.take(1, 0, WHOLE)
    assert [m.outcome.reward for m in group.samples] == [0, 1, 1, 0]
    assert pool.take(1, 0, WHOLE) is None


def test_infrastructure_failures_leave_before_the_baseline(pool_of):
    pool = pool_of(size=4)
    filled(pool, 0, [0, 1, None, None])
    [group] = pool.take(1, 0, WHOLE)
    assert len(group.samples) == 2
    filled(pool, 1, [1, None, None, None])
    assert pool.dropped["too_few_scored"] == 1
    assert pool.take(1, 0, WHOLE) is None


@pytest.mark.parametrize(("drop", "left"), [(False, [0, 1, 0, 1]), (True, [0, 1])])
def test_a_rollout_that_a_limit_cut_keeps_its_verdict_or_leaves_before_the_baseline(pool_of, drop, left):
    pool = pool_of(size=4, overlong="drop" if drop else "keep")
    for at, slot in enumerate(sent(pool, 0)):
        played = rollout(slot, at % 2)
        cut = replace(played, outcome=Truncated("turns", float(at % 2), {})) if at > 1 else played
        pool.slots.advance_to(slot, 1, "scored")
        pool.add(cut, now=0.0)
    [group] = pool.take(1, 0, WHOLE)
    assert [reward_of(member.outcome) for member in group.samples] == left
    assert pool.slots.dropped["overlong"] == 4 - len(left)


def scored(tests, **beside):
    return Scored(tests + sum(beside.values()), {"tests": tests, **beside})


SOLVED_BY_EFFORT = [scored(1.0, effort=-0.01), scored(1.0, effort=-0.02)]
FAILED_BY_FORM = [scored(0.0, malformed=-0.02), Truncated("turns", 0.0, {"tests": 0.0})]
GROUPS = {
    "alike in all": [scored(1.0), scored(1.0)],
    "all solved": SOLVED_BY_EFFORT,
    "none solved": FAILED_BY_FORM,
    "all cheated": [Cheated("a", -0.1), Cheated("b", -0.1)],
    "one cheated, one failed": [Cheated("a", -0.1), scored(0.0, malformed=-0.1)],
    "one of each": [scored(0.0), scored(1.0, effort=-1.0)],  # alike by reward alone
}


@pytest.mark.parametrize(
    ("which", "dropped"),
    [
        (None, {"alike in all", "all solved", "none solved", "all cheated"}),
        ("verdict", {"alike in all", "all solved", "none solved", "all cheated"}),
        ("reward", {"alike in all", "all cheated", "one cheated, one failed", "one of each"}),
        ("never", set()),
    ],
)
def test_groups_without_variance_are_dropped_and_counted(pool_of, which, dropped):
    pool = pool_of(size=2, **({"drop_zero_variance": which} if which else {}))
    for index, outcomes in enumerate(GROUPS.values()):
        for slot, outcome in zip(sent(pool, index), outcomes, strict=True):
            pool.slots.advance_to(slot, 1, "scored")
            pool.add(replace(rollout(slot, 1.0), outcome=outcome), now=0.0)
    assert pool.dropped["zero_variance"] == len(dropped)
    left = [f"g{index}" for index, name in enumerate(GROUPS) if name not in dropped]
    assert names(pool.take(len(left), 0, WHOLE) if left else []) == left


def test_stale_groups_are_dropped_when_they_would_be_trained_on(pool_of):
    pool = pool_of(size=2, max_staleness=2, when_stale="drop")
    filled(pool, 0, [0, 1], version=1)
    filled(pool, 1, [0, 1], version=3)
    assert names(pool.take(1, 4, WHOLE)) == ["g1"]
    assert pool.dropped["stale"] == 1


def test_stragglers_do_not_hold_a_group(pool_of):
    pool = pool_of(size=4, straggler_s=5)
    ids = sent(pool, 0)
    for slot, reward in zip(ids[:3], [0, 1, 0], strict=True):
        come_in(pool, slot, reward, now=10.0)
    pool.close_stragglers(now=14.0)
    assert pool.late == []
    pool.close_stragglers(now=16.0)
    assert pool.late == [ids[3]]
    [group] = pool.take(1, 0, WHOLE)
    assert len(group.samples) == 3
    come_in(pool, ids[3], 1, now=17.0)  # it comes in after all, and changes nothing
    assert pool.take(1, 0, WHOLE) is None
    assert pool.counters["closed_early"] == 1
    assert pool.slots.dropped == {"straggler": 1}


def test_what_is_quickly_over_does_not_overtake_beyond_the_window(pool_of):
    pool = pool_of(size=2)
    slow = sent(pool, 0)
    for index in range(1, 6):
        filled(pool, index, [0, 1])
    assert pool.take(3, 0, 3) is None
    assert pool.counters["held_by_window"] == 1
    assert names(pool.take(2, 0, 3)) == ["g1", "g2"]
    for slot, reward in zip(slow, (0, 1), strict=True):
        come_in(pool, slot, reward)
    assert names(pool.take(3, 0, 3)) == ["g0", "g3", "g4"]
    assert names(pool.take(1, 0, 3)) == ["g5"]


def test_the_trainer_waits_for_what_its_next_version_would_make_stale(pool_of):
    pool = pool_of(size=2, max_staleness=2)  # by default
    slow = sent(pool, 0, version=1)
    for index in (1, 2, 3):
        filled(pool, index, [0, 1], version=3)
    assert names(pool.take(1, 2, WHOLE)) == ["g1"]
    assert pool.take(1, 3, WHOLE) is None  # after this step the oldest would be three versions old
    assert pool.counters["waited_for_oldest"] == 1 and pool.held_by() == ["g0"]
    for slot, reward in zip(slow, (0, 1), strict=True):
        come_in(pool, slot, reward, version=1)
    assert names(pool.take(1, 3, WHOLE)) == ["g0"]
    assert names(pool.take(2, 4, WHOLE)) == ["g2", "g3"]
    assert pool.dropped["stale"] == 0


def test_a_step_waits_for_a_group_no_longer_than_its_sessions_may_take(pool_of):
    pool = pool_of(size=4, max_staleness=1)
    slow = sent(pool, 0, version=0)
    filled(pool, 1, [0, 1, 0, 1], version=1)
    come_in(pool, slow[0], 1)
    come_in(pool, slow[1], 0)
    patience_s = HELD_S + TASK.limits.wall_s
    pool.close_stragglers(now=10.0)  # nobody waits yet
    assert pool.take(1, 1, WHOLE) is None
    pool.close_stragglers(now=20.0)
    pool.close_stragglers(now=20.0 + patience_s)
    assert pool.late == [] and pool.take(1, 1, WHOLE) is None
    pool.close_stragglers(now=20.1 + patience_s)
    assert pool.late == slow[2:] and pool.counters["held_too_long"] == 1
    assert names(pool.take(1, 1, WHOLE)) == ["g0"] and pool.held_by() == []


def test_what_is_only_to_be_judged_yet_is_no_straggler(pool_of):
    pool = pool_of(size=4, straggler_s=5)
    ids = sent(pool, 0)
    for slot, reward in zip(ids[:3], [0, 1, 0], strict=True):
        come_in(pool, slot, reward, now=10.0)
    pool.slots.advance_to(ids[3], 1, "rewarding")
    pool.close_stragglers(now=100.0)
    assert pool.late == [] and names(pool.take(1, 0, WHOLE)) is None
    pool.slots.advance_to(ids[3], 1, "sealed")  # its judge was lost
    pool.slots.requeue(ids[3])  # and what was sealed
    pool.close_stragglers(now=101.0)
    assert pool.late == [ids[3]] and names(pool.take(1, 0, WHOLE)) == ["g0"]


def test_whoever_waits_trains_on_all_that_have_their_last_chance(pool_of):
    pool = pool_of(size=2, max_staleness=1)
    for index in range(3):
        filled(pool, index, [0, 1], version=0)
    assert names(pool.take(1, 1, WHOLE)) == ["g0", "g1", "g2"]


def test_what_is_owed_is_what_was_dispatched_and_not_given_out(pool_of):
    pool = pool_of(size=2)
    filled(pool, 3, [0, 1])
    filled(pool, 4, [1, 1])
    pool.start(5, TASK)
    assert pool.pending() == [3, 5]
    pool.take(1, 0, WHOLE)
    assert pool.pending() == [5]


def test_every_sample_ends_as_its_group_does(pool_of):
    pool = pool_of(size=2, max_staleness=2, when_stale="drop")
    filled(pool, 0, [0, 1])
    filled(pool, 1, [1, 1])
    filled(pool, 2, [1, None])
    filled(pool, 3, [0, 1], version=-3)
    assert names(pool.take(1, 0, WHOLE)) == ["g0"]
    assert pool.slots.counts()["grouped"] == 2
    assert pool.trained(["g0"]) == [0]
    assert pool.slots.trained == 2
    assert pool.slots.dropped == {"zero_variance": 2, "too_few_scored": 1, "infra": 1, "stale": 2}
    assert sorted(pool.ended()) == [1, 2, 3]
    assert pool.ended() == []


def test_members_stand_in_the_order_of_their_slots(pool_of):
    pool = pool_of(size=3)
    ids = sent(pool, 0)
    for slot in (ids[2], ids[0], ids[1]):
        come_in(pool, slot, float(slot == ids[0]))
    [group] = pool.take(1, 0, WHOLE)
    assert [member.id for member in group.samples] == ids
