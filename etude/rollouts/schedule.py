"""Schedules: when a group may be sampled, by which version, and what a step is made of.

    free      nothing waits. Groups are opened while there is room, engines take up every version at once, and a step
              takes the oldest groups that are ready. How old a token may be is bounded (`groups.max_staleness`).
    lockstep  step s trains exactly the groups [s·B, (s+1)·B), each sampled wholly by the version there was when step
              s-1-lag was done: lag 0 is synchronous, lag 1 samples one step ahead. Engines change their version only
              between groups, stragglers are waited for, and a group without variance leaves its batch and is not
              replaced. So what is trained on depends on the recipe alone, and not on how fast anything was, or how
              often it died.

Owns these rules, and how long a run trains where the recipe says how long the whole of it may take. Holds no sample and
waits for nothing: the controller asks, and tells what has happened.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from etude.errors import ConfigError
from etude.records import Version
from etude.rollouts.config import RunConfig
from etude.rollouts.groups import GroupPool
from etude.rollouts.sample import Sample, SampleGroup
from etude.rollouts.slots import Slot, index_of


class Asynchronous:
    """As fast as it goes, within the staleness bound; `rollouts.schedule = "free"`."""

    deterministic = False
    """Whether what is trained on depends on the recipe alone: every version has its turn, stragglers are waited for."""

    def __init__(self, config: RunConfig) -> None:
        self.reconfigure(config)
        self.newest = self.engine_version = Version(0)

    def reconfigure(self, config: RunConfig) -> None:
        """Go on by another recipe, as far as it may change while the run goes on."""
        self.budget, self.groups = config.rollouts, config.groups
        self.max_groups = self.budget.groups_per_step * (1 + self.groups.max_staleness)
        """Groups that are open or ready at once: more would be stale when they are trained on."""
        self.window = max(self.budget.groups_per_step, math.ceil(self.groups.window_share * self.max_groups))

    def progress(self, elapsed_s: float, steps: int) -> float:
        """How much of the budget is spent, by the clock or by steps, whichever is further."""
        return max(elapsed_s / (self.budget.max_minutes * 60), steps / self.budget.max_steps)

    def over(self, elapsed_s: float, steps: int) -> bool:
        """Whether the run has had its time or its steps."""
        return self.progress(elapsed_s, steps) >= 1

    def opens(self, pool: GroupPool, out: int, index: int | None = None) -> bool:
        """Whether the next group may be opened, while so many rollouts are out; it has this index, if one is given."""
        room = self.budget.concurrency - out - len(pool.slots.within("queued")) >= self.groups.size
        return room and self.wants(pool.next_index if index is None else index, pool)

    def startable(self, pool: GroupPool, out: int) -> list[Slot]:
        """Queued slots that may be played now, while so many rollouts are out."""
        queued = [slot for slot in pool.slots.within("queued") if self.may_sample(slot.group_index)]
        return queued[: max(0, self.budget.concurrency - out)]

    def wants(self, index: int, pool: GroupPool) -> bool:
        """Whether the group with this index, the next, may be opened now."""
        return len(pool.ready) + len(pool.open) < self.max_groups

    def may_sample(self, index: int) -> bool:
        """Whether the engines hold what may sample this group."""
        return True

    def take(self, pool: GroupPool, version: Version) -> list[SampleGroup] | None:
        """What the next step trains; None while it is not there."""
        return pool.take(self.budget.groups_per_step, version, self.window)

    def stepped(self, version: Version) -> None:
        """A step is done, and this is the version there is now."""
        self.newest = version

    def target_version(self, pool: GroupPool) -> Version:
        """What engines should hold now."""
        return self.newest

    def first(self) -> Version | None:
        """What engines should hold before anything is sampled; None for the newest."""
        return None

    def accepts(self, sample: Sample) -> bool:
        """Whether it was sampled by what it should have been."""
        return True

    def state(self) -> dict[str, Any]:
        """Before a step: what another schedule of the same kind starts from, once `stepped` is called on it."""
        return {}


class Lockstep(Asynchronous):
    """The same steps whatever happens."""

    deterministic = True

    def __init__(self, config: RunConfig, saved: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        saved = saved or {}
        self.round = int(saved.get("round", 0))
        """The next to be trained. A round in which no group has variance makes no step, so there may be more of them
        than steps."""
        versions = saved.get("versions", [0] * (1 + self.budget.lag))
        self._versions = deque(map(Version, versions))
        """Which version samples this round, and those that may be sampled beside its step."""

    def progress(self, elapsed_s: float, steps: int) -> float:
        return self.round / self.budget.max_steps  # the learning rate follows it, and must not know the clock

    def over(self, elapsed_s: float, steps: int) -> bool:
        return self.round >= self.budget.max_steps or elapsed_s >= self.budget.max_minutes * 60

    def wants(self, index: int, pool: GroupPool) -> bool:
        return self._round_of(index) < self.budget.max_steps and self.may_sample(index)

    def may_sample(self, index: int) -> bool:
        return self._version_of(index) == self.engine_version

    def take(self, pool: GroupPool, version: Version) -> list[SampleGroup] | None:
        size = self.budget.groups_per_step
        while self.round < self.budget.max_steps:
            groups = pool.take_all(range(self.round * size, (self.round + 1) * size))
            if groups is None or groups:
                return groups
            self.stepped(version)
        return None

    def stepped(self, version: Version) -> None:
        self.round += 1
        self._versions.popleft()
        self._versions.append(version)

    def target_version(self, pool: GroupPool) -> Version:
        unfinished = min((group.record.index for group in pool.open.values()), default=pool.next_index)
        wanted = self._version_of(unfinished)
        return self.engine_version if wanted is None else wanted

    def first(self) -> Version:
        return self._versions[0]

    def accepts(self, sample: Sample) -> bool:
        if sample.usage.get("planted"):  # no version has sampled it
            return True
        return set(sample.versions) <= {self._version_of(index_of(sample.id))}

    def state(self) -> dict[str, Any]:
        return {"round": self.round, "versions": [int(version) for version in self._versions]}

    def _round_of(self, index: int) -> int:
        return index // self.budget.groups_per_step

    def _version_of(self, index: int) -> Version | None:
        """Which version samples a group; None while nobody can know."""
        ahead = self._round_of(index) - self.round
        return self._versions[ahead] if ahead < len(self._versions) else None


def schedule_of(config: RunConfig, saved: Mapping[str, Any] | None = None) -> Asynchronous:
    """The recipe's schedule, where a checkpoint left it: its `controller` state, if there is one."""
    saved = saved or {}
    schedule = (
        Lockstep(config, saved.get("schedule")) if config.rollouts.schedule == "lockstep" else Asynchronous(config)
    )
    if saved:
        schedule.stepped(Version(saved["line"]["version"]))
    return schedule


# --- how long a run trains --------------------------------------------------------------------------------------------

LATER = 1.4
"""An evaluation after training against that of the base, whose sessions end early (measured: 1.25 to 1.4)."""
CONTROL = 1.75
"""The control against reinforcement learning, by the clock of two cores: as much CPU time, most of it in one thread."""


def training_minutes(config: RunConfig, elapsed_s: float, evaluation_s: float) -> float:
    """Minutes for reinforcement learning, `elapsed_s` into the run, after a base evaluation of `evaluation_s`.

    Raises ConfigError where nothing is left.
    """
    budget = config.rollouts
    if budget.total_minutes is None:
        return budget.max_minutes
    evaluations, shares = (2, 1 + CONTROL) if config.control.enabled else (1, 1)
    minutes = (60 * budget.total_minutes - elapsed_s - evaluations * LATER * evaluation_s) / 60 / shares
    if minutes <= 0:
        raise ConfigError(
            f"rollouts.total_minutes: {budget.total_minutes} leave no time to train, {elapsed_s:.0f} s are gone and an "
            f"evaluation takes {evaluation_s:.0f} s: allow more, or evaluate fewer tasks (evaluation.per_rung)"
        )
    return min(budget.max_minutes, minutes)
