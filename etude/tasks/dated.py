"""Splits tasks by time: what a repository's past teaches is examined on what came after it.

Owns `split_by_time` and `Bounds`. Time is that of the commit that a task was made of (`provenance.committed`); a task
that has none keeps its split. Of each repository the newest tasks are for evaluation, so none that is trained on is
newer than one that examines it. Writes nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from etude.errors import ConfigError
from etude.records import Limits, Task


@dataclass(frozen=True)
class Bounds:
    """What a task's own limits are lowered to, as far as they are higher: a small model has not the context for them.
    None leaves a limit as it is."""

    max_turns: int | None = None
    max_context_tokens: int | None = None
    max_sampled_tokens: int | None = None

    def of(self, limits: Limits) -> Limits:
        given = {name: most for name, most in vars(self).items() if most is not None}
        return replace(limits, **{name: min(getattr(limits, name), most) for name, most in given.items()})


def split_by_time(
    tasks: Sequence[Task], *, newest: float | None = None, since: date | None = None, bounds: Bounds | None = None
) -> list[Task]:
    """The tasks with their split and limits. `newest` is the share of each repository's tasks that is for evaluation,
    rounded up; `since` the day from which on all are. Raises ConfigError where one side of the split would be empty."""
    if (newest is None) == (since is None):
        raise ConfigError("say what is for evaluation: --newest SHARE or --since DATE, and not both")
    if newest is not None and not 0 < newest < 1:
        raise ConfigError(f"--newest {newest:g}: a share of the tasks, between 0 and 1")
    examined = _since(tasks, since) if since is not None else _newest(tasks, newest or 0.0)
    bounds = bounds or Bounds()
    done = [_placed(task, examined, bounds) for task in tasks]
    for split in ("train", "eval"):
        if not any(task.split == split for task in done):
            raise ConfigError(f"no task is left for {split!r}: choose another --newest or --since, or name more tasks")
    return done


def _placed(task: Task, examined: set[str], bounds: Bounds) -> Task:
    split = task.split if when(task) is None else "eval" if task.id in examined else "train"
    return replace(task, split=split, limits=bounds.of(task.limits))


def when(task: Task) -> datetime | None:
    """When the commit was made that a task comes from; None where nobody has noted it."""
    committed = task.provenance.get("committed")
    if not committed:
        return None
    try:
        if isinstance(committed, int | float):
            return datetime.fromtimestamp(committed, UTC)
        at = datetime.fromisoformat(str(committed))
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"{task.id}: metadata.committed is {committed!r}, and no date") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _since(tasks: Sequence[Task], since: date) -> set[str]:
    return {task.id for task in tasks if (at := when(task)) is not None and at.astimezone(UTC).date() >= since}


def _newest(tasks: Sequence[Task], share: float) -> set[str]:
    of_repository: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for task in tasks:
        if (at := when(task)) is not None:
            of_repository[str(task.provenance.get("repository", ""))].append((at, task.id))
    found = set()
    for dated in of_repository.values():
        ordered = sorted(dated)
        first = ordered[-math.ceil(share * len(ordered))][0]
        found |= {name for at, name in ordered if at >= first}  # of one moment all are on one side
    return found
