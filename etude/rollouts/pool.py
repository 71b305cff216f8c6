"""Processes of one kind that do the same work, each replaced when it dies.

Owns their handles, how many calls each has out, the spares that take a dead one's place at once, and the replacement of
one by new code: it is given no more work, and ended when the last call has come back. A call that was with a process
when it died fails with `DIED`, and is its caller's to make again. Knows nothing of what the processes do. Talks to:
faults, health.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, EtudeError, SandboxError
from etude.rollouts.faults import BUSY, START_S, Kind, Restarts
from etude.rollouts.health import Patient, end, identify, let_go
from etude.rollouts.processes import Identity
from etude.rollouts.waiting import DIED, STOP_S, within


@dataclass(eq=False)
class Member:
    """One process of a pool."""

    number: int
    actor: Any
    identity: Identity | None = None
    load: int = 0
    leaving: bool = False


class Pool:
    """Use it on one event loop. Open it with `start` and end it with `close`."""

    def __init__(self, kind: Kind, make: Callable[[int], Any], size: int, spares: int, restarts: Restarts) -> None:
        """`make(number)` starts a process and returns its handle; Ray must not restart it by itself (max_restarts=0).
        Its actor has `stats()`, which answers once it is ready, and `close()`.
        """
        self.kind, self.restarts, self.size = kind, restarts, size
        self._make, self._numbers, self._start_s = make, itertools.count(), scaled(START_S)
        self._coming = [self._new() for _ in range(size + spares)]
        self.members: list[Member] = []
        self.spares: list[Member] = []
        self.failure: EtudeError | None = None
        self._changed = asyncio.Event()
        self._work: set[asyncio.Task[None]] = set()

    def _new(self) -> Member:
        number = next(self._numbers)
        return Member(number, self._make(number))

    async def start(self) -> None:
        """Returns when each process has answered. Raises DeadlineExceeded, or what the process raised."""
        await asyncio.gather(*(self._ready(member) for member in self._coming))
        self.members, self.spares = self._coming[: self.size], self._coming[self.size :]
        self._coming = []

    async def _ready(self, member: Member) -> None:
        what, seconds = f"process {member.number} of the {self.kind} pool to start", self._start_s
        member.identity = await identify(member.actor, seconds, what)
        await within(member.actor.stats.remote(), seconds, what)

    # --- work ---------------------------------------------------------------------------------------------------------

    async def place(self) -> Member:
        """The least loaded process; waits while there is none. Raises DeadlineExceeded, or RestartBudgetSpent."""
        while True:
            if self.failure is not None:
                raise self.failure
            if here := [member for member in self.members if not member.leaving]:
                return min(here, key=lambda member: member.load)
            self._changed.clear()
            await within(self._changed.wait(), BUSY * self._start_s, f"a process of the {self.kind} pool to be there")

    def call(self, member: Member, method: str, *arguments: Any, seconds: float, what: str) -> Awaitable[Any]:
        """Ask a process now; await it for the answer. Raises DIED after seeing to its replacement, DeadlineExceeded
        naming `what`.
        """
        return self._answer(member, getattr(member.actor, method).remote(*arguments), seconds, what)

    async def _answer(self, member: Member, asked: Awaitable[Any], seconds: float, what: str) -> Any:
        member.load += 1
        try:
            return await within(asked, seconds, what)
        except DIED as died:
            self.lost(member, str(died))
            raise
        finally:
            member.load -= 1
            self._changed.set()

    async def each(self, method: str, *arguments: Any, what: str) -> list[Any]:
        """What every process answers; those that die meanwhile are left out."""
        answers = await asyncio.gather(
            *(
                self.call(member, method, *arguments, seconds=scaled(STOP_S), what=what)
                for member in list(self.members)
            ),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, DIED):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    # --- deaths and replacements --------------------------------------------------------------------------------------

    def patients(self) -> list[Patient]:
        """For the health checks."""

        def patient(member: Member) -> Patient:
            name = f"process {member.number} of {self.kind}"
            return Patient(name, member.actor, member.identity, died=lambda why: self.lost(member, why))

        return [patient(member) for member in [*self.members, *self.spares]]

    def lost(self, member: Member, why: str) -> None:
        """A process is known to be dead: a spare takes its place at once, and a new one is started. Once each."""
        if member in self.spares:
            self.spares.remove(member)
        elif member in self.members:
            self.members.remove(member)
            if self.spares:
                self.members.append(self.spares.pop(0))
        else:
            return
        end(member.actor, member.identity)
        self._changed.set()
        self._later(self._refill(why))

    async def _refill(self, why: str) -> None:
        while True:
            await self.restarts.pause(self.kind, why)
            member = self._new()
            try:
                await self._ready(member)
            except (DIED, DeadlineExceeded, SandboxError) as error:  # the next one may be luckier
                why = str(error)
                end(member.actor, member.identity)
                continue
            self._join(member)
            return

    def _join(self, member: Member) -> None:
        (self.members if len(self.members) < self.size else self.spares).append(member)
        self._changed.set()

    async def replace(self, deadline_s: float) -> int:
        """Put a new process in the place of each, one after the other: the new one is ready before the old one gets no
        more work, and the old one ends with its last call, or after the deadline. Returns how many were replaced.
        """
        olds = list(self.members)
        for old in olds:
            fresh = self._new()
            await self._ready(fresh)
            old.leaving = True
            if old in self.members:
                self.members.remove(old)
            self.members.append(fresh)
            self._changed.set()
            self.restarts.note(self.kind, "replaced by an operator")
            await self._drained(old, deadline_s)
            await self._closed(old)
        return len(olds)

    async def _drained(self, member: Member, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                while member.load:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return  # what it still does fails as if it had died, and is done again elsewhere

    async def _closed(self, member: Member) -> None:
        try:
            await within(
                member.actor.close.remote(), scaled(STOP_S), f"process {member.number} of {self.kind} to close"
            )
            let_go(member.actor)
        except DIED:
            return
        except DeadlineExceeded:  # it hangs; what it leaves is swept by whoever opens its backend next
            end(member.actor, member.identity)

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            known = isinstance(error, EtudeError)
            self.failure = error if known else EtudeError(f"a process of {self.kind} could not be replaced: {error!r}")
            self._changed.set()

    async def close(self) -> None:
        """Close what is there; a process that dies meanwhile is not replaced any more."""
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*(self._closed(member) for member in [*self.members, *self.spares]))
        self.members, self.spares = [], []
