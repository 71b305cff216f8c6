"""How often each task should be drawn: harder tasks more often as the model improves.

Owns `Curriculum`. It remembers how often each task, and each level of difficulty, was solved lately, and gives most
weight to those whose outcome is least certain: a group of attempts that all succeed, or all fail, teaches nothing. A
task that was never tried is expected to do as its level does, and a level that was never tried as its neighbours. Old
outcomes fade, as the model that had them is gone. Tasks are numbers here; a rung of the ladder, which makes a new task
every time, counts as one. Draws nothing and runs nothing; the caller reports the outcomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

MEMORY = 256
"""Attempts after which what was before them counts a third."""
LEVEL_PRIOR_ATTEMPTS = 4.0
"""How many attempts of a task weigh as much as what its level says."""
LEAST = 0.1
"""The weight that every task keeps, of the 1 of one that is solved half the time: what is forgotten comes back."""


class Curriculum:
    """Over numbered tasks of known levels. Outcomes that are recorded move it; `state` carries it over a restart."""

    def __init__(
        self,
        levels: Mapping[int, int],
        solved: Mapping[int, float] | None = None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`solved` are shares measured beforehand, which count at once; `saved` is another's `state`, of which nothing
        is kept about tasks that are no longer there."""
        self._levels = dict(levels)
        saved = saved or {}
        known = {task: (share * LEVEL_PRIOR_ATTEMPTS, LEVEL_PRIOR_ATTEMPTS) for task, share in (solved or {}).items()}
        told = {int(task): (wins, tries) for task, wins, tries in saved.get("tasks", ()) if int(task) in levels}
        self._by_task: dict[int, tuple[float, float]] = known | told
        self._by_level: dict[int, tuple[float, float]] = {
            int(level): (wins, tries) for level, wins, tries in saved.get("levels", ())
        }

    def record(self, task: int, solved: bool) -> None:
        """An attempt was scored. Those that our machinery lost are not recorded."""
        self._by_task[task] = _faded(self._by_task.get(task), solved)
        level = self._levels[task]
        self._by_level[level] = _faded(self._by_level.get(level), solved)

    def expected(self, task: int) -> float:
        """The share of attempts that should solve a task now, from 0 to 1."""
        wins, tries = self._by_task.get(task, (0.0, 0.0))
        return (wins + LEVEL_PRIOR_ATTEMPTS * self._of_level(self._levels[task])) / (tries + LEVEL_PRIOR_ATTEMPTS)

    def weights(self, tasks: Sequence[int]) -> dict[int, float]:
        """How often each is to be drawn, as shares of 1; one that is listed twice counts twice."""
        raw = {
            task: times * max(4 * self.expected(task) * (1 - self.expected(task)), LEAST)
            for task, times in Counter(tasks).items()
        }
        whole = sum(raw.values())
        return {task: weight / whole for task, weight in raw.items()}

    def state(self) -> dict[str, Any]:
        """All that was recorded, for JSON."""
        return {
            "tasks": [[task, *counts] for task, counts in sorted(self._by_task.items())],
            "levels": [[level, *counts] for level, counts in sorted(self._by_level.items())],
        }

    def _of_level(self, level: int) -> float:
        """What a level's outcomes say; of one that was never tried, what the nearest easier one says, less a bit."""
        if easier := [each for each in self._by_level if each <= level]:
            return self._share(max(easier)) / 2 ** (level - max(easier))
        if harder := [each for each in self._by_level if each > level]:
            return 1 - (1 - self._share(min(harder))) / 2 ** (min(harder) - level)
        return 0.5

    def _share(self, level: int) -> float:
        wins, tries = self._by_level[level]
        return (wins + 1) / (tries + 2)


def _faded(before: tuple[float, float] | None, solved: bool) -> tuple[float, float]:
    wins, tries = before or (0.0, 0.0)
    kept = 1 - 1 / MEMORY
    return kept * wins + solved, kept * tries + 1
