"""Who is next: two classes, fair shares between tenants, and a place in line that people can see.

Owns `FairShares` and `Queues`. Knows nothing of nodes: the scheduler asks for the next ticket, says which shapes found
no room, and takes the ticket out when it has found some.

Between tenants: dominant resource fairness (Ghodsi et al. 2011). A tenant's share is the largest of its shares of the
cluster's memory, CPU and disk, over its weight, and whoever has the least goes next; within a tenant, who came first.
Between classes: interactive before training, but when training has waited for `training_patience_s` it gets one turn in
`training_turn`. (A request that finds no room while others do is the scheduler's to look after: see its claims.)

Requests of one shape share a `ShapeQueue`, because room for one is room for all: when a shape finds none, one look has
told it for everybody in line. Finding the next costs a look at the top of each line, plus the logarithm of its tenants.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pydantic import Field

from etude.config import Config
from etude.environments.scheduling.headroom import Shape
from etude.environments.scheduling.ledger import Refusal, State, Ticket
from etude.environments.scheduling.messages import PRIORITIES, Priority


class QueueConfig(Config):
    """Who may wait, how long, and whose turn it is."""

    limits: dict[Priority, int] = {"interactive": 20_000, "training": 200_000}
    """How many may wait in a class; beyond it, a request is refused and told when to ask again."""
    tenant_part: float = Field(default=0.9, gt=0, le=1)
    """How much of that one tenant may take, so that nobody can lock the others out."""
    patience_s: dict[Priority, float] = {"interactive": 120.0, "training": 3600.0}
    """How long a request may wait before it fails, retryably."""
    weights: dict[str, float] = {}
    """Of tenants; 1 for those not named."""
    training_patience_s: float = 10.0
    training_turn: int = Field(default=8, ge=1)


class FairShares:
    """What each tenant holds, as its weighted dominant share of the cluster."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._used: dict[str, list[int]] = {}
        self._keys: dict[str, float] = {}
        self._totals = [1, 1, 1]

    def resize(self, totals: list[int]) -> None:
        """The cluster has grown or shrunk."""
        self._totals = [max(1, total) for total in totals]
        for tenant in self._used:
            self._count(tenant)

    def add(self, tenant: str, shape: Shape, sign: int) -> None:
        used = self._used.setdefault(tenant, [0, 0, 0])
        used[0] += sign * shape.memory
        used[1] += sign * shape.cpus
        used[2] += sign * shape.disk
        if any(used):
            self._count(tenant)
        else:
            del self._used[tenant]
            self._keys.pop(tenant, None)

    def of(self, tenant: str) -> float:
        """Dominant share over weight: what is to be made equal."""
        return self._keys.get(tenant, 0.0)

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def _count(self, tenant: str) -> None:
        memory, cpus, disk = self._used[tenant]
        totals = self._totals
        self._keys[tenant] = max(memory / totals[0], cpus / totals[1], disk / totals[2]) / self.weight(tenant)


