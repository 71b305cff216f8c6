"""Which task comes next.

Owns the numbering of groups and which of its sources each one's task is drawn from, in turns or by difficulty
(`tasks.curriculum`). A source is a rung of a generated family, which makes a task of its run's seed and the group's
index, or a task of the user's own. Plays nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.records import Task
from etude.tasks.curriculum import Curriculum
from etude.tasks.difficulty import level_of, solved_of
from etude.tasks.families import family as family_of
from etude.tasks.harbor import read_tasks
from etude.tasks.planted import is_planted


@dataclass(frozen=True)
class Source:
    """What tasks are drawn from: `make` makes the task of a rung and an index. For tasks of the user's own a rung is a
    task's number."""

    make: Callable[[int, int], Task]
    rungs: tuple[int, ...]
    levels: Mapping[int, int]
    """How hard each rung is, from 1."""
    solved: Mapping[int, float]
    """The share of attempts that solved it, where that was measured beforehand."""
    first: tuple[int, ...] = ()
    """Rungs that are drawn once before any other: a planted cheat is to be found before anything is learnt."""


def of_family(name: str, rungs: Sequence[int], seed: int) -> Source:
    """Fresh tasks of a generated family."""
    family = family_of(name)
    levels = {rung: rung for rung in family.rungs}
    return Source(lambda rung, index: family.task(rung, "train", seed * 1_000_000 + index), tuple(rungs), levels, {})


def of_directories(directories: Sequence[Path]) -> Source:
    """The user's own tasks, over and over. Raises ConfigError where there is none, or two have one id."""
    tasks = [task for task in read_tasks(directories) if task.split == "train"]
    levels = {place: level_of(task) for place, task in enumerate(tasks)}
    solved = {place: share for place, task in enumerate(tasks) if (share := solved_of(task)) is not None}
    first = tuple(place for place, task in enumerate(tasks) if is_planted(task))
    return Source(lambda place, index: tasks[place], tuple(range(len(tasks))), levels, solved, first)


@dataclass(frozen=True)
class Drawn:
    """A task, and where it comes from."""

    index: int
    rung: int
    task: Task


class TaskStream:
    """Draws tasks by index."""

    def __init__(
        self, source: Source, seed: int = 0, by_difficulty: bool = False, saved: Mapping[str, Any] | None = None
    ) -> None:
        """`saved` is another stream's `state`."""
        self.make, self.rungs, self.seed, self.by_difficulty = source.make, source.rungs, seed, by_difficulty
        self.first = source.first
        self.counters: Counter[str] = Counter()
        saved = saved or {}
        self.next_index = int(saved.get("next", 0))
        self.curriculum = Curriculum(source.levels, source.solved, saved.get("curriculum"))

    def draw(self) -> Drawn:
        """The next task."""
        index = self.next_index
        self.next_index += 1
        rung = self.turn(index)
        if self.by_difficulty and index >= len(self.first):
            weights = self.curriculum.weights(self.rungs)
            turn, rung = rung, random.Random(f"{self.seed} rung {index}").choices(list(weights), [*weights.values()])[0]
            self.counters["drawn_by_difficulty"] += rung != turn
        return Drawn(index, rung, self.make(rung, index))

    def turn(self, index: int) -> int:
        """What is drawn where nothing is known of difficulty."""
        return self.first[index] if index < len(self.first) else self.rungs[index % len(self.rungs)]

    def again(self, index: int, rung: int) -> Drawn:
        """A task that was drawn before."""
        self.next_index = max(self.next_index, index + 1)
        return Drawn(index, rung, self.make(rung, index))

    def played(self, rung: int, solved: bool) -> None:
        """A sample of a task of this rung was scored."""
        self.curriculum.record(rung, solved)

    def state(self) -> dict[str, Any]:
        """What a resumed run draws on from."""
        return {"next": self.next_index, "curriculum": self.curriculum.state()}
