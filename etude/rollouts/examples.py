"""Sessions of an evaluation that a person reads: which ones, and their events.

Owns the choice of three sessions of the trained policy, and of one task that it solved and its control did not, played
by both. Reads the logs of sessions that are over; the report shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.records import solved
from etude.rollouts.evaluate import Judged
from etude.rollouts.sample import Sample
from etude.rollouts.trajectory_store import TrajectoryStore

MOST_ATTEMPTS = 100


def three_sessions(samples: Sequence[Sample], logs: TrajectoryStore) -> dict[str, Any]:
    """By title: a short success, a long one, a failure, where there are any."""
    won = sorted((each for each in samples if solved(each.outcome)), key=lambda each: each.usage["turns"])
    lost = [each for each in samples if not solved(each.outcome)]
    chosen = {"the shortest success": won[:1], "the longest success": won[1:][-1:], "a failure": lost[:1]}
    return {
        title: {"task": found[0].task_id, "events": _events(logs, found[0].id)}
        for title, found in chosen.items()
        if found
    }


def side_by_side(after: Sequence[Judged], control: Sequence[Judged], logs: TrajectoryStore) -> dict[str, Any]:
    """How many tasks either solved alone, and both sessions of the hardest that the control did not solve."""
    by_task = {one.task_id: one.solved for one in control}
    gained = [one for one in after if one.solved and by_task.get(one.task_id) is False]
    lost = sum(by_task.get(one.task_id) is True and not one.solved for one in after)
    told: dict[str, Any] = {"gained": len(gained), "lost": lost}
    if gained:
        task = max(gained, key=lambda one: (one.rung, one.usage["turns"])).task_id
        told |= {
            "task": task,
            "sessions": {label: _events(logs, _slot(logs, label, task)) for label in ("after", "control")},
        }
    return told


def _slot(logs: TrajectoryStore, label: str, task: str) -> str:
    """Of the attempt that counted."""
    slots = (f"{label}/{task}/{attempt}" for attempt in range(MOST_ATTEMPTS))
    return next(slot for slot in slots if logs.sample(slot) is not None)


def _events(logs: TrajectoryStore, slot: str) -> list[dict[str, Any]]:
    return [{"kind": event.kind, **event.data} for event in logs.events(slot)]
