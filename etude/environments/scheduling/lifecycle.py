"""What becomes of requests and their sandboxes: started, lost, tried again, ended, killed, adopted.

Owns `Lifecycle`: the only place that moves tickets and changes leases together, so that the books of the ledger, the
fleet, the shares and the warm pools cannot part. Chooses no node and no turn: that is the scheduler's.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque

from pydantic import Field

from etude.config import Config
from etude.environments.scheduling.fleet import Fleet, FleetConfig, Inventory, Lease, LeasePhase, Node, NodeHealth
from etude.environments.scheduling.headroom import Shape, shape_of
from etude.environments.scheduling.ledger import Ledger, State, Ticket
from etude.environments.scheduling.messages import Command, KillSandbox, PlaceSandbox, Request, snapshot_key
from etude.environments.scheduling.queues import QueueConfig, Queues
from etude.environments.scheduling.warm import Pool, WarmConfig, WarmPools
from etude.records import InfraFailed


class LifecycleConfig(Config):
    """How long things may take, and how often they are tried."""

    fleet: FleetConfig = FleetConfig()
    queues: QueueConfig = QueueConfig()
    warm: WarmConfig = WarmConfig()
    start_deadline_s: float = 60.0
    """A start that takes longer is given up and tried elsewhere."""
    max_attempts: int = Field(default=3, ge=1)
    kill_again_s: float = 10.0
    """A kill that no node has confirmed for so long is ordered again."""
    snapshots_move: bool = True
    """Whether a node can get a snapshot from another; where not, all that starts from one stays with its holders."""
    keep_final: int = 100_000
    """Requests in a final state that can still be asked about."""


class Lifecycle:
    """Every request, reservation, queue and pool of a cluster, moved together."""

    def __init__(self, config: LifecycleConfig, epoch: str) -> None:
        self.config, self.epoch = config, epoch
        self.ledger = Ledger(config.keep_final)
        self.fleet = Fleet(config.fleet)
        self.queues = Queues(config.queues)
        self.warm = WarmPools(config.warm)
        self.totals: Counter[str] = Counter()
        self.commands: list[Command] = []
        self._expiries: list[tuple[float, int, Ticket]] = []
        self._starts: deque[tuple[float, Lease]] = deque()
        self._dying: deque[tuple[float, Lease]] = deque()
        self._shapes: dict[tuple, Shape] = {}

    def shape(self, request: Request) -> Shape:
        """What a request needs; one object for equal needs, since requests come in few kinds."""
        home = None
        if request.snapshot is not None and not self.config.snapshots_move:
            home = snapshot_key(request.snapshot)
        key = (request.resources, request.backend, request.isolation, home)
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) > 10_000:
                self._shapes.clear()
            shape = self._shapes[key] = shape_of(request, self.config.fleet.memory_quantum_mb, home)
        return shape

    # --- starts ------------------------------------------------------------------------------------------------------

    def place(self, ticket: Ticket, node: Node, now: float) -> Lease:
        """Take a ticket out of its queue and reserve its room on a node."""
        self.queues.take(ticket, now)
        ticket.attempts += 1
        lease = Lease(f"{ticket.request.id}.{self.epoch}.{ticket.attempts}", node, ticket.shape, now, ticket=ticket)
        self.fleet.reserve(lease)
        self._placing(ticket, lease, now)
        return lease

    def hand_out(self, ticket: Ticket, lease: Lease, now: float) -> None:
        """Give a ticket a warm sandbox, which its node must still resume."""
        self.queues.take(ticket, now)
        ticket.attempts += 1
        lease.pool, lease.ticket, lease.since, lease.fetches = None, ticket, now, False
        self.fleet.set_phase(lease, LeasePhase.STARTING)
        self._placing(ticket, lease, now)

    def boot_warm(self, pool: Pool, node: Node, now: float) -> Lease:
        """Reserve room on a node for one more of a pool."""
        self.totals["warm_boots"] += 1
        lease = Lease(f"warm.{self.epoch}.{self.totals['warm_boots']}", node, pool.shape, now, pool=pool)
        self.fleet.reserve(lease)
        pool.starting += 1
        self._starts.append((now + self.config.start_deadline_s, lease))
        return lease

    def _placing(self, ticket: Ticket, lease: Lease, now: float) -> None:
        self.queues.shares.add(ticket.request.tenant, lease.shape, 1)
        ticket.lease = lease
        self.ledger.move(ticket, State.PLACING, now)
        self._starts.append((now + self.config.start_deadline_s, lease))
        self.totals["placements"] += 1

    def started(self, lease: Lease, seq: int, now: float) -> None:
        """Its node says it is ready."""
        starting = lease.phase is LeasePhase.STARTING
        self.fleet.started(lease, seq, now)
        if starting and lease.pool is not None:
            self.warm.booted(lease, now)
        elif starting and lease.ticket is not None:
            self._ready(lease.ticket, now)

    def _ready(self, ticket: Ticket, now: float) -> None:
        self.ledger.move(ticket, State.READY, now)
        if ticket.request.ttl_s is not None:
            self.expire_at(ticket, now + ticket.request.ttl_s)

    def expire_at(self, ticket: Ticket, at: float) -> None:
        ticket.expires_at = at
        heapq.heappush(self._expiries, (at, ticket.seq, ticket))

    # --- ends --------------------------------------------------------------------------------------------------------

    def lost(self, lease: Lease, what: str, now: float, retryable: bool = True) -> None:
        """A sandbox is not there any more: free its room, and move whom it concerns."""
        phase, ticket = lease.phase, lease.ticket
        self.fleet.release(lease)
        if ticket is not None:
            self.queues.shares.add(ticket.request.tenant, lease.shape, -1)
            self.queues.lowered(ticket.request.tenant)
        if lease.pool is not None and phase is not LeasePhase.DYING:
            self.warm.drop(lease, phase is LeasePhase.STARTING)
        if ticket is None or ticket.lease is not lease:
            return
        if ticket.state is State.PLACING and retryable:
            self._retry(ticket, lease.node, what, now)
        elif ticket.state in (State.PLACING, State.READY):
            self.fail(ticket, what, now, retryable)

    def _retry(self, ticket: Ticket, node: Node, what: str, now: float) -> None:
        if ticket.attempts >= self.config.max_attempts:
            self.fail(ticket, f"{what}; that was the last of {ticket.attempts} tries", now)
            return
        self.totals["retries"] += 1
        ticket.lease = None
        ticket.avoid = (*ticket.avoid, node.name)
        self.ledger.move(ticket, State.QUEUED, now, what)
        self.queues.push(ticket, first=True)

    def fail(self, ticket: Ticket, what: str, now: float, retryable: bool = True) -> None:
        """Our machinery failed a request that waits, or whose sandbox is gone."""
        if ticket.state is State.QUEUED:
            self.queues.left(ticket)
        ticket.failure = InfraFailed(what, retryable)
        self.ledger.move(ticket, State.FAILED, now, what)

    def end(self, ticket: Ticket, now: float, why: str) -> None:
        """Its owner, or its time, ends it."""
        if ticket.state is State.QUEUED:
            self.queues.left(ticket)
        else:
            assert ticket.lease is not None
            self.kill(ticket.lease, why, now)
        self.ledger.move(ticket, State.ENDED, now, why)

    def kill(self, lease: Lease, why: str, now: float) -> None:
        """Say which to kill; its room stays reserved until its node says it is gone."""
        if lease.pool is not None:
            self.warm.drop(lease, lease.phase is LeasePhase.STARTING)
        self.fleet.set_phase(lease, LeasePhase.DYING)
        self.commands.append(KillSandbox(lease.id, lease.node.name, why))
        self._dying.append((now + self.config.kill_again_s, lease))

    def kill_unknown(self, sandbox: str, node: str) -> None:
        """A leak: a node runs what is nobody's."""
        self.totals["leaks_killed"] += 1
        self.commands.append(KillSandbox(sandbox, node, "nobody's"))

    def die(self, node: Node, now: float) -> None:
        """Give a silent node up, and all that was on it."""
        node.life = NodeHealth.DEAD
        self.totals["nodes_died"] += 1
        for lease in list(node.leases.values()):
            self.lost(lease, f"node {node.name} was silent for {now - node.seen_at:.0f} s", now)
        self.fleet.remove_node(node)

    # --- what nodes report -------------------------------------------------------------------------------------------

    def reconcile(self, node: Node, found: Inventory, seq: int, now: float, orders: dict[str, PlaceSandbox]) -> None:
        """Act on a node's inventory. `orders` are those of sandboxes that may be adopted if nobody's."""
        for lease in found.started:
            self.started(lease, seq, now)
        for lease in found.lost + found.gone:
            self.lost(lease, f"{node.name} no longer has sandbox {lease.id}", now)
        for sandbox in found.unknown:
            order = orders.get(sandbox)
            if order is None or not self._adopt(node, order, seq, now):
                self.kill_unknown(sandbox, node.name)

    def _adopt(self, node: Node, order: PlaceSandbox, seq: int, now: float) -> bool:
        """Take over a sandbox that an earlier run placed; its owner asks for it by its id, or its TTL ends it."""
        ticket = self.ledger.tickets.get(order.request.id)
        if order.warm or (ticket is not None and ticket.state not in (State.QUEUED, State.REFUSED)):
            return False
        if ticket is not None and ticket.state is State.QUEUED:
            self.queues.take(ticket, now)
        else:
            ticket = self.ledger.open(order.request, self.shape(order.request), now)
        ticket.lease = Lease(order.sandbox, node, ticket.shape, now, LeasePhase.LIVE, ticket, acknowledged=seq)
        self.fleet.reserve(ticket.lease, adopted=True)
        self.queues.shares.add(ticket.request.tenant, ticket.shape, 1)
        self.totals["adopted"] += 1
        self._ready(ticket, now)
        return True

    # --- time passes -------------------------------------------------------------------------------------------------

    def next_due(self) -> list[float]:
        """The earliest time of each kind of deadline here."""
        due = [line[0][0] for line in (self._expiries, self._starts, self._dying) if line]
        for priority, queue in self.queues.classes.items():
            oldest = queue.oldest()
            if oldest is not None:
                due.append(oldest.submitted_at + self.config.queues.patience_s[priority])
        return due

    def pass_time(self, now: float) -> None:
        """All deadlines that have passed: time to live, starts, kills, waits."""
        while self._expiries and self._expiries[0][0] <= now:
            at, _, ticket = heapq.heappop(self._expiries)
            if ticket.state is State.READY and ticket.expires_at == at:
                self.end(ticket, now, "its time ran out")
        while self._starts and (self._starts[0][1].phase is not LeasePhase.STARTING or self._starts[0][0] <= now):
            due, lease = self._starts.popleft()
            # a warm sandbox handed out starts a second time, and has a later entry of its own
            current = lease.phase is LeasePhase.STARTING and lease.since + self.config.start_deadline_s == due
            if current and self.fleet.leases.get(lease.id) is lease:
                self._give_up_start(lease, now)
        while self._dying and self._dying[0][0] <= now:
            _, lease = self._dying.popleft()
            if self.fleet.leases.get(lease.id) is lease:
                self.totals["kills_repeated"] += 1
                self.commands.append(KillSandbox(lease.id, lease.node.name, "asked before, and not confirmed"))
                self._dying.append((now + self.config.kill_again_s, lease))
        for priority, queue in self.queues.classes.items():
            patience_s = self.config.queues.patience_s[priority]
            while (waiting := queue.oldest()) is not None and waiting.submitted_at + patience_s <= now:
                self.totals["waits_overdue"] += 1
                self.fail(waiting, f"waited {now - waiting.submitted_at:.0f} s in the queue", now)

    def _give_up_start(self, lease: Lease, now: float) -> None:
        node, ticket = lease.node, lease.ticket
        self.totals["starts_overdue"] += 1
        self.fleet.learn(node, now - lease.since)
        self.kill(lease, "its start took too long", now)
        if ticket is not None and ticket.lease is lease and ticket.state is State.PLACING:
            self._retry(ticket, node, f"its start on {node.name} took more than {now - lease.since:.0f} s", now)

    def check(self) -> None:
        """Recount all the books. Raises EtudeError where they do not agree; costs every request kept."""
        self.ledger.check()
        self.fleet.check()
