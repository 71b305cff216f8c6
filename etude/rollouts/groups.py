"""Groups on their way from dispatch to training.

Owns the life of a group and nothing else: no Ray, no clock of its own, so that every rule here is a plain test. Where
each of a group's samples is, `Slots` knows; this decides when a group closes, and moves its slots then. What it decides
is written into the ledger as it happens, and `restore` takes it up from there in another life.

    open ──all slots settled, or enough in and the rest straggling──► closed ──► ready ──take()──► training ──► trained
                                                                        │          │
                                                                        └──────────┴──► dropped, with its reason

Reasons to drop a group: `zero_variance` (all members judged alike: nothing to compare), `too_few_scored`
(infrastructure failed too often: never scored as zeros), `stale` (its oldest token is older than the staleness bound
when it would be trained on). A dropped group's place is refilled by whoever dispatches. A group leaves `take` once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from etude.config import Config
from etude.deadlines import scaled
from etude.records import InfraFailed, Outcome, Task, Truncated, Version, in_quarantine, reward_of, verdict_of
from etude.rollouts.ledger import GroupLedger, GroupRecord
from etude.rollouts.sample import Sample, SampleGroup
from etude.rollouts.slots import Reason, Slot, Slots, group_id, index_of, member_of, slot_id

DropReason = Literal["zero_variance", "too_few_scored", "stale"]


EARLY_CLOSE_SHARE = 0.75
"""Once so many of a group have come in, its stragglers have `straggler_s`: a quarter may be missing and the others
still say what a task's mean is."""
HELD_S = 300.0
"""So long, beside what the tools of its task may take, a step waits for an open group that it would make too old; then
the group closes without what is out, or one session that hangs would hold up the run."""
MIN_SCORED = 2
"""One alone has nothing to be compared with."""


class GroupConfig(Config):
    """The size of a group and when it closes, is dropped, is too old."""

    size: int = 8
    """Rollouts of one task."""
    straggler_s: float = 20.0
    """How long after three quarters of a group came in the others are waited for; then it closes without them."""
    max_staleness: int = 4
    """How many versions old the oldest token of a group may be when it is trained on."""
    when_stale: Literal["wait", "drop"] = "wait"
    """What keeps to that bound: no step is made that would put a group beyond it, the trainer waits until that group is
    in a batch; or a group that is beyond it is dropped, which drops those of long sessions more often.
    """
    window_share: float = Field(0.3, gt=0, le=1)
    """A step takes no group but from this share of those under way, the oldest (never fewer than a step needs): what
    is over quickly would be trained on far more often than what takes long. 1: whatever is ready.
    """
    drop_zero_variance: Literal["verdict", "reward", "never"] = "verdict"
    """Which groups are dropped, and replaced: those whose verdicts are all alike, whatever effort or malformed calls
    cost their members; only those whose rewards are, which have no gradient at all; or none.
    """
    overlong: Literal["keep", "drop"] = "keep"
    """What becomes of a rollout that a limit of its task cut: it keeps its verdict, or leaves its group before the
    baseline, as infrastructure failures do.
    """


@dataclass
class OpenGroup:
    """A group that still waits for some of its slots."""

    record: GroupRecord
    """What the ledger says of it."""
    task: Task
    members: dict[str, Sample]
    """Scored samples by slot."""
    quorum_since: float | None = None
    holds: bool = False
    """Whether a step waits for it."""
    held_since: float | None = None

    @property
    def slots(self) -> list[str]:
        return [slot_id(self.record.index, member) for member in range(self.record.size)]

    @property
    def outstanding(self) -> list[str]:
        """Neither scored nor dropped."""
        there = enumerate(self.slots)
        return [slot for member, slot in there if slot not in self.members and member not in self.record.dropped]


@dataclass(frozen=True)
class ReadyGroup:
    """A closed group that can be trained on."""

    group: SampleGroup
    record: GroupRecord
    oldest: int
    """The version of its oldest token."""


