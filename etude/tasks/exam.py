"""The exam: generated tasks that no choice was made on, and the real code that goes with them.

Owns `exam_tasks` and `seal_of`. What is measured there is for the README and for releases: whoever looks at a result
on it and then changes something has used it up. Choices are made on development tasks: the evaluation's own, and those
of any other number below `FIRST`. It is sealed: tests/tasks/test_exam.py has the hash of each part, which no later
change may touch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal

from etude import syntax
from etude.records import Task
from etude.tasks.generated import Split
from etude.tasks.ladder import RUNGS, ladder_task
from etude.tasks.real import real_tasks

Part = Literal["ladder", "heldout", "real"]

FIRST = 5_000_000
"""The number of the first task of each rung; no other use draws numbers from here to `FIRST` + 1,000,000."""
PER_RUNG: dict[Part, int] = {"ladder": 128, "heldout": 64}
"""1,024 and 512 tasks; of real code there are 300."""


def exam_tasks(part: Part) -> Iterator[Task]:
    """The tasks of a part, rungs interleaved, always the same in the same order."""
    if part == "real":
        yield from real_tasks("exam")
        return
    split: Split = "heldout" if part == "heldout" else "eval"
    for number in range(FIRST, FIRST + PER_RUNG[part]):
        yield from (ladder_task(rung, split, number) for rung in RUNGS)


def seal_of(tasks: Iterable[Task]) -> str:
    """The SHA-256 of what is asked: instructions, files, limits, and what a verifier asks and expects, but not the
    programs by which it does, which are mended from time to time.
    """
    whole = hashlib.sha256()
    for task in tasks:
        secret = syntax.literal(task.verifier.files["/tests/secret"].decode())
        asked = {key: value for key, value in secret.items() if key != "program"}
        told = (task.id, task.instruction, sorted(task.files.items()), asked, task.verifier.timeout_s, task.limits)
        whole.update(hashlib.sha256(repr(told).encode()).digest())
    return whole.hexdigest()
