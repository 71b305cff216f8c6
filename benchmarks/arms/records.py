"""What is kept of an arm: one small JSON file a seed, so that figures can be made of files from several machines.

Owns `Settings`, by which records are known to belong together, `Record`, and the development tasks. Trains and plays
nothing. A list of tasks is all that an evaluation needs; each belongs to a group, its split and rung, and what was
solved of a group is a string of 0 and 1 in the order of the list.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from etude.durable import write_whole
from etude.records import Task
from etude.tasks.exam import exam_tasks
from etude.tasks.ladder import RUNGS, ladder_task
from etude.tasks.real import real_tasks

Outcomes = dict[str, str]
"""Group → a 0 or 1 for each of its tasks."""
CURVE_FIRST = 500_000
"""Number of the first task that points of curves are evaluated on: no evaluation has these."""


@dataclass(frozen=True)
class Settings:
    """Records with the same settings differ in their arm and seed alone."""

    base: str
    """Hash of the base's weights."""
    tasks: str
    """`digest` of what is evaluated."""
    minutes: float
    cpu_seconds: float | None
    overrides: tuple[str, ...]
    """Of the recipe."""


@dataclass(frozen=True)
class Point:
    """Of a curve: a checkpoint, what it took, and what it solves of the curves' tasks."""

    cpu_s: float
    samples: int
    solved: int
    played: int


@dataclass(frozen=True)
class Record:
    """One arm at one seed."""

    arm: str
    seed: int
    settings: Settings
    cpu_s: float
    """Of training, of an arm that begins with another one's checkpoint with that one's."""
    samples: int
    """Sessions that were played for it, or recorded and learned from."""
    outcomes: Outcomes
    """One rollout a task at temperature 1."""
    greedy: Outcomes | None
    """The same at temperature 0, where that was asked for."""
    curve: tuple[Point, ...]
    notes: Mapping[str, float]
    """What else its training says of itself."""
    commit: str
    date: str


def path_of(out: Path, arm: str, seed: int) -> Path:
    return out / "records" / f"{arm}-{seed}.json"


def write(out: Path, record: Record) -> None:
    path = path_of(out, record.arm, record.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(asdict(record)) + "\n").encode())


def read(path: Path) -> Record:
    stored = json.loads(path.read_text())
    settings = stored.pop("settings")
    settings["overrides"] = tuple(settings["overrides"])
    curve = tuple(Point(**point) for point in stored.pop("curve"))
    return Record(**stored, settings=Settings(**settings), curve=curve)


def read_all(out: Path) -> list[Record]:
    """Of all arms and seeds. SystemExit where there are none, or where they do not belong together."""
    found = {path: read(path) for path in sorted((out / "records").glob("*.json"))}
    if not found:
        raise SystemExit(f"{out}/records: no record there; train some arms first")
    (first, record), *others = found.items()
    for path, other in others:
        for name, value in asdict(other.settings).items():
            if value != (wanted := getattr(record.settings, name)):
                raise SystemExit(f"{path}: its {name} is {value}, that of {first} is {wanted}; keep such records apart")
    return list(found.values())


# --- tasks ------------------------------------------------------------------------------------------------------------


def development_tasks(first: int, per_rung: int, real: bool) -> list[Task]:
    """Choices are made by these: the ladder's evaluation and held-out splits from a number on, and real code."""
    numbers = range(first, first + per_rung)
    ladder = [ladder_task(rung, split, n) for split in ("eval", "heldout") for n in numbers for rung in RUNGS]
    return ladder + (real_tasks() if real else [])


def final_tasks(real: bool) -> list[Task]:
    """The exam's."""
    return [task for part in ("ladder", "heldout", *(["real"] if real else [])) for task in exam_tasks(part)]


def curve_tasks(per_rung: int) -> list[Task]:
    return [ladder_task(rung, "eval", CURVE_FIRST + number) for number in range(per_rung) for rung in RUNGS]


def group_of(task: Task) -> str:
    """`eval-3`: its split and, if it has one, its rung."""
    return f"{task.split}-{task.provenance['rung']}" if "rung" in task.provenance else task.split


def outcomes_of(tasks: Sequence[Task], solved: Mapping[str, bool]) -> Outcomes:
    found: Outcomes = {}
    for task in tasks:
        found[group_of(task)] = found.get(group_of(task), "") + str(int(solved[task.id]))
    return found


def digest(tasks: Iterable[Task]) -> str:
    """Of everything a session or its verifier sees of them, and their order."""
    said = hashlib.sha256()
    for task in tasks:
        parts = (task.id, task.instruction, sorted(task.files.items()), sorted(task.solution.items()), task.limits)
        said.update(repr((*parts, task.verifier)).encode())
    return said.hexdigest()[:16]
