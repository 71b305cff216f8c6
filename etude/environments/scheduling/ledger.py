"""The states of a request, and the count that never loses one.

Owns `Ticket` (one request) and `Ledger` (all of them). Decides nothing: the scheduler says which move, the ledger
refuses a move that is not drawn here, and tells each one as a `Notice`.

                     submit
                    ╱      ╲
             refused        queued ◄────────┐
                │         ╱   │   ╲         │ the start failed, or its node died, and tries are left
                ▼        ╱    ▼    ╲        │
             queued     ╱  placing ─╲───────┘
       (asked again)   ╱  ╱   │   ╲  ╲
                      ▼  ▼    ▼    ▼  ▼
                     ended  ready   failed
                        ▲   ╱   ╲    ▲
                        └──┘     └───┘

  queued    waits for a node; `why` says what for
  placing   a node has the order; its room is reserved
  ready     the caller may use it
  ended     destroyed, cancelled, or its time ran out (`why`)
  failed    our machinery failed it; `failure` is an InfraFailed, retryable or not
  refused   never queued; `refusal` says when to ask again

At every moment a request is in exactly one of them. `counts` counts every request ever submitted, also those whose
tickets have been forgotten: ended, failed and refused tickets are kept while there is room for them, oldest first out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from etude.environments.scheduling.messages import Notice, Request
from etude.errors import EtudeError, Overloaded, SandboxError
from etude.records import InfraFailed

if TYPE_CHECKING:
    from etude.environments.scheduling.fleet import Lease
    from etude.environments.scheduling.headroom import Shape


class State(StrEnum):
    QUEUED = "queued"
    PLACING = "placing"
    READY = "ready"
    ENDED = "ended"
    FAILED = "failed"
    REFUSED = "refused"


MOVES: dict[State | None, frozenset[State]] = {
    None: frozenset({State.QUEUED, State.REFUSED, State.READY}),  # ready at once: adopted from a node that reports it
    State.REFUSED: frozenset({State.QUEUED, State.REFUSED, State.READY}),
    State.QUEUED: frozenset({State.PLACING, State.ENDED, State.FAILED, State.READY}),
    State.PLACING: frozenset({State.QUEUED, State.READY, State.ENDED, State.FAILED}),
    State.READY: frozenset({State.ENDED, State.FAILED}),
    State.ENDED: frozenset(),
    State.FAILED: frozenset(),
}
FINAL = frozenset({State.ENDED, State.FAILED, State.REFUSED})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not taken in. Retryable unless nothing here could ever hold it."""

    what: str
    retry_after_s: float | None

    def error(self) -> SandboxError:
        """What the server raises to its caller."""
        if self.retry_after_s is None:
            return SandboxError(self.what)
        return Overloaded(self.what, self.retry_after_s)


@dataclass(slots=True, eq=False)
class Ticket:
    """One request and what has become of it."""

    request: Request
    shape: Shape
    seq: int
    """Order of submission; kept when a failed start sends it back to the queue."""
    state: State | None = None
    submitted_at: float = 0.0
    since: float = 0.0
    """When it came into its present state."""
    why: str = ""
    attempts: int = 0
    avoid: tuple[str, ...] = ()
    """Nodes that failed it."""
    lease: Lease | None = None
    expires_at: float | None = None
    failure: InfraFailed | None = None
    refusal: Refusal | None = None


@dataclass(slots=True)
class Ledger:
    """Every request, in one state each."""

    keep_final: int
    """How many tickets in a final state are kept for questions about them."""
    tickets: dict[str, Ticket] = field(default_factory=dict)
    counts: dict[State, int] = field(default_factory=lambda: dict.fromkeys(State, 0))
    submitted: int = 0
    notices: list[Notice] = field(default_factory=list)
    _opened: int = 0
    _final: deque[Ticket] = field(default_factory=deque)

    def open(self, request: Request, shape: Shape, now: float) -> Ticket:
        """A ticket without a state yet: the caller moves it at once. One that was refused is asked again."""
        ticket = self.tickets.get(request.id)
        if ticket is None:
            ticket = self.tickets[request.id] = Ticket(request, shape, self._opened, submitted_at=now)
            self.submitted += 1
        elif ticket.state is State.REFUSED:
            ticket.request, ticket.shape, ticket.refusal = request, shape, None
            ticket.seq, ticket.submitted_at = self._opened, now
        else:
            raise EtudeError(f"request {request.id} is {ticket.state} and cannot be opened again")
        self._opened += 1
        return ticket

    def move(self, ticket: Ticket, state: State, now: float, why: str = "") -> None:
        """Change a ticket's state. Raises EtudeError for a move the drawing above does not have: a bug of ours."""
        before = ticket.state
        if state not in MOVES[before]:
            raise EtudeError(f"request {ticket.request.id} cannot go from {before} to {state} ({why})")
        if before is not None:
            self.counts[before] -= 1
        self.counts[state] += 1
        ticket.state, ticket.since, ticket.why = state, now, why
        lease = ticket.lease
        where = (lease.node.name, lease.id) if lease is not None else (None, None)
        self.notices.append(Notice(ticket.request.id, state, now, *where, why, ticket.failure))
        if state in FINAL:
            self._final.append(ticket)
            self._forget()

    def _forget(self) -> None:
        while len(self._final) > self.keep_final:
            ticket = self._final.popleft()
            if ticket.state in FINAL and self.tickets.get(ticket.request.id) is ticket:
                del self.tickets[ticket.request.id]

    def check(self) -> None:
        """Recount everything. Raises EtudeError where the books do not agree; costs every ticket kept."""
        if sum(self.counts.values()) != self.submitted:
            raise EtudeError(f"{self.submitted} requests were submitted and {self.counts} are accounted for")
        for state in set(State) - FINAL:
            found = sum(ticket.state is state for ticket in self.tickets.values())
            if found != self.counts[state]:
                raise EtudeError(f"{self.counts[state]} requests are counted as {state}, and {found} tickets are")