class GroupPool:
    """All groups of a run that are alive. Single-threaded: the controller's event loop is the only caller."""

    def __init__(
        self, config: GroupConfig, slots: Slots, ledger: GroupLedger, dropped: Mapping[DropReason, int] | None = None
    ) -> None:
        """`dropped` is what a resumed run has dropped before, in groups."""
        self.config, self.slots, self.ledger = config, slots, ledger
        self.open: dict[str, OpenGroup] = {}
        self.ready: list[ReadyGroup] = []
        """In the order they were opened."""
        self.training: dict[str, SampleGroup] = {}
        """Taken, and the step that trains on them is not saved."""
        self.next_index = 0
        """One more than the highest index that was ever opened."""
        self.dropped: Counter[DropReason] = Counter(dropped or {})
        self.counters: Counter[str] = Counter()
        self.late: list[str] = []
        """Slots that were dropped while they were being played; whoever cancels them empties it."""
        self._ended: list[int] = []

    # --- opening ------------------------------------------------------------------------------------------------------

    def start(self, index: int, task: Task, rung: int = 0, version: int = 0) -> OpenGroup:
        """Open a group; its slots are queued. `version` is the oldest that an engine may sample it with."""
        self.ledger.opened(GroupRecord(index, rung, self.config.size, version))
        return self._opened(self.ledger.groups[index], task, {})

    def _opened(self, record: GroupRecord, task: Task, samples: Mapping[int, Sample]) -> OpenGroup:
        self.slots.open(record.index, record.size, samples)
        members = {sample.id: sample for _, sample in sorted(samples.items())}
        group = self.open[group_id(record.index)] = OpenGroup(record, task, members)
        self.next_index = max(self.next_index, record.index + 1)
        return group

    def restore(self, record: GroupRecord, task: Task, samples: Mapping[int, Sample]) -> None:
        """Take up a group as the ledger has it, with the samples that are still there."""
        if record.closed == "ready" and not set(record.members) <= samples.keys():
            self.ledger.opened(record)  # the disk has lost some of it: they are played again
            record = self.ledger.groups[record.index]
        group = self._opened(record, task, samples)
        for member, reason in sorted(record.dropped.items()):
            self.slots.move(slot_id(record.index, member), "dropped", reason)
        for name, sample in list(group.members.items()):  # of those whose loss the ledger had not been told yet
            if reason := self._leaves(sample.outcome):
                del group.members[name]
                self._lose(group, name, reason)
        if record.closed is not None or not group.outstanding:
            self._close(group, record.closed)

    def task_of(self, slot: Slot) -> Task:
        """The task of a slot whose group is open."""
        return self.open[group_id(slot.group_index)].task

    def longest_wall_s(self) -> float:
        """How long the tools of a session that is out may run (`Limits.wall_s`)."""
        return max((group.task.limits.wall_s for group in self.open.values()), default=0.0)

    # --- closing ------------------------------------------------------------------------------------------------------

    def add(self, sample: Sample, now: float) -> None:
        """Take in a sample that was scored, or that failed for good. One whose slot has ended is ignored by design: it
        was a straggler.
        """
        if sample.id not in self.slots:
            return
        group = self.open[sample.group_id]
        if reason := self._leaves(sample.outcome):
            self._lose(group, sample.id, reason)
        else:
            group.members[sample.id] = sample
        settled = len(group.members) + len(group.record.dropped)
        if group.quorum_since is None and settled >= EARLY_CLOSE_SHARE * self.config.size:
            group.quorum_since = now
        if len(group.members) >= self.config.size or not group.outstanding:
            self._close_early(group)

    def _leaves(self, outcome: Outcome) -> Reason | None:
        """Why a sample with this outcome is none of its group's, before the baseline; None where it is."""
        if isinstance(outcome, InfraFailed):
            return "infra"
        if in_quarantine(outcome):
            return "quarantined"
        return "overlong" if self.config.overlong == "drop" and isinstance(outcome, Truncated) else None

    def close_stragglers(self, now: float) -> None:
        """Close groups whose stragglers have had their time. What is only to be judged yet is no straggler."""
        for group in list(self.open.values()):
            if not group.holds:
                group.held_since = None
            elif group.held_since is None:
                group.held_since = now
            late = group.quorum_since is not None and now - group.quorum_since > self.config.straggler_s
            if late and not any(self.slots[slot].state in ("sealed", "rewarding") for slot in group.outstanding):
                self._close_early(group)
            elif group.held_since is not None and now - group.held_since > scaled(HELD_S) + group.task.limits.wall_s:
                self.counters["held_too_long"] += 1
                self._close_early(group)

    def _close_early(self, group: OpenGroup) -> None:
        """Close a group without what is still outstanding."""
        late = group.outstanding
        for slot in late:
            self._lose(group, slot, "straggler")
        self.late += late
        self.counters["closed_early"] += bool(late)
        self._close(group)

    def _lose(self, group: OpenGroup, slot: str, reason: Reason) -> None:
        self.ledger.dropped(group.record.index, member_of(slot), reason)
        self.slots.move(slot, "dropped", reason)

    def _close(self, group: OpenGroup, recorded: str | None = None) -> None:
        """`recorded` is what became of it in an earlier life: so it stays."""
        record, name = group.record, group_id(group.record.index)
        del self.open[name]
        members = tuple(group.members[slot] for slot in group.slots if slot in group.members)
        how = recorded or self._close_reason(members)
        if recorded is None:
            self.ledger.closed(record.index, how, [member_of(member.id) for member in members])
        if how in ("zero_variance", "too_few_scored", "stale"):
            self._drop(record.index, members, how)
            return
        for member in members:
            self.slots.move(member.id, "grouped")
        oldest = min((member.oldest for member in members if member.oldest is not None), default=record.version)
        self.ready.append(ReadyGroup(SampleGroup(name, group.task, members), record, oldest))
        self.ready.sort(key=lambda each: each.record.index)

    def _close_reason(self, members: tuple[Sample, ...]) -> str:
        if len(members) < MIN_SCORED:
            return "too_few_scored"
        if self.config.drop_zero_variance == "never":
            return "ready"
        compared = verdict_of if self.config.drop_zero_variance == "verdict" else reward_of
        return "zero_variance" if len({compared(member.outcome) for member in members}) == 1 else "ready"

    def _drop(self, index: int, members: tuple[Sample, ...], reason: DropReason) -> None:
        self.dropped[reason] += 1
        self._ended.append(index)
        for member in members:
            self.slots.move(member.id, "dropped", reason)

    # --- training -----------------------------------------------------------------------------------------------------

    def take(self, count: int, version: Version, window: int) -> list[SampleGroup] | None:
        """The `count` oldest ready groups that are fresh enough, of the `window` oldest that are alive; None while
        there are not as many. With `when_stale = "wait"` also None while a group is open that the next step would put
        beyond the bound, and more than `count` where so many must be trained on now.
        """
        self._drop_stale(version)
        reach = set(self.pending()[:window])
        chosen = [each for each in self.ready if each.record.index in reach]
        if len(chosen) < count <= len(self.ready):
            self.counters["held_by_window"] += 1
        if self.config.when_stale == "wait":
            bound = version - self.config.max_staleness
            for group in self.open.values():
                group.holds = group.record.version <= bound
            if self.held_by():
                self.counters["waited_for_oldest"] += 1
                return None
            due = [each for each in self.ready if each.oldest <= bound]
            chosen = due + [each for each in chosen if each.oldest > bound]
            count = max(count, len(due))
        return self._taken(chosen[:count]) if len(chosen) >= count else None

    def held_by(self) -> list[str]:
        """The open groups that the last `take` waited for, as the next step would put them beyond the bound."""
        return [name for name, group in self.open.items() if group.holds]

    def take_all(self, indices: Iterable[int]) -> list[SampleGroup] | None:
        """Of the groups with these indices those that can be trained on, once all have closed; None until then."""
        wanted = set(indices)
        if max(wanted) >= self.next_index or any(group.record.index in wanted for group in self.open.values()):
            return None
        return self._taken([each for each in self.ready if each.record.index in wanted])

    def _taken(self, chosen: list[ReadyGroup]) -> list[SampleGroup]:
        self.ready = [each for each in self.ready if each not in chosen]
        groups = [each.group for each in sorted(chosen, key=lambda each: each.record.index)]
        self.training |= {group.id: group for group in groups}
        return groups

    def _drop_stale(self, version: Version) -> None:
        fresh = []
        for each in self.ready:
            if version - each.oldest <= self.config.max_staleness:
                fresh.append(each)
            else:
                index, members = each.record.index, each.group.samples
                self.ledger.closed(index, "stale", [member_of(member.id) for member in members])
                self._drop(index, members, "stale")
        self.ready = fresh

    def trained(self, names: Iterable[str] | None = None) -> list[int]:
        """The steps on these groups, or on all that were taken, are saved; returns their indices."""
        saved = list(self.training if names is None else names)
        for name in saved:
            for member in self.training.pop(name).samples:
                self.slots.move(member.id, "trained")
        return list(map(index_of, saved))

    # --- what a checkpoint needs --------------------------------------------------------------------------------------

    def _alive(self) -> list[GroupRecord]:
        return [group.record for group in (*self.open.values(), *self.ready)]

    def pending(self) -> list[int]:
        """Indices of groups that are neither trained on, nor in training, nor dropped: what a resumed run takes up."""
        return sorted(record.index for record in self._alive())

    def unsettled(self) -> Counter[Reason]:
        """Slots of those groups that were dropped one by one."""
        return Counter(reason for record in self._alive() for reason in record.dropped.values())

    def scored(self) -> list[str]:
        """Slots of those groups that are scored."""
        opened = [slot for group in self.open.values() for slot in group.members]
        return [*opened, *(member.id for each in self.ready for member in each.group.samples)]

    def ended(self) -> list[int]:
        """Indices of groups that were dropped since the last call."""
        ended, self._ended = self._ended, []
        return ended
