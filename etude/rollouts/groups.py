"""Groups on their way from dispatch to training.

Owns the life of a group and nothing else: no Ray, no clock of its own, no I/O, so that every rule here is a plain test.
Where each of a group's samples is, `Slots` knows; this decides when a group closes, and moves its slots then.

    open ──all slots settled, or enough in and the rest straggling──► closed ──► ready ──take()──► training ──► trained
                                                                        │          │                  │
                                                                        │          ◄───put_back()─────┤
                                                                        └──────────┴──────────────────┴──► dropped

Reasons to drop a group: `zero_variance` (all members scored alike: nothing to compare), `too_few_scored`
(infrastructure failed too often: never scored as zeros), `stale` (its oldest token is older than the staleness bound
when it would be trained on). A dropped group's place is refilled by whoever dispatches. A group leaves `take` once,
unless it is put back: the step it was taken for was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from etude.config import Config
from etude.records import Group, InfraFailed, Task, Trajectory, Truncated, reward_of
from etude.rollouts.slots import Slot, Slots, group_id

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
    drop_overlong: bool = False
    """A rollout that a limit of its task cut leaves its group before the baseline, as infrastructure failures do; else
    it keeps its verdict.
    """


@dataclass
class OpenGroup:
    """A group that still waits for some of its slots."""

    id: str
    index: int
    task: Task
    slots: list[str]
    members: dict[str, Trajectory] = field(default_factory=dict)
    """Scored samples by slot."""
    outstanding: set[str] = field(default_factory=set)
    quorum_since: float | None = None


class GroupPool:
    """All groups of a run. Single-threaded: the controller's event loop is the only caller."""

    def __init__(self, config: GroupConfig, slots: Slots, dropped: Mapping[DropReason, int] | None = None) -> None:
        """`dropped` is what a resumed run has dropped before, in groups."""
        self.config, self.slots = config, slots
        self.open: dict[str, OpenGroup] = {}
        self.ready: list[Group] = []
        self.training: dict[str, Group] = {}
        """Taken, and the step that trains on them is not done."""
        self.dropped: Counter[DropReason] = Counter(dropped or {})
        self.closed_early = 0

    def start(self, index: int, task: Task) -> OpenGroup:
        """Open a group; its slots are queued."""
        slots = [slot.id for slot in self.slots.open(index, self.config.size)]
        group = self.open[group_id(index)] = OpenGroup(group_id(index), index, task, slots, outstanding=set(slots))
        return group

    def task_of(self, slot: Slot) -> Task:
        """The task of a slot whose group is open."""
        return self.open[group_id(slot.index)].task

    def add(self, trajectory: Trajectory, now: float) -> None:
        """Take in a sample that was scored, or that failed for good. One whose slot has ended is ignored by design: it
        was a straggler.
        """
        if trajectory.id not in self.slots:
            return
        group = self.open[trajectory.group_id]
        group.outstanding.discard(trajectory.id)
        if isinstance(trajectory.outcome, InfraFailed):
            self.slots.move(trajectory.id, "dropped", "infra")
        elif self.config.drop_overlong and isinstance(trajectory.outcome, Truncated):
            self.slots.move(trajectory.id, "dropped", "overlong")
        else:
            group.members[trajectory.id] = trajectory
        settled = len(group.slots) - len(group.outstanding)
        if group.quorum_since is None and settled >= self.config.early_close_share * self.config.size:
            group.quorum_since = now
        if not group.outstanding:
            self._close(group)

    def close_stragglers(self, now: float) -> list[str]:
        """Close groups whose stragglers have had their time; returns the rollouts to cancel."""
        cancelled: list[str] = []
        for group in list(self.open.values()):
            if group.quorum_since is not None and now - group.quorum_since > self.config.straggler_s:
                late = sorted(group.outstanding)
                for slot in late:
                    self.slots.move(slot, "dropped", "straggler")
                cancelled += late
                self.closed_early += 1
                self._close(group)
        return cancelled

    def _close(self, group: OpenGroup) -> None:
        del self.open[group.id]
        members = tuple(group.members[slot] for slot in group.slots if slot in group.members)
        rewards = {reward_of(member.outcome) for member in members}
        if len(members) < self.config.min_scored:
            self._drop(members, "too_few_scored")
        elif len(rewards) == 1 and self.config.drop_zero_variance:
            self._drop(members, "zero_variance")
        else:
            for member in members:
                self.slots.move(member.id, "grouped")
            self.ready.append(Group(group.id, group.task, members))

    def _drop(self, members: tuple[Trajectory, ...], reason: DropReason) -> None:
        self.dropped[reason] += 1
        for member in members:
            self.slots.move(member.id, "dropped", reason)

    def take(self, count: int, version: int) -> list[Group] | None:
        """The `count` oldest ready groups that are fresh enough, or None while there are not as many."""
        ages = [version - _oldest_version(group) for group in self.ready]
        for group, age in zip(self.ready, ages, strict=True):
            if age > self.config.max_staleness:
                self._drop(group.trajectories, "stale")
        self.ready = [g for g, age in zip(self.ready, ages, strict=True) if age <= self.config.max_staleness]
        if len(self.ready) < count:
            return None
        taken, self.ready = self.ready[:count], self.ready[count:]
        self.training |= {group.id: group for group in taken}
        return taken

    def trained(self, groups: Iterable[Group]) -> None:
        """The step on these groups is done."""
        for group in groups:
            del self.training[group.id]
            for member in group.trajectories:
                self.slots.move(member.id, "trained")

    def put_back(self, groups: Iterable[Group]) -> None:
        """The step on these groups was lost with its trainer: they are ready again, before all others."""
        for group in groups:
            del self.training[group.id]
        self.ready[:0] = groups

    def pending(self) -> list[int]:
        """Indices of groups that are neither trained on, nor in training, nor dropped: what a resumed run starts
        with.
        """
        return sorted([group.index for group in self.open.values()] + [int(group.id[1:]) for group in self.ready])


def _oldest_version(group: Group) -> int:
    return min(
        int(segment.versions[segment.sampled].min())
        for member in group.trajectories
        for segment in member.segments
        if segment.sampled.any()
    )
