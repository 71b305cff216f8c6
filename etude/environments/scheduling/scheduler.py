"""One cluster's scheduler: events in, orders out.

Owns `Scheduler`, the only class the outside drives. It talks to nobody: callers tell it what happened (`submit`, `end`,
`extend`, `hello`, `heartbeat`, `placed`, `ended`, …), each with the time, and then `decide(now)` returns what is to be
sent and who is to be told. It reads no clock, so a caller that has been away must first tell it what arrived meanwhile,
heartbeats above all, and decide then; or it will take its own absence for the nodes'.

What it promises (tests/environments/scheduling hold it to that):
  - A request is in exactly one state (`ledger`); each ends in a result or a named failure, whatever dies.
  - Memory is never promised twice: room is reserved before the order goes out, and is free again only when the node
    says that the sandbox is gone, or is itself given up.
  - The same events, seed and times give the same decisions.
  - After a restart (`recover_s`) nothing is placed until the nodes have had time to say what they run, which is
    adopted; callers ask again with the ids they have, and find their sandboxes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass

from etude.environments.scheduling.fleet import Node, NodeHealth
from etude.environments.scheduling.headroom import Shape
from etude.environments.scheduling.ledger import FINAL, Refusal, State, Ticket
from etude.environments.scheduling.lifecycle import Lifecycle, LifecycleConfig
from etude.environments.scheduling.messages import (
    PRIORITIES,
    AskHello,
    Command,
    Ended,
    Heartbeat,
    Hello,
    Notice,
    Placed,
    PlaceSandbox,
    Priority,
    Request,
)
from etude.environments.scheduling.placement import Choice, PlacementConfig, Placer
from etude.environments.scheduling.warm import Rate
from etude.errors import SandboxError


class SchedulerConfig(LifecycleConfig):
    placement: PlacementConfig = PlacementConfig()
    claim_after_s: float = 30.0
    """Requests of a shape that has found no room for so long get a node kept for them, one at a time in each class."""
    recover_s: float = 0.0
    """How long after its own start it waits for nodes to report; more than a few heartbeats when it is a restart."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Decisions:
    """What to send to nodes, in order, and what to tell whoever asked, in order."""

    commands: list[Command]
    notices: list[Notice]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One line of the queue people see."""

    request: str
    tenant: str
    priority: Priority
    position: int
    waiting_s: float
    why: str


class Scheduler:
    """Places the sandboxes of one cluster. `epoch` tells its orders from those of an earlier run of it."""

    def __init__(self, config: SchedulerConfig, epoch: str = "0", now: float = 0.0) -> None:
        self.config = config
        self.life = Lifecycle(config, epoch)
        self.ledger, self.fleet = self.life.ledger, self.life.fleet
        self.queues, self.warm = self.life.queues, self.life.warm
        self.placer = Placer(config.placement, self.fleet, config.seed)
        self.pace = Rate(10.0)
        """Placements a second, of late."""
        self._recovered_at = now + config.recover_s
        self._without_room: dict[Shape, str] = {}
        """Shapes that found no room since any was last gained, and what they wait for."""
        self._room_version = -1
        self._claims: dict[Priority, Node] = {}
        self._sized: list[int] = []
        self._checks: list[tuple[float, str]] = []
        self._warm_at = now

    @property
    def totals(self) -> Counter[str]:
        """What has happened, for metrics: placements, handed_out, retries, adopted, leaks_killed, kills_repeated, …"""
        return self.life.totals

    # --- from whoever wants a sandbox --------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> Ticket:
        """Take a request in, or refuse it (`ticket.refusal.error()` is what to raise). An id known already keeps its
        ticket, whatever became of it; only one that was refused is asked again."""
        known = self.ledger.tickets.get(request.id)
        if known is not None and known.state is not State.REFUSED:
            return known
        shape = self.life.shape(request)
        refusal = self.refusal(request, now)
        ticket = self.ledger.open(request, shape, now)
        if refusal is not None:
            ticket.refusal = refusal
            self.ledger.move(ticket, State.REFUSED, now, refusal.what)
            return ticket
        self.ledger.move(ticket, State.QUEUED, now)
        self.queues.push(ticket)
        self.warm.arrival(request, shape, now)
        return ticket

    def refusal(self, request: Request, now: float) -> Refusal | None:
        """What `submit` would refuse it with now, if anything."""
        if not self.fleet.can_ever_fit(self.life.shape(request)):
            needs = request.resources
            kind = request.backend or request.isolation or "any backend"
            what = (
                f"no node here has {needs.memory_mb} MiB, {needs.cpus:g} CPUs, {needs.disk_mb} MiB of disk and {kind}"
            )
            return Refusal(f"{what}, even when empty; ask for less, or add such a node", None)
        return self.queues.refusal(request.priority, request.tenant, self.pace.at(now))

    def end(self, request_id: str, now: float, why: str = "destroyed") -> None:
        """Its owner is done with it, in whatever state it is; safe to repeat. Raises SandboxError for an unknown id."""
        ticket = self._known(request_id)
        if ticket.state not in FINAL:
            self.life.end(ticket, now, why)

    def extend(self, request_id: str, ttl_s: float, now: float) -> None:
        """Live so long from now. Raises SandboxError unless it is ready."""
        ticket = self._known(request_id)
        if ticket.state is not State.READY:
            raise SandboxError(f"{request_id} is {ticket.state}, so its time cannot be extended")
        self.life.expire_at(ticket, now + ttl_s)

    # --- from nodes --------------------------------------------------------------------------------------------------

    def hello(self, hello: Hello, now: float) -> None:
        """A node has come, come back, or answers `AskHello`."""
        node = self.fleet.nodes.get(hello.node)
        restarted = False
        if node is None:
            node = self.fleet.join(hello, now)
            heapq.heappush(self._checks, (now + self.config.fleet.suspect_after_s, node.name))
        elif (hello.incarnation, hello.seq) <= (node.incarnation, node.seq):
            return
        else:
            restarted = hello.incarnation > node.incarnation
            self._count_back(node)
            self.fleet.renew(node, hello, now)
        orders = {order.sandbox: order for order in hello.sandboxes}
        found = self.fleet.inventory(node, orders, hello.seq, restarted)
        self.life.reconcile(node, found, hello.seq, now, orders if now < self._recovered_at else {})

    def heartbeat(self, beat: Heartbeat, now: float) -> None:
        """A node lives; with a list of its sandboxes, the books are compared with it."""
        node = self.fleet.nodes.get(beat.node)
        if node is None or beat.incarnation > node.incarnation:
            if node is not None:
                self.fleet.suspect(node)  # what is placed there now, its Hello would not know of
            self.life.commands.append(AskHello(beat.node))
            return
        if (beat.incarnation, beat.seq) <= (node.incarnation, node.seq):
            return
        self._count_back(node)
        self.fleet.record_pressure(node, beat, now)
        if beat.sandboxes is not None:
            found = self.fleet.inventory(node, beat.sandboxes, beat.seq, restarted=False)
            self.life.reconcile(node, found, beat.seq, now, {})

    def placed(self, placed: Placed, now: float) -> None:
        """A start has ended. One that nobody waits for any more is killed."""
        lease = self.fleet.leases.get(placed.sandbox)
        if lease is None or lease.node.name != placed.node:
            if placed.failed is None:
                self.life.kill_unknown(placed.sandbox, placed.node)
        elif lease.node.incarnation != placed.incarnation:
            return  # its successor's Hello has said, or will say, what became of it
        elif placed.failed is None:
            self.life.started(lease, placed.seq, now)
        else:
            self.totals["starts_failed"] += 1
            self.life.lost(lease, placed.failed, now, placed.retryable)

    def ended(self, ended: Ended, now: float) -> None:
        """A sandbox is gone, because we said so or by itself."""
        lease = self.fleet.leases.get(ended.sandbox)
        if lease is None or lease.node.name != ended.node:
            return
        ticket = lease.ticket
        if ended.why == "killed" and ticket is not None and ticket.lease is lease and ticket.state is State.READY:
            self.ledger.move(ticket, State.ENDED, now, "ended by its node")
        self.life.lost(lease, f"sandbox {lease.id} {ended.why} on {ended.node}", now)

    # --- what to do --------------------------------------------------------------------------------------------------

    def decide(self, now: float, limit: int | None = None) -> Decisions:
        """Everything due by now, and at most `limit` placements."""
        self._check_nodes(now)
        self.life.pass_time(now)
        if now >= self._recovered_at:
            self._place_waiting(now, limit)
            self._keep_warm(now)
        commands, self.life.commands = self.life.commands, []
        notices, self.ledger.notices = self.ledger.notices, []
        return Decisions(commands, notices)

    def next_wake(self, now: float) -> float | None:
        """When something falls due though nothing happens: the latest time for the next `decide`."""
        due = self.life.next_due()
        if self._checks:
            due.append(self._checks[0][0])
        if self.warm.pools:
            due.append(self._warm_at)
        if now < self._recovered_at:
            due.append(self._recovered_at)
        return min(due, default=None)

    def _place_waiting(self, now: float, limit: int | None) -> None:
        if self._sized != self.fleet.totals:
            self._sized = list(self.fleet.totals)
            self.queues.resize(self._sized)
        self._mind_claims(now)
        while limit is None or limit > 0:
            if self._room_version != self.fleet.headroom.version:
                self._room_version = self.fleet.headroom.version
                self._without_room.clear()
            ticket = self.queues.next(now, self._without_room)
            if ticket is None:
                return
            if self._place_one(ticket, now) and limit is not None:
                limit -= 1

    def _place_one(self, ticket: Ticket, now: float) -> bool:
        warm = self.warm.take(ticket.request, ticket.shape)
        if warm is not None:
            self.life.hand_out(ticket, warm, now)
            backend = ticket.shape.backend_of(warm.node.offers)
            assert backend is not None
            self.life.commands.append(PlaceSandbox(warm.id, warm.node.name, "resume", ticket.request, backend))
            self.totals["handed_out"] += 1
            self.pace.add(now)
            return True
        found = self.placer.choose(ticket.request, ticket.shape, ticket.avoid)
        if isinstance(found, Choice):
            self._order(ticket, found, now)
            return True
        if found.wait:
            self._without_room[ticket.shape] = found.why
            self._make_room(ticket.shape, now)
        else:
            self.life.fail(ticket, found.why, now, found.retryable)
        return False

    def _order(self, ticket: Ticket, choice: Choice, now: float) -> None:
        """Reserve the room and send the order."""
        request = ticket.request
        lease = self.life.place(ticket, choice.node, now)
        lease.fetches = bool(choice.fetch)
        action = "create" if request.snapshot is None else "fork"
        self.life.commands.append(
            PlaceSandbox(lease.id, choice.node.name, action, request, choice.backend, choice.fetch)
        )
        self.pace.add(now)

    def _mind_claims(self, now: float) -> None:
        """Keep a node for the first of a line that has stood still for long, and place it there once it fits.

        Without this a large request would wait for ever, overtaken by small ones that take each gap as it opens.
        """
        for priority in PRIORITIES:
            node = self._claims.get(priority)
            if node is not None:
                ticket = node.claim
                assert ticket is not None
                waits = ticket.state is State.QUEUED
                if waits and node.usable and not (node.fits(ticket.shape) and node.starting < node.start_slots):
                    continue
                del self._claims[priority]
                node.claim = None
                self.fleet.refresh(node)
                if waits and node.usable:
                    self._order(ticket, self.placer.on(node, ticket.request, ticket.shape), now)
                    continue
            before = now - self.config.claim_after_s
            stalled = self.queues.stalled(priority, before, self._without_room) if self._without_room else None
            if stalled is not None and (best := self.placer.roomiest(stalled.shape)) is not None:
                best.claim = stalled
                self._claims[priority] = best
                self.fleet.refresh(best)
                self.totals["claims"] += 1

    # --- warm pools --------------------------------------------------------------------------------------------------

    def _keep_warm(self, now: float) -> None:
        if now < self._warm_at or not self.warm.pools:
            return
        self._warm_at = now + self.config.warm.refill_every_s
        for lease in self.warm.surplus(now):
            self.life.kill(lease, "warm for too long", now)
        if self._without_room:
            return  # those who wait come first
        for pool, count in self.warm.missing(now):
            for _ in range(count):
                found = self.placer.choose(pool.pattern, pool.shape)
                if not isinstance(found, Choice):
                    break
                lease = self.life.boot_warm(pool, found.node, now)
                lease.fetches = bool(found.fetch)
                order = PlaceSandbox(
                    lease.id, found.node.name, "create", pool.pattern, found.backend, found.fetch, warm=True
                )
                self.life.commands.append(order)

    def _make_room(self, shape: Shape, now: float) -> None:
        """A request found no room: it goes before what is only kept warm."""
        lease = self.warm.idle()
        if lease is not None and self.fleet.dying_memory < shape.memory:
            self.life.kill(lease, "its room is needed", now)

    # --- time passes -------------------------------------------------------------------------------------------------

    def _check_nodes(self, now: float) -> None:
        fleet = self.config.fleet
        while self._checks and self._checks[0][0] <= now:
            _, name = heapq.heappop(self._checks)
            node = self.fleet.nodes.get(name)
            if node is None:
                continue
            silent_s = now - node.seen_at
            if silent_s >= fleet.dead_after_s:
                self.life.die(node, now)
                continue
            if silent_s >= fleet.suspect_after_s and node.life is NodeHealth.ALIVE:
                self.fleet.suspect(node)
                self.totals["suspected"] += 1
            # one that is suspected is looked at as often: it may come back, and fall silent again
            dead_at, next_at = node.seen_at + fleet.dead_after_s, max(now, node.seen_at) + fleet.suspect_after_s
            suspected = node.life is NodeHealth.SUSPECTED
            heapq.heappush(
                self._checks, (min(dead_at, next_at) if suspected else node.seen_at + fleet.suspect_after_s, name)
            )

    def _count_back(self, node: Node) -> None:
        if node.life is NodeHealth.SUSPECTED:
            self.totals["adopted"] += len(node.leases)

    def _known(self, request_id: str) -> Ticket:
        ticket = self.ledger.tickets.get(request_id)
        if ticket is None:
            raise SandboxError(f"no request {request_id} is known here; it ended long ago or was never made")
        return ticket

    # --- for people and metrics --------------------------------------------------------------------------------------

    def waiting(self, priority: Priority, now: float, limit: int = 100) -> list[Waiting]:
        """The head of a class's queue."""
        return [self._line(ticket, rank, now) for rank, ticket in self.queues.view(priority, limit)]

    def waiting_for(self, request_id: str, now: float) -> Waiting | None:
        """One request's place in line; None once it has left it."""
        ticket = self._known(request_id)
        return self._line(ticket, self.queues.position(ticket), now) if ticket.state is State.QUEUED else None

    def _line(self, ticket: Ticket, position: int, now: float) -> Waiting:
        request = ticket.request
        waited_s = now - ticket.submitted_at
        return Waiting(request.id, request.tenant, request.priority, position, waited_s, self._why(ticket, now))

    def _why(self, ticket: Ticket, now: float) -> str:
        if now < self._recovered_at:
            return "for the nodes to report, after a restart of the scheduler"
        return self._without_room.get(ticket.shape, "for its turn")

    def knows(self, request_id: str) -> bool:
        """Whether a request is in the books, in any state but refused."""
        ticket = self.ledger.tickets.get(request_id)
        return ticket is not None and ticket.state is not State.REFUSED

    def load(self, priority: Priority) -> tuple[int, float]:
        """How full the cluster is: those who wait for every thousand quanta of memory, then the part of it in use."""
        total = max(1, self.fleet.totals[0])
        return 1000 * self.queues.classes[priority].length // total, self.fleet.reserved_memory / total

    def gauges(self) -> dict[str, float]:
        """How things stand, for metrics; `totals` says what has happened. Costs a look at every node."""
        found = {f"requests_{state}": float(count) for state, count in self.ledger.counts.items()}
        found |= {f"waiting_{priority}": float(queue.length) for priority, queue in self.queues.classes.items()}
        lives = Counter(node.life for node in self.fleet.nodes.values())
        found |= {"nodes_alive": lives[NodeHealth.ALIVE], "nodes_suspected": lives[NodeHealth.SUSPECTED]}
        found["nodes_hot"] = sum(node.hot for node in self.fleet.nodes.values())
        found["memory_reserved"] = self.fleet.reserved_memory / max(1, self.fleet.totals[0])
        found["warm_idle"] = sum(len(pool.idle) for pool in self.warm.pools.values())
        return found

    def check(self) -> None:
        """Recount all the books. Raises EtudeError where they do not agree; costs every request kept."""
        self.life.check()