class ShapeQueue:
    """Tickets of one shape and class, first in first out for each tenant, tenants by share.

    The heap may hold more than one entry a tenant; only the one in `_entry` counts, and one whose share has risen since
    is put back where it belongs when it comes up.
    """

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self._heap: list[tuple[float, int, str]] = []
        self._entry: dict[str, tuple[float, int]] = {}
        self.waiting: dict[str, deque[Ticket]] = {}
        self.served_at = 0.0

    def push(self, ticket: Ticket, first: bool = False) -> None:
        tenant = ticket.request.tenant
        tickets = self.waiting.get(tenant)
        if tickets is None:
            tickets = self.waiting[tenant] = deque()
        (tickets.appendleft if first else tickets.append)(ticket)
        if first or len(tickets) == 1:
            self.touch(tenant)

    def touch(self, tenant: str) -> None:
        """The tenant's share has fallen, or its first ticket has changed."""
        tickets = self.waiting.get(tenant)
        if not tickets:
            return
        entry = (self._shares.of(tenant), tickets[0].seq)
        if self._entry.get(tenant) != entry:
            self._entry[tenant] = entry
            heapq.heappush(self._heap, (*entry, tenant))
            if len(self._heap) > 64 + 2 * len(self._entry):
                self._heap = [(*known, name) for name, known in self._entry.items()]
                heapq.heapify(self._heap)

    def top(self) -> tuple[float, int, Ticket] | None:
        """Share, order and ticket of whoever is next; drops tickets that are not waiting any more."""
        heap, entries = self._heap, self._entry
        while heap:
            share, seq, tenant = heap[0]
            if entries.get(tenant) != (share, seq):
                heapq.heappop(heap)
                continue
            tickets = self.waiting[tenant]
            while tickets and tickets[0].state is not State.QUEUED:
                tickets.popleft()
            if not tickets:
                heapq.heappop(heap)
                del self.waiting[tenant], entries[tenant]
                continue
            now = (self._shares.of(tenant), tickets[0].seq)
            if now == (share, seq):
                return share, seq, tickets[0]
            entries[tenant] = now
            heapq.heapreplace(heap, (*now, tenant))
        return None

    def remove(self, ticket: Ticket) -> None:
        tickets = self.waiting[ticket.request.tenant]
        if tickets[0] is ticket:
            tickets.popleft()
        else:
            tickets.remove(ticket)


@dataclass(slots=True)
class ClassQueue:
    """One class."""

    lines: dict[Shape, ShapeQueue] = field(default_factory=dict)
    order: deque[Ticket] = field(default_factory=deque)
    """By submission, for whoever has waited longest; tickets that left are dropped when they come up."""
    tenants: Counter[str] = field(default_factory=Counter)
    length: int = 0

    def oldest(self) -> Ticket | None:
        order = self.order
        while order and order[0].state is not State.QUEUED:
            order.popleft()
        return order[0] if order else None


