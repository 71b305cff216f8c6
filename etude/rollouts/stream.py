"""Which task comes next.

Owns the numbering of groups and what rung each one's task is drawn from: in turns as the recipe lists them, or by
difficulty. By difficulty, a rung that is solved always or never is drawn seldom, since a group of equal rewards teaches
nothing: its weight is the variance of its solve rate, p(1-p), of what was played lately. A task is its run's seed, its
index and its rung, and nothing else. Plays nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etude.records import Task

MEMORY = 256
"""Samples of a rung after which what was before them counts a third."""
LEAST = 0.1
"""Of the largest weight: no rung is given up, its rate may change."""


@dataclass(frozen=True)
class Drawn:
    """A task, and where it comes from."""

    index: int
    rung: int
    task: Task


class TaskStream:
    """Draws tasks by index."""

    def __init__(
        self,
        make: Callable[[int, int], Task],
        rungs: Sequence[int],
        seed: int = 0,
        by_difficulty: bool = False,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`make` makes the task of a rung and an index; `saved` is another stream's `state`."""
        self.make, self.rungs, self.seed, self.by_difficulty = make, tuple(rungs), seed, by_difficulty
        self.counters: Counter[str] = Counter()
        saved = saved or {}
        self.next_index = int(saved.get("next", 0))
        self._rates: dict[int, tuple[float, float]] = {int(rung): (s, p) for rung, s, p in saved.get("rates", ())}

    def draw(self) -> Drawn:
        """The next task."""
        index = self.next_index
        self.next_index += 1
        rung = self.rungs[index % len(self.rungs)]
        if self.by_difficulty:
            weights = self.weights()
            turn, rung = rung, random.Random(f"{self.seed} rung {index}").choices(list(weights), [*weights.values()])[0]
            self.counters["drawn_by_difficulty"] += rung != turn
        return Drawn(index, rung, self.make(rung, index))

    def again(self, index: int, rung: int) -> Drawn:
        """A task that was drawn before."""
        self.next_index = max(self.next_index, index + 1)
        return Drawn(index, rung, self.make(rung, index))

    def played(self, rung: int, solved: bool) -> None:
        """A sample of a task of this rung was scored."""
        wins, plays = self._rates.get(rung, (0.0, 0.0))
        kept = 1 - 1 / MEMORY
        self._rates[rung] = (kept * wins + solved, kept * plays + 1)

    def rates(self) -> dict[int, float]:
        """How often each rung was solved lately; one half where nobody knows yet."""
        return {rung: (wins + 1) / (plays + 2) for rung, (wins, plays) in self._known().items()}

    def weights(self) -> dict[int, float]:
        """How often each rung is drawn, as shares of 1."""
        listed = Counter(self.rungs)
        raw = {rung: listed[rung] * max(LEAST, 4 * rate * (1 - rate)) for rung, rate in self.rates().items()}
        return {rung: weight / sum(raw.values()) for rung, weight in raw.items()}

    def state(self) -> dict[str, Any]:
        """What a resumed run draws on from."""
        return {"next": self.next_index, "rates": [[rung, *rate] for rung, rate in sorted(self._rates.items())]}

    def _known(self) -> dict[int, tuple[float, float]]:
        return {rung: self._rates.get(rung, (0.0, 0.0)) for rung in sorted(set(self.rungs))}
