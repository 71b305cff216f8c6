"""The generated families that a run can train on: their rungs, and their fixed evaluation sets.

Owns `Family` and Etude's own two. A recipe names one, of the group `etude.families`. Makes no task itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from etude.plugins import find
from etude.records import Task
from etude.tasks.generated import Split
from etude.tasks.ladder import RUNGS, ladder_task
from etude.tasks.trail import MODULES, trail_task


@dataclass(frozen=True)
class Family:
    """Tasks by rung, split and seed, the same on every machine."""

    rungs: tuple[int, ...]
    names: tuple[str, ...]
    """What a report calls each rung."""
    task: Callable[[int, Split, int], Task]

    def evaluation(self, split: Split, per_rung: int, first: int = 0) -> list[Task]:
        """A fixed set, rungs interleaved: the numbers from `first` on."""
        return [self.task(rung, split, first + seed) for seed in range(per_rung) for rung in self.rungs]


def family(name: str) -> Family:
    """Raises ConfigError saying which there are."""
    return find("families", name, Family)


LADDER = Family(
    RUNGS,
    ("1 function", "2 file", "3 files", "4 depth", "5 context", "6 hunt", "7 hunt in files", "8 hunt in depth"),
    ladder_task,
)
TRAIL = Family(tuple(MODULES), tuple(f"{count} modules" for count in MODULES.values()), trail_task)