class Queues:
    """Both classes, and the turns between them."""

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        self.shares = FairShares(config.weights)
        self.classes: dict[Priority, ClassQueue] = {priority: ClassQueue() for priority in PRIORITIES}
        self._passed = 0
        """Interactive placements since training last had a turn."""

    def refusal(self, priority: Priority, tenant: str, per_s: float) -> Refusal | None:
        """Whether there is no place left in line; `per_s` is how fast it moves."""
        queue, limit = self.classes[priority], self.config.limits[priority]
        tenant_limit = max(1, int(limit * self.config.tenant_part))
        if queue.length >= limit:
            over, what = queue.length, f"{queue.length} {priority} requests wait already"
        elif queue.tenants[tenant] >= tenant_limit:
            over, what = queue.tenants[tenant], f"{queue.tenants[tenant]} {priority} requests of {tenant} wait already"
        else:
            return None
        # by then a tenth of the line will have moved; nobody knows its pace before it first has
        return Refusal(what, min(300.0, max(1.0, 0.1 * over / per_s)) if per_s > 0.0 else 5.0)

    def push(self, ticket: Ticket, first: bool = False) -> None:
        """Put a ticket in line; `first` when it had its turn and its start failed."""
        queue = self.classes[ticket.request.priority]
        line = queue.lines.get(ticket.shape)
        if line is None:
            line = queue.lines[ticket.shape] = ShapeQueue(self.shares)
        line.push(ticket, first)
        (queue.order.appendleft if first else queue.order.append)(ticket)
        queue.tenants[ticket.request.tenant] += 1
        queue.length += 1

    def left(self, ticket: Ticket) -> None:
        """A ticket is not waiting any more; it may still stand in line, and is passed over."""
        queue = self.classes[ticket.request.priority]
        queue.length -= 1
        queue.tenants[ticket.request.tenant] -= 1
        if not queue.tenants[ticket.request.tenant]:
            del queue.tenants[ticket.request.tenant]

    def take(self, ticket: Ticket, now: float) -> None:
        """A ticket has found room."""
        line = self.classes[ticket.request.priority].lines[ticket.shape]
        line.remove(ticket)
        line.served_at = now
        self.left(ticket)
        self._passed = self._passed + 1 if ticket.request.priority == "interactive" else 0

    def lowered(self, tenant: str) -> None:
        """A tenant's share has fallen: it may be next now. (One that has risen is noticed when it comes up.)"""
        for queue in self.classes.values():
            if tenant in queue.tenants:
                for line in queue.lines.values():
                    line.touch(tenant)

    def resize(self, totals: list[int]) -> None:
        """The cluster has grown or shrunk, and every share with it."""
        self.shares.resize(totals)
        for queue in self.classes.values():
            for line in queue.lines.values():
                for tenant in line.waiting:
                    line.touch(tenant)

    def next(self, now: float, without_room: Collection[Shape]) -> Ticket | None:
        """Whose turn it is, leaving out shapes known to find no room."""
        for priority in self._turns(now):
            best: tuple[float, int, Ticket] | None = None
            lines = self.classes[priority].lines
            empty = []
            for shape, line in lines.items():
                if shape in without_room:
                    continue
                top = line.top()
                if top is None:
                    empty.append(shape)
                elif best is None or top[:2] < best[:2]:
                    best = top
            for shape in empty:
                del lines[shape]
            if best is not None:
                return best[2]
        return None

    def stalled(self, priority: Priority, before: float, without_room: Collection[Shape]) -> Ticket | None:
        """The first of the line that has stood still for longest, if it has since `before` while others moved on."""
        longest: tuple[float, int, Ticket] | None = None
        for shape, line in self.classes[priority].lines.items():
            top = line.top() if shape in without_room else None
            if top is not None:
                since = max(line.served_at, top[2].submitted_at)
                if since <= before and (longest is None or (since, top[1]) < longest[:2]):
                    longest = (since, top[1], top[2])
        return longest[2] if longest is not None else None

    def _turns(self, now: float) -> tuple[Priority, ...]:
        if self._passed >= self.config.training_turn - 1:
            oldest = self.classes["training"].oldest()
            if oldest is not None and now - oldest.submitted_at > self.config.training_patience_s:
                return "training", "interactive"
        return PRIORITIES

    # --- for people --------------------------------------------------------------------------------------------------

    def position(self, ticket: Ticket) -> int:
        """How many of its class go before it, as shares stand; 0 is next. Costs the length of its tenant's line.

        With the k-th of a tenant go about k of every other tenant of the same weight, or as many as those have.
        """
        queue, tenant = self.classes[ticket.request.priority], ticket.request.tenant
        ahead = sum(
            other.state is State.QUEUED and other.seq < ticket.seq
            for line in queue.lines.values()
            for other in line.waiting.get(tenant, ())
        )
        return self._rank(queue, tenant, ahead)

    def view(self, priority: Priority, limit: int) -> list[tuple[int, Ticket]]:
        """The first `limit` of a class, with their positions. Costs the whole line: for people, not for the loop."""
        queue = self.classes[priority]
        ranked: list[tuple[int, int, Ticket]] = []
        for tenant in queue.tenants:
            waiting = [
                ticket
                for line in queue.lines.values()
                for ticket in line.waiting.get(tenant, ())
                if ticket.state is State.QUEUED
            ]
            for ahead, ticket in enumerate(heapq.nsmallest(limit, waiting, key=lambda ticket: ticket.seq)):
                ranked.append((self._rank(queue, tenant, ahead), ticket.seq, ticket))
        ranked.sort(key=lambda entry: entry[:2])
        return [(rank, ticket) for rank, _, ticket in ranked[:limit]]

    def _rank(self, queue: ClassQueue, tenant: str, ahead: int) -> int:
        weight = self.shares.weight(tenant)
        others = (
            min(waiting, round(ahead * self.shares.weight(other) / weight))
            for other, waiting in queue.tenants.items()
            if other != tenant
        )
        return ahead + sum(others)
