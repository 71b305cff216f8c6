"""Groups on their way from dispatch to training.

Owns the life of a group and nothing else: no Ray, no clock of its own, no I/O, so that every rule here is a plain test.

    open ──all members in, or enough in and the rest straggling──► closed ──► ready ──take()──► training ──► trained
                                                                     │          │
                                                                     └──────────┴──► dropped, with its reason

Reasons to drop: `zero_variance` (all members scored alike: nothing to compare), `too_few_scored` (infrastructure failed
too often: never scored as zeros), `stale` (its oldest token is older than the staleness bound when it would be trained
on). A dropped group's place is refilled by whoever dispatches. A group leaves `take` exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from etude.config import Config
from etude.records import Group, InfraFailed, Task, Trajectory, reward_of

DropReason = Literal["zero_variance", "too_few_scored", "stale"]


class GroupConfig(Config):
    """The size of a group and when it closes, is dropped, is too old."""

    size: int = 8
    """Rollouts of one task."""
    early_close_share: float = 0.75
    """A group may close without its stragglers once this share of its members has come in."""
    straggler_s: float = 20.0
    """How long after that share came in the others are waited for."""
    min_scored: int = 2
    """Fewest scored members a group needs."""
    max_staleness: int = 4
    """How many versions old the oldest token of a group may be when it is trained on."""
    drop_zero_variance: bool = True


@dataclass
class OpenGroup:
    """A group that still has rollouts out."""

    id: str
    task: Task
    task_index: int
    outstanding: set[str]
    members: list[Trajectory] = field(default_factory=list)
    quorum_since: float | None = None


class GroupPool:
    """All groups of a run. Single-threaded: the controller's event loop is the only caller."""

    def __init__(self, config: GroupConfig, dropped: Mapping[DropReason, int] | None = None) -> None:
        """`dropped` is what a resumed run has dropped before."""
        self.config = config
        self.open: dict[str, OpenGroup] = {}
        self.ready: list[tuple[OpenGroup, Group]] = []
        self.dropped: Counter[DropReason] = Counter(dropped or {})
        self.closed_early = 0

    def start(self, group_id: str, task: Task, task_index: int) -> list[str]:
        """Open a group; returns the ids of the rollouts to dispatch."""
        ids = [f"{group_id}/{member}" for member in range(self.config.size)]
        self.open[group_id] = OpenGroup(group_id, task, task_index, set(ids))
        return ids

    def add(self, trajectory: Trajectory, now: float) -> None:
        """Take in a finished rollout. One that comes after its group has closed is ignored by design: it was a
        straggler.
        """
        group = self.open.get(trajectory.group_id)
        if group is None:
            return
        group.outstanding.discard(trajectory.id)
        group.members.append(trajectory)
        if group.quorum_since is None and len(group.members) >= self.config.early_close_share * self.config.size:
            group.quorum_since = now
        if not group.outstanding:
            self._close(group)

    def close_stragglers(self, now: float) -> list[str]:
        """Close groups whose stragglers have had their time; returns the rollouts to cancel."""
        cancelled: list[str] = []
        for group in list(self.open.values()):
            if group.quorum_since is not None and now - group.quorum_since > self.config.straggler_s:
                cancelled += sorted(group.outstanding)
                self.closed_early += 1
                self._close(group)
        return cancelled

    def _close(self, group: OpenGroup) -> None:
        del self.open[group.id]
        scored = [member for member in group.members if not isinstance(member.outcome, InfraFailed)]
        rewards = {reward_of(member.outcome) for member in scored}
        if len(scored) < self.config.min_scored:
            self.dropped["too_few_scored"] += 1
        elif len(rewards) == 1 and self.config.drop_zero_variance:
            self.dropped["zero_variance"] += 1
        else:
            self.ready.append((group, Group(group.id, group.task, tuple(scored))))

    def take(self, count: int, version: int) -> list[Group] | None:
        """The `count` oldest ready groups that are fresh enough, or None while there are not as many."""
        fresh = [entry for entry in self.ready if version - _oldest_version(entry[1]) <= self.config.max_staleness]
        self.dropped["stale"] += len(self.ready) - len(fresh)
        self.ready = fresh
        if len(fresh) < count:
            return None
        taken, self.ready = fresh[:count], fresh[count:]
        return [group for _, group in taken]

    def pending(self) -> list[int]:
        """Task indices that were dispatched and neither trained on nor dropped: what a resumed run starts with."""
        return sorted(
            [group.task_index for group in self.open.values()] + [entry.task_index for entry, _ in self.ready]
        )


def _oldest_version(group: Group) -> int:
    return min(
        int(segment.versions[segment.sampled].min())
        for member in group.trajectories
        for segment in member.segments
        if segment.sampled.any()
    )
