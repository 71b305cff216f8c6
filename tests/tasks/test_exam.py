"""The exam: its parts, and what its seal holds."""

from dataclasses import replace
from itertools import islice

from etude.tasks.exam import PER_RUNG, exam_tasks, seal_of
from etude.tasks.ladder import RUNGS
from etude.tasks.verifiers import calls_verifier


def test_parts_have_every_rung_and_no_task_twice():
    for part in ("ladder", "heldout"):
        drawn = list(islice(exam_tasks(part), 2 * len(RUNGS)))
        assert [task.provenance["rung"] for task in drawn] == [*RUNGS, *RUNGS]
        assert len({task.id for task in drawn}) == len(drawn)
        assert len(RUNGS) * PER_RUNG[part] >= {"ladder": 1000, "heldout": 500}[part]
    assert len(list(exam_tasks("real"))) == 300


def test_the_seal_holds_whatever_is_asked():
    tasks = list(islice(exam_tasks("ladder"), len(RUNGS)))
    seal, one = seal_of(tasks), tasks[-1]
    other = calls_verifier([("code", "f", [1], 2)])
    changes = (
        {"instruction": one.instruction + "."},
        {"files": {**one.files, "more.py": b""}},
        {"limits": replace(one.limits, max_turns=one.limits.max_turns + 1)},
        {"verifier": other},
        {"verifier": replace(one.verifier, timeout_s=one.verifier.timeout_s + 1)},
    )
    for change in changes:
        assert seal_of([*tasks[:-1], replace(one, **change)]) != seal, change
    assert seal_of(reversed(tasks)) != seal


def test_the_seal_does_not_hold_how_answers_are_compared():
    task = next(exam_tasks("ladder"))
    secret = task.verifier.files["/tests/secret"]
    mended = secret.replace(b"'program': '", b"'program': '# mended\\n", 1)
    assert mended != secret
    files = {**task.verifier.files, "/tests/guard.py": b"", "/tests/secret": mended}
    assert seal_of([replace(task, verifier=replace(task.verifier, files=files))]) == seal_of([task])
