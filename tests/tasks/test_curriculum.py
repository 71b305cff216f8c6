"""Difficulty, and a curriculum that follows a model as it learns: what it draws, forgets, and keeps over a restart."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from etude.tasks.curriculum import Curriculum
from etude.tasks.difficulty import level_by_size, level_of, measured, solved_of
from etude.tasks.ladder import ladder_task
from etude.tasks.realcode import suite_tasks

TASKS = [ladder_task(rung, "train", seed) for rung in range(1, 6) for seed in range(4)]
LEVELS = {place: level_of(task) for place, task in enumerate(TASKS)}
ALL = tuple(LEVELS)


def shares(curriculum):
    """Of what is drawn, by level."""
    found = Counter()
    for task, weight in curriculum.weights(ALL).items():
        found[LEVELS[task]] += weight
    return found


def play(curriculum, skill, rounds):
    """A model that solves the levels up to `skill`, and of the next one half."""
    for attempt in range(rounds):
        for task, level in LEVELS.items():
            curriculum.record(task, level <= skill or (level == skill + 1 and attempt % 2 == 0))


def test_levels_come_from_rungs_sizes_and_solutions():
    assert [level_of(task) for task in TASKS[::4]] == [1, 2, 3, 4, 5]
    assert [level_by_size(1, lines) for lines in (1, 3, 4, 10, 11, 30, 31, 80, 81)] == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert level_by_size(3, 1) == 3
    real = suite_tasks()[0]
    assert level_of(real) == 1
    assert level_of(replace(real, provenance={"difficulty": {"files": 2, "lines": 40}})) == 4
    assert level_of(replace(real, solution={}, provenance={"difficulty": "hard"})) == 3


def test_what_was_measured_stays_with_a_task():
    task = measured(TASKS[0], 3, 8)
    assert solved_of(task) == 0.375 and level_of(task) == 1 and solved_of(TASKS[0]) is None
    with pytest.raises(ValueError, match="9 of 8"):
        measured(task, 9, 8)


def test_harder_tasks_are_drawn_as_the_model_improves():
    curriculum = Curriculum(LEVELS)
    play(curriculum, 0, 100)
    weak = shares(curriculum)
    play(curriculum, 3, 400)
    strong = shares(curriculum)
    assert weak[1] > 0.5 and strong[4] > 0.5
    assert sum(level * (strong[level] - weak[level]) for level in range(1, 6)) > 1.5
    assert all(strong[level] > 0 for level in range(1, 6)), "nothing is dropped for good"
    play(curriculum, 0, 1000)
    assert shares(curriculum)[1] > strong[1] * 3, "what is forgotten comes back"


def test_a_task_unlike_its_level_is_weighed_by_itself():
    curriculum = Curriculum(LEVELS)
    for _ in range(16):
        for task in range(4):
            curriculum.record(task, solved=task > 0 or _ % 2 == 0)
    weights = curriculum.weights(ALL)
    assert weights[0] > 2 * weights[1]
    known = Curriculum(LEVELS, {0: 1.0})
    assert known.expected(0) > known.expected(1)


def test_what_was_never_tried_is_expected_to_do_as_its_neighbours():
    curriculum = Curriculum({1: 1, 2: 2, 3: 3})
    assert curriculum.expected(2) == 0.5
    for _ in range(200):
        curriculum.record(2, solved=True)
    assert 0.4 < curriculum.expected(3) < 0.5 < 0.9 < curriculum.expected(1)


def test_it_is_the_same_after_a_restart():
    first = Curriculum(LEVELS)
    play(first, 2, 50)
    second = Curriculum(LEVELS, saved=json.loads(json.dumps(first.state())))
    assert second.weights(ALL) == first.weights(ALL) and sum(first.weights(ALL).values()) == pytest.approx(1)
    fewer = Curriculum({0: 1, 1: 1}, saved=first.state())
    assert set(fewer.weights((0, 1))) == {0, 1}
