"""Slots: every sample a run wants, and where each of them is.

Owns the state machine. A slot is one sample to be had: member `m` of group `i`, named `g<i>/<m>`, with a seed that
depends on the run's seed and these two numbers alone; so a run that is resumed wants the same samples. Nothing else may
say where a sample is, and `move` refuses what the table `TRANSITIONS` does not have (docs/slots.svg draws it).

Every slot ends in exactly one of trained and dropped. Does no I/O, holds no trajectory and knows no clock. Slots are
moved by the controller and its GroupPool alone, on one event loop, and by the simulator of a plan; others only look.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from etude.errors import EtudeError

State = Literal["queued", "starting", "running", "sealed", "rewarding", "scored", "grouped", "trained", "dropped"]
Reason = Literal[
    "zero_variance", "too_few_scored", "stale", "straggler", "infra", "overlong", "quarantined", "run_ended"
]

STATES: tuple[State, ...] = get_args(State)
REASONS: tuple[Reason, ...] = get_args(Reason)
ENDS: tuple[State, ...] = ("trained", "dropped")
DROPPED = "with a reason; not from trained or dropped"
TRANSITIONS: dict[tuple[State, State], str] = {
    ("queued", "starting"): "a request for it has gone to a worker",
    ("starting", "running"): "its sandbox is there, and the session has begun",
    ("starting", "queued"): "the attempt was lost",
    ("running", "sealed"): "the session has ended, and its final state is kept",
    ("running", "queued"): "the attempt was lost",
    ("sealed", "rewarding"): "a judge has it",
    ("sealed", "queued"): "what was sealed is lost",
    ("rewarding", "scored"): "the verdict is there",
    ("rewarding", "sealed"): "the judge was lost",
    ("scored", "grouped"): "its group has closed with it, and is ready to be trained on",
    ("grouped", "trained"): "it was in a batch, and the version that this made is there",
    **{(state, "dropped"): DROPPED for state in STATES if state not in ENDS},
}
PLAYED: tuple[State, ...] = ("queued", "starting", "running", "sealed", "rewarding", "scored")
"""The way of a sample that nothing happens to, as far as workers report it."""


@dataclass
class Slot:
    """One sample to be had; changed by `Slots` alone."""

    id: str
    group_index: int
    """Of its group."""
    member: int
    seed: int
    state: State = "queued"
    attempts: int = 0
    """Requests that were sent for it."""
    failed: int = 0
    """Of those, how many infrastructure failed."""
    died: int = 0
    """How many were lost with the process that had them."""


class WrongMove(EtudeError):
    """A move that the table does not have: a fault of the program, never of a run."""


class Slots:
    """All slots of a run: those alive one by one, those that have ended as counts."""

    def __init__(
        self,
        run_seed: int,
        saved: Mapping[str, Any] | None = None,
        on_move: Callable[[Slot, State | None], None] = lambda slot, before: None,
    ) -> None:
        """`saved` is a checkpoint's `after_step`; `on_move` is told of every move, with the state before it:
        None for a slot that is new.
        """
        saved = saved or {}
        self.run_seed, self.on_move = run_seed, on_move
        self.trained = int(saved.get("trained", 0))
        self.dropped: Counter[Reason] = Counter(saved.get("dropped", {}))
        self.moves: Counter[tuple[State, State]] = Counter()
        """How often each transition was taken in this life of the run."""
        self._alive: dict[str, Slot] = {}

    # --- what is there ------------------------------------------------------------------------------------------------

    def __getitem__(self, slot_id: str) -> Slot:
        try:
            return self._alive[slot_id]
        except KeyError:
            raise WrongMove(f"slot {slot_id}: there is none, or it has ended") from None

    def __contains__(self, slot_id: str) -> bool:
        """Whether it is there and has not ended."""
        return slot_id in self._alive

    def within(self, *states: State) -> list[Slot]:
        """Those in these states, in the order of their groups."""
        return sorted((s for s in self._alive.values() if s.state in states), key=lambda s: (s.group_index, s.member))

    def counts(self) -> dict[State, int]:
        """How many are in each state, all states named."""
        alive = Counter(slot.state for slot in self._alive.values())
        return {state: alive[state] for state in STATES} | {
            "trained": self.trained, "dropped": self.dropped.total(),
        }  # fmt: skip

    # --- what happens to them -----------------------------------------------------------------------------------------

    def open(self, index: int, size: int, scored: Iterable[int] = ()) -> list[Slot]:
        """The slots of a group: queued, but for those members whose trajectories are there from an earlier life."""
        new = [Slot(slot_id(index, m), index, m, slot_seed(self.run_seed, index, m)) for m in range(size)]
        for slot in scored:
            new[slot].state = "scored"
        for slot in new:
            if slot.id in self._alive:
                raise WrongMove(f"slot {slot.id}: opened twice")
            self._alive[slot.id] = slot
            self.on_move(slot, None)
        return new

    def move(self, slot_id: str, to: State, reason: Reason | None = None) -> Slot:
        """Take one transition of the table; `reason` goes with `dropped`, and only with it. Raises WrongMove."""
        slot = self[slot_id]
        if (slot.state, to) not in TRANSITIONS:
            raise WrongMove(f"slot {slot_id}: no way from {slot.state} to {to}")
        if (reason is None) == (to == "dropped"):
            raise WrongMove(f"slot {slot_id}: {to} with reason {reason}")
        before, slot.state = slot.state, to
        self.moves[before, to] += 1
        slot.attempts += to == "starting"
        if to in ENDS:
            del self._alive[slot_id]
        if reason is None:
            self.trained += to == "trained"
        else:
            self.dropped[reason] += 1
        self.on_move(slot, before)
        return slot

    def advance_to(self, slot_id: str, attempt: int, at: State) -> bool:
        """A worker says that attempt number `attempt` is `at` a state: go there, through all states between; from
        rewarding back to sealed where its judge was lost.

        What it says of an attempt that was given up, or of a state that is behind, changes nothing: False.
        """
        slot = self._alive.get(slot_id)
        if slot is None or slot.attempts != attempt or slot.state not in PLAYED:
            return False
        if (slot.state, at) == ("rewarding", "sealed"):
            self.move(slot_id, at)
            return True
        between = PLAYED[PLAYED.index(slot.state) + 1 : PLAYED.index(at) + 1]
        for state in between:
            self.move(slot_id, state)
        return bool(between)

    def requeue(self, slot_id: str, *, failed: bool = False, died: bool = False) -> Slot:
        """The attempt is gone: back to queued."""
        slot = self[slot_id]
        slot.failed, slot.died = slot.failed + failed, slot.died + died
        if slot.state == "rewarding":
            self.move(slot_id, "sealed")
        return self.move(slot_id, "queued")

    def end(self) -> None:
        """The run is over: what is alive is dropped."""
        for slot in list(self._alive.values()):
            self.move(slot.id, "dropped", "run_ended")

    # --- accounting ---------------------------------------------------------------------------------------------------

    def after_step(self, training: int, unsettled: Counter[Reason]) -> dict[str, Any]:
        """What has ended for good once a step is saved: `training` more samples than now, and not what was dropped of
        groups that are alive (`unsettled`), for these are opened again. A resumed run counts on from it.
        """
        return {"trained": self.trained + training, "dropped": dict(self.dropped - unsettled)}


def slot_id(index: int, member: int) -> str:
    """The name of a slot; it holds no version and no attempt."""
    return f"{group_id(index)}/{member}"


def group_id(index: int) -> str:
    return f"g{index}"


def index_of(group_or_slot: str) -> int:
    """The index of a group, from its name or one of its slots'."""
    return int(group_or_slot.partition("/")[0][1:])


def member_of(slot: str) -> int:
    """The number of a slot in its group, from its name."""
    return int(slot.partition("/")[2])


def slot_seed(run_seed: int, index: int, member: int) -> int:
    """The seed of all draws of a sample, 48 bits; every attempt at it has the same."""
    return random.Random(f"{run_seed} {slot_id(index, member)}").getrandbits(48)
