"""Schedules: what may be sampled when, by which version, and what a step is made of; and which task comes next."""

import pytest
from played import TASK, come_in, filled, pool_in, rollout, sent
from pydantic import ValidationError

from etude.errors import ConfigError
from etude.records import Version
from etude.rollouts.config import RolloutConfig, RunConfig
from etude.rollouts.groups import GroupConfig
from etude.rollouts.schedule import schedule_of
from etude.rollouts.stream import Source, TaskStream, of_directories
from etude.tasks.harbor import write_task
from etude.tasks.ladder import ladder_task


def recipe(groups=None, **rollouts):
    groups = GroupConfig(size=2, **(groups or {}))
    return RunConfig(name="test", groups=groups, rollouts=RolloutConfig(groups_per_step=2, **rollouts))


def lockstep(lag, **rollouts):
    return schedule_of(recipe(schedule="lockstep", lag=lag, **rollouts))


def test_free_keeps_no_more_than_would_be_stale(tmp_path):
    schedule, pool = schedule_of(recipe({"max_staleness": 1})), pool_in(tmp_path, size=2)
    opened = 0
    while schedule.wants(opened, pool):
        pool.start(opened, TASK)
        opened += 1
    assert opened == 4
    schedule.stepped(Version(3))
    assert schedule.target_version(pool) == 3


@pytest.mark.parametrize("lag", [0, 1])
def test_in_lockstep_a_step_trains_its_own_groups_sampled_by_one_version(tmp_path, lag):
    schedule, pool, version, sampled = lockstep(lag, max_steps=5), pool_in(tmp_path, size=2), Version(0), {}
    trained = []
    while not schedule.over(0.0, version):
        schedule.engine_version = schedule.target_version(pool)
        while schedule.wants(pool.next_index, pool):
            index = pool.next_index
            sampled[index] = schedule.engine_version
            slots = sent(pool, index)
            assert schedule.take(pool, version) is None or index >= 2 * (version + 1)
            for slot in slots:
                assert schedule.accepts(rollout(slot, 1.0, schedule.engine_version))
                assert not schedule.accepts(rollout(slot, 1.0, schedule.engine_version + 1))
                come_in(pool, slot, float(slot.endswith("/0")), schedule.engine_version)
            if lag and index == 2 * version + 1:
                break  # the round is whole; the next one is sampled beside its step
        groups = schedule.take(pool, version)
        trained.append([group.id for group in groups])
        version = Version(version + 1)
        schedule.stepped(version)
    assert trained == [[f"g{2 * step}", f"g{2 * step + 1}"] for step in range(5)]
    assert all(held == max(0, index // 2 - lag) for index, held in sampled.items())


def test_in_lockstep_engines_keep_their_version_while_groups_are_open(tmp_path):
    schedule, pool = lockstep(1), pool_in(tmp_path, size=2)
    for index in range(2):
        filled(pool, index, [0, 1])
    assert schedule.take(pool, Version(0))
    slots = sent(pool, 2), sent(pool, 3)  # the next round, by version 0 as well
    schedule.stepped(Version(1))
    assert schedule.target_version(pool) == 0
    assert not schedule.wants(4, pool)
    for slot in (*slots[0], *slots[1]):
        come_in(pool, slot, float(slot.endswith("/0")))
    assert schedule.target_version(pool) == 1


def test_in_lockstep_a_group_without_variance_leaves_its_batch_and_an_empty_one_makes_no_step(tmp_path):
    schedule, pool = lockstep(0), pool_in(tmp_path, size=2)
    filled(pool, 0, [1, 1])
    filled(pool, 1, [0, 1])
    assert [group.id for group in schedule.take(pool, Version(0))] == ["g1"]
    schedule.stepped(Version(1))
    filled(pool, 2, [1, 1], version=1)
    filled(pool, 3, [0, 0], version=1)
    assert schedule.take(pool, Version(1)) is None
    assert schedule.state() == {"round": 2, "versions": [1]}
    schedule.engine_version = Version(1)
    assert schedule.wants(4, pool)


def test_lockstep_goes_on_where_a_checkpoint_left_it():
    schedule = lockstep(1)
    saved = {"schedule": schedule.state(), "line": {"version": 1}}
    schedule.stepped(Version(1))
    again = schedule_of(recipe(schedule="lockstep", lag=1), saved)
    assert again.state() == schedule.state() == {"round": 1, "versions": [0, 1]}
    assert again.first() == 0


def test_what_would_make_lockstep_depend_on_speed_is_refused():
    with pytest.raises(ValidationError, match="lockstep"):
        recipe({}, schedule="lockstep", by_difficulty=True)


def stream(**options):
    source = Source(lambda rung, index: (rung, index), (1, 2, 3), {1: 1, 2: 2, 3: 3}, {})
    return TaskStream(source, **options)


def test_tasks_come_in_turns_and_go_on_after_a_resume():
    tasks = stream()
    assert [tasks.draw().task for _ in range(4)] == [(1, 0), (2, 1), (3, 2), (1, 3)]
    assert stream(saved=tasks.state()).draw().task == (2, 4)


def test_by_difficulty_rungs_are_drawn_by_the_variance_of_their_rates():
    tasks = stream(by_difficulty=True)
    for at in range(2000):
        tasks.played(1, solved=True)
        tasks.played(2, solved=at % 2 == 0)
        tasks.played(3, solved=False)
    weights = tasks.curriculum.weights((1, 2, 3))
    assert weights[2] == pytest.approx(1 / 1.2, abs=0.01)
    assert weights[1] == pytest.approx(weights[3]) == pytest.approx(0.1 / 1.2, abs=0.01)
    drawn = [tasks.draw().rung for _ in range(600)]
    assert drawn.count(2) / 600 == pytest.approx(weights[2], abs=0.06)
    assert {1, 3} <= set(drawn)
    assert tasks.counters["drawn_by_difficulty"] == sum(rung != (1, 2, 3)[at % 3] for at, rung in enumerate(drawn))
    again = stream(by_difficulty=True, saved=tasks.state())
    assert again.draw() == tasks.draw()


def test_a_rate_forgets_what_was_long_ago():
    tasks = stream(by_difficulty=True)
    for _ in range(1000):
        tasks.played(1, solved=False)
    for _ in range(1000):
        tasks.played(1, solved=True)
    assert tasks.curriculum.expected(1) > 0.95


def test_tasks_of_ones_own_are_drawn_in_turns_or_by_what_is_known_of_them(tmp_path):
    for seed in range(4):
        write_task(ladder_task(1 + seed, "train", seed), tmp_path / str(seed))
    write_task(ladder_task(1, "eval", 9), tmp_path / "other")
    source = of_directories([tmp_path])
    assert sorted(source.levels.values()) == [1, 2, 3, 4], "those for evaluation are left out"
    tasks = TaskStream(source)
    drawn = [tasks.draw() for _ in range(8)]
    assert [each.task.id for each in drawn[:4]] == [each.task.id for each in drawn[4:]]
    assert len({each.task.id for each in drawn}) == 4 and tasks.again(2, drawn[2].rung) == drawn[2]
    with pytest.raises(ConfigError, match="no such task directory"):
        of_directories([tmp_path / "nowhere"])
    with pytest.raises(ValidationError, match="rungs has no effect"):
        recipe(tasks=[tmp_path], rungs=[1])
