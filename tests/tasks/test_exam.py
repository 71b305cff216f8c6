"""The exam: its parts, and what its seal holds."""

from dataclasses import replace
from itertools import islice

import pytest

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


SEALS = {
    "ladder": "13b43531582f12297abcfd0e9353fb1c7ea1763d5843aac12de51079bcaa9af1",
    "heldout": "b578a94b597fc38bacd6680dd933641860ad2da22e636821a2cc4601610af93d",
    "real": "f64e304b0c4544ec1fd2d628377b3e3db90d43fc91251d8d9c60954e5ba34978",
}
"""Never to be changed: whoever changes what they hold has another exam, whose figures are no rival's of this one's."""
OF_FIRST = {
    "ladder": "0d658462dd5f82a2db642cbf2372484cb54fe88474148fc2b4855cb139a0f8fc",
    "heldout": "9a676928772dda7a064eeaaad068d2d645951b05ecf59d270f1e3e110fd587c4",
    "real": "67a0bd53c4c78011dee6d6974ddaf09b5097009606464bc3d6bf66b954175e87",
}


@pytest.mark.parametrize("part", OF_FIRST)
def test_the_exam_begins_as_it_was_sealed(part):
    assert seal_of(islice(exam_tasks(part), 16)) == OF_FIRST[part]


@pytest.mark.proof(20)
def test_the_exam_is_as_it_was_sealed():
    assert {part: seal_of(exam_tasks(part)) for part in SEALS} == SEALS
