"""Draws the next task: the harder the better the model is.

Owns `Curriculum`. It remembers how often each task, and each level of difficulty, was solved lately, and draws most
often where the outcome is least certain: a group of attempts that all succeed, or all fail, teaches nothing. A task
that was never tried is expected to do as its level does, and a level that was never tried as its neighbours. Old
outcomes fade, as the model that had them is gone. Draws depend on the seed, the index and what was told alone.
Runs nothing; whoever plays tells it the outcomes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from etude.config import Config
from etude.errors import ConfigError
from etude.records import Task
from etude.tasks.difficulty import LEVELS, level_of, solved_of


class CurriculumConfig(Config):
    """How tasks are weighed."""

    fade: float = Field(0.9, gt=0, le=1)
    """What an outcome still counts after the next group of the same task, or of the same level."""
    trust: float = Field(4.0, gt=0)
    """How many attempts of a task weigh as much as what its level says."""
    least: float = Field(0.05, gt=0, le=1)
    """The weight that every task keeps, of the 1 of one that is solved half the time: what is forgotten comes back."""


class Curriculum:
    """Over a fixed set of tasks. `told` outcomes move it; `state` and `restore` carry it over a restart."""

    def __init__(self, tasks: Sequence[Task], config: CurriculumConfig, seed: int = 0) -> None:
        """Raises ConfigError for no tasks, or two of one id. A share that was measured beforehand counts at once."""
        if len({task.id for task in tasks}) != len(tasks) or not tasks:
            raise ConfigError("tasks: a curriculum needs at least one, and no two of one id")
        self._tasks, self._config, self._seed = list(tasks), config, seed
        self._level = {task.id: level_of(task) for task in tasks}
        self._by_task: dict[str, tuple[float, float]] = {}
        self._by_level: dict[int, tuple[float, float]] = {}
        for task in tasks:
            if (share := solved_of(task)) is not None:
                self._by_task[task.id] = (share * config.trust, config.trust)

    def told(self, task_id: str, solved: int, attempts: int) -> None:
        """A group ended: so many of its attempts solved the task. Attempts that our machinery lost do not count."""
        if not 0 <= solved <= attempts:
            raise ValueError(f"{solved} of {attempts} attempts cannot have solved {task_id}")
        if attempts:
            self._by_task[task_id] = self._faded(self._by_task.get(task_id), solved, attempts)
            level = self._level[task_id]
            self._by_level[level] = self._faded(self._by_level.get(level), solved, attempts)

    def expected(self, task_id: str) -> float:
        """The share of attempts that should solve a task now, from 0 to 1."""
        prior = self._of_level(self._level[task_id])
        solved, attempts = self._by_task.get(task_id, (0.0, 0.0))
        return (solved + self._config.trust * prior) / (attempts + self._config.trust)

    def weight(self, task_id: str) -> float:
        """How often it is drawn, against the others: 1 where it is solved half the time, `least` where always."""
        share = self.expected(task_id)
        return max(4 * share * (1 - share), self._config.least)

    def draw(self, index: int) -> Task:
        """The task of the group `index`."""
        rng = random.Random(f"etude curriculum {self._seed} {index}")
        return rng.choices(self._tasks, [self.weight(task.id) for task in self._tasks])[0]

    def shares(self) -> dict[int, float]:
        """What is drawn now, by level: shares that add up to 1. For metrics."""
        weights = dict.fromkeys(LEVELS, 0.0)
        for task in self._tasks:
            weights[self._level[task.id]] += self.weight(task.id)
        whole = sum(weights.values())
        return {level: weight / whole for level, weight in weights.items() if weight}

    def state(self) -> dict[str, Any]:
        """All it was told, for JSON."""
        return {
            "tasks": {name: list(counts) for name, counts in self._by_task.items()},
            "levels": {str(level): list(counts) for level, counts in self._by_level.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """What another one's `state` gave; of tasks that are no longer there nothing is kept."""
        known = {name: (float(a), float(b)) for name, (a, b) in state["tasks"].items() if name in self._level}
        self._by_task = known
        self._by_level = {int(level): (float(a), float(b)) for level, (a, b) in state["levels"].items()}

    def _faded(self, before: tuple[float, float] | None, solved: int, attempts: int) -> tuple[float, float]:
        old_solved, old_attempts = before or (0.0, 0.0)
        return old_solved * self._config.fade + solved, old_attempts * self._config.fade + attempts

    def _of_level(self, level: int) -> float:
        """What a level's outcomes say; of one that was never tried, what the nearest easier one says, less a bit."""
        for easier in range(level, 0, -1):
            if easier in self._by_level:
                solved, attempts = self._by_level[easier]
                return (solved + 1) / (attempts + 2) / 2 ** (level - easier)
        for harder in range(level + 1, max(LEVELS) + 1):
            if harder in self._by_level:
                solved, attempts = self._by_level[harder]
                return 1 - (1 - (solved + 1) / (attempts + 2)) / 2 ** (harder - level)
        return 1 / (1 + level)
