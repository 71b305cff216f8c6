"""Difficulty, and a curriculum that follows a model as it learns: what it draws, forgets, and keeps over a restart."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from etude.errors import ConfigError
from etude.tasks.curriculum import Curriculum, CurriculumConfig
from etude.tasks.difficulty import level_of, measured, sized, solved_of
from etude.tasks.ladder import ladder_task
from etude.tasks.realcode import real_tasks

TASKS = [ladder_task(rung, "train", seed) for rung in range(1, 6) for seed in range(4)]
CONFIG = CurriculumConfig()


def drawn(curriculum, count=400, start=0):
    return Counter(level_of(curriculum.draw(index)) for index in range(start, start + count))


def play(curriculum, skill, groups, start=0):
    """Groups of eight by a model that solves the levels up to `skill`, and of the next one half."""
    for index in range(start, start + groups):
        task = curriculum.draw(index)
        level = level_of(task)
        curriculum.told(task.id, 8 if level <= skill else 4 if level == skill + 1 else 0, 8)


def test_levels_come_from_rungs_sizes_and_solutions():
    assert [level_of(task) for task in TASKS[::4]] == [1, 2, 3, 4, 5]
    assert [sized(1, lines) for lines in (1, 3, 4, 10, 11, 30, 31, 80, 81)] == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert sized(3, 1) == 3
    real = real_tasks()[0]
    assert level_of(real) == 1
    assert level_of(replace(real, provenance={"difficulty": {"files": 2, "lines": 40}})) == 4
    assert level_of(replace(real, solution={}, provenance={"difficulty": "hard"})) == 3


def test_what_was_measured_stays_with_a_task():
    task = measured(TASKS[0], 3, 8)
    assert solved_of(task) == 0.375 and level_of(task) == 1 and solved_of(TASKS[0]) is None
    with pytest.raises(ValueError, match="9 of 8"):
        measured(task, 9, 8)


def test_harder_tasks_are_drawn_as_the_model_improves():
    curriculum = Curriculum(TASKS, CONFIG)
    play(curriculum, 0, 150)
    weak = drawn(curriculum, start=1000)
    play(curriculum, 3, 300, start=150)
    strong = drawn(curriculum, start=1000)
    assert weak[1] > 0.5 * sum(weak.values()) and strong[4] > 0.5 * sum(strong.values())
    mean = [sum(level * times for level, times in some.items()) / sum(some.values()) for some in (weak, strong)]
    assert mean[1] - mean[0] > 1.5
    assert all(strong[level] > 0 for level in range(1, 6)), "nothing is dropped for good"
    play(curriculum, 0, 600, start=2000)
    assert drawn(curriculum, start=1000)[1] > strong[1] * 3, "what is forgotten comes back"


def test_a_task_unlike_its_level_is_weighed_by_itself():
    curriculum = Curriculum(TASKS, CONFIG)
    odd = TASKS[0].id
    for task in TASKS[:4]:
        curriculum.told(task.id, 4 if task.id == odd else 8, 8)
        curriculum.told(task.id, 4 if task.id == odd else 8, 8)
    assert curriculum.weight(odd) > 2 * curriculum.weight(TASKS[1].id)
    known = Curriculum([measured(TASKS[0], 8, 8), TASKS[1]], CONFIG)
    assert known.expected(odd) > known.expected(TASKS[1].id)


def test_it_is_the_same_after_a_restart_and_on_every_machine():
    first, second = Curriculum(TASKS, CONFIG, seed=3), Curriculum(TASKS, CONFIG, seed=3)
    play(first, 2, 50)
    second.restore(json.loads(json.dumps(first.state())))
    assert [first.draw(n).id for n in range(50)] == [second.draw(n).id for n in range(50)]
    assert [first.draw(n).id for n in range(50)] != [Curriculum(TASKS, CONFIG, seed=4).draw(n).id for n in range(50)]
    assert sum(first.shares().values()) == pytest.approx(1)
    fewer = Curriculum(TASKS[4:], CONFIG, seed=3)
    fewer.restore(first.state())
    assert fewer.draw(0) in TASKS[4:]


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="no two of one id"):
        Curriculum([TASKS[0], TASKS[0]], CONFIG)
    with pytest.raises(ConfigError, match="at least one"):
        Curriculum([], CONFIG)
    with pytest.raises(ValueError, match="3 of 2"):
        Curriculum(TASKS, CONFIG).told(TASKS[0].id, 3, 2)
