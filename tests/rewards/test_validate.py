"""What a sound task is, and that the real and the generated tasks are."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from etude.records import Task
from etude.rewards import realset
from etude.rewards.realset import PINS, Pin, candidates_of, choose, fetch_sources, sound_records, subjects_of
from etude.rewards.validate import validate
from etude.tasks.ladder import ladder_task
from etude.tasks.realcode import real_records, suite_tasks
from etude.tasks.verifiers import calls_verifier

FINE = Task(
    "fine", "", {"m.py": b"def f(a):\n    return -a\n"}, calls_verifier([("m", "f", [1], 1)], 1.5),
    solution={"m.py": b"def f(a):\n    return a\n"},
)  # fmt: skip
FLAKY = b"""
import time
def f(a):
    return a if time.time_ns() // 1000 % 2 else -a
"""


def test_real_and_generated_tasks_are_sound(run):
    async def scenario(backend):
        tasks = [*suite_tasks()[::4], *(ladder_task(rung, "heldout", 3) for rung in (1, 3, 5))]
        found = await asyncio.gather(*(validate(task, backend, runs=1) for task in tasks))
        assert not [(validation.task_id, validation.problems) for validation in found if not validation.sound]

    run(scenario)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"solution": {}}, "no solution"),
        ({"solution": {"other.py": b""}}, "the solution is failed"),
        ({"files": FINE.solution}, "doing nothing is passed"),
        ({"files": {"m.py": b"while True: pass"}}, "doing nothing is timeout"),
        ({"files": {**FINE.files, "check.py": b""}}, "check.py after doing nothing exits with 0"),
        ({"files": {**FINE.files, "check.py": b"raise SystemExit(1)"}}, "check.py after the solution exits with 1"),
    ],
)
def test_an_unsound_task_is_found_out(run, change, problem):
    async def scenario(backend):
        validation = await validate(replace(FINE, **change), backend)
        assert any(problem in text for text in validation.problems), validation

    run(scenario)


def test_a_flaky_solution_is_found_out(run):
    async def scenario(backend):
        validation = await validate(replace(FINE, solution={"m.py": FLAKY}), backend, runs=20)
        assert not validation.sound

    run(scenario)


PACKAGE = '''
def clip(value, low=0, high=9):
    """The value, within bounds."""
    return max(low, min(value, high))


def fixture_only(value):
    return value + 1
'''
TESTS = """
import pytest
from unittest import TestCase
from small import clip, fixture_only

def test_clip():
    assert clip(-1) == 0 and clip(10) == 9 and clip(4) == 4

def test_fixture(tmp_path):
    assert fixture_only(1) == 2

class ClipTests(TestCase):
    def test_bounds(self):
        self.assertEqual(clip(5, 1, 3), 3)
"""


def test_a_set_is_built_from_a_package_and_its_tests(run, tmp_path):
    root = tmp_path / "small-1.0"
    (root / "small").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "small" / "__init__.py").write_text(PACKAGE)
    (root / "tests" / "test_small.py").write_text(TESTS)
    [subject] = subjects_of(Pin("small", "small", "1.0", "MIT", "tests"), tmp_path)
    assert (subject.function, subject.tests) == ("clip", ("test_clip", "ClipTests.test_bounds"))
    assert "pytest" not in subject.files["test_clip.py"]

    async def scenario(backend):
        records = await sound_records(subject, backend)
        assert records
        assert len(records) <= len(candidates_of(subject))
        assert {"builtin", "variable"} <= {record.bug for record in records}
        assert all(record.fail_to_pass for record in records)
        assert len(choose(records, 5)) == 1

    run(scenario)


def test_the_choice_is_even_and_does_not_depend_on_order():
    records = list(real_records())
    assert choose(records, 12) == choose(records[::-1], 12)
    assert len({record.bug for record in choose(records, 12)}) >= 10


def test_sources_that_are_there_are_not_downloaded(tmp_path, monkeypatch):
    for pin in PINS:
        (tmp_path / pin.directory).mkdir()
    monkeypatch.setattr(realset.subprocess, "run", lambda *a, **k: pytest.fail("downloaded"))
    fetch_sources(Path(tmp_path))
