"""How hard a task is: from what it is made of, and from how often it was solved.

Owns `level_of` and `level_by_size`. The level, 1 to 5, is structural and known before the first attempt: for a ladder
task it is the rung, a generator gives its own, and all other tasks are judged by the size of the solution. A task's
provenance has it under `difficulty`, as `level`; `solved` beside it is the measured share of attempts that solved the
task. Runs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from etude.records import Task

LEVELS = (1, 2, 3, 4, 5)
LINES_UP_TO = (3, 10, 30, 80)
"""Lines of the solution, added plus removed, that levels 1 to 4 have at most."""
FILE_IS_WORTH = 10
"""Every further file of the solution counts as so many lines: it has to be found."""


def level_by_size(files: int, lines: int) -> int:
    """The level of a task by the size of its solution: the files it changes, and the lines it adds and removes."""
    weight = lines + FILE_IS_WORTH * max(files - 1, 0)
    return 1 + sum(weight > most for most in LINES_UP_TO)


def level_of(task: Task) -> int:
    """From 1 to 5, for every task; a task that says nothing is judged by its solution, and one without any is a 3."""
    recorded = _recorded(task)
    if isinstance(level := recorded.get("level", task.provenance.get("rung")), int) and level in LEVELS:
        return level
    if {"files", "lines"} <= recorded.keys():
        return level_by_size(int(recorded["files"]), int(recorded["lines"]))
    changed = {path: data for path, data in task.solution.items() if task.files.get(path) != data}
    if not changed:
        return 3
    return level_by_size(len(changed), sum(_lines(task.files.get(path, b""), data) for path, data in changed.items()))


def solved_of(task: Task) -> float | None:
    """The measured share of attempts that solved it, from 0 to 1; None where nobody has measured."""
    share = _recorded(task).get("solved")
    return float(share) if isinstance(share, int | float) else None


def measured(task: Task, solved: int, attempts: int) -> Task:
    """The task with what `attempts` tries at it showed. Raises ValueError where the numbers cannot be."""
    if not 0 <= solved <= attempts or attempts == 0:
        raise ValueError(f"{solved} of {attempts} attempts cannot have solved {task.id}")
    said = {**_recorded(task), "level": level_of(task), "solved": solved / attempts, "attempts": attempts}
    return replace(task, provenance={**task.provenance, "difficulty": said})


def _recorded(task: Task) -> Mapping[str, Any]:
    said = task.provenance.get("difficulty")
    return said if isinstance(said, Mapping) else {}


def _lines(before: bytes, after: bytes) -> int:
    """Lines that only one of them has, each as often as it has them."""
    old, new = Counter(before.splitlines()), Counter(after.splitlines())
    return sum(((old - new) + (new - old)).values())
