"""Nodes, what is reserved on them, what they hold, and whether they live.

Owns `Node`, `Lease` (room on one node for one sandbox, from the order to make it until the node says it is gone) and
`Fleet`. Memory is never promised twice: a reservation beyond what is free raises. Decides no placement and moves no
ticket; it reports what a node's inventory means, and the scheduler acts on that.

A node is alive, suspected (no heartbeat for `suspect_after_s`; nothing new goes there, nothing is given up) or dead
(`dead_after_s`; it and its leases are dropped). A suspected one that comes back with its sandboxes is alive again, and
they are adopted as they are. One that comes back from the dead starts over, and what it still runs is killed, since the
requests have been told it is lost. Limits: a hot node, by its pressure, is left alone until it has cooled well below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING

from etude.config import Config
from etude.environments.scheduling.headroom import Headroom, NodeBuckets, RandomSet, Shape, capacity_of
from etude.environments.scheduling.messages import Heartbeat, Hello, Offer, Pressure
from etude.errors import EtudeError

if TYPE_CHECKING:
    from etude.environments.scheduling.ledger import Ticket
    from etude.environments.scheduling.warm import Pool


class FleetConfig(Config):
    """When a node is full, hot, suspected or dead."""

    memory_quantum_mb: int = 64
    cpu_overcommit: float = 4.0
    """How often a CPU is promised: agents mostly wait, for a model or for a disk."""
    suspect_after_s: float = 3.0
    dead_after_s: float = 15.0
    max_memory: float = 0.95
    """Above this share in use, and above each of the limits below, a node gets nothing new."""
    max_disk: float = 0.95
    max_cpu_some: float = 80.0
    max_memory_some: float = 20.0
    max_memory_full: float = 5.0
    max_io_full: float = 40.0
    cool: float = 0.8
    """A hot node is used again when everything is below this part of its limit: no flapping at the limit itself."""
    first_start_s: float = 0.05
    """What a start takes until a node has shown its own time."""


class NodeHealth(StrEnum):
    ALIVE = "alive"
    SUSPECTED = "suspected"
    DEAD = "dead"


class LeasePhase(StrEnum):
    STARTING = "starting"
    LIVE = "live"
    DYING = "dying"


@dataclass(slots=True, eq=False)
class Lease:
    """Room reserved on a node for one sandbox."""

    id: str
    """The sandbox's id."""
    node: Node
    shape: Shape
    since: float
    phase: LeasePhase = LeasePhase.STARTING
    ticket: Ticket | None = None
    pool: Pool | None = None
    """The warm pool it waits in, or is made for."""
    fetches: bool = False
    """It needs something its node has not, so how long it takes says nothing of the node's pace."""
    acknowledged: int | None = None
    """The `seq` with which the node first said it was there."""


class Node:
    """One machine, as the scheduler sees it. Room is in the quanta of `Shape`."""

    __slots__ = (
        "claim",
        "cpus",
        "disk",
        "draining",
        "free_cpus",
        "free_disk",
        "free_memory",
        "holds",
        "hot",
        "in_buckets",
        "incarnation",
        "leases",
        "life",
        "memory",
        "name",
        "offers",
        "pressure",
        "seen_at",
        "seq",
        "start_s",
        "start_slots",
        "starting",
    )

    def __init__(self, name: str, first_start_s: float) -> None:
        self.name, self.incarnation, self.seq, self.seen_at = name, 0, 0, 0.0
        self.life, self.hot, self.draining = NodeHealth.ALIVE, False, False
        self.offers: tuple[Offer, ...] = ()
        self.start_slots, self.start_s = 0, first_start_s
        self.memory = self.cpus = self.disk = 0
        self.free_memory = self.free_cpus = self.free_disk = 0
        self.pressure = Pressure()
        self.starting = 0
        self.leases: dict[str, Lease] = {}
        self.holds: set[str] = set()
        self.claim: Ticket | None = None
        """A request that has waited too long; what ends here is kept for it."""
        self.in_buckets: tuple[NodeBuckets, int] | None = None

    @property
    def usable(self) -> bool:
        """Whether new sandboxes may go there, were there room."""
        return self.life is NodeHealth.ALIVE and not self.hot and not self.draining

    def fits(self, shape: Shape) -> bool:
        return shape.memory <= self.free_memory and shape.cpus <= self.free_cpus and shape.disk <= self.free_disk


@dataclass(slots=True)
class Inventory:
    """What a node's list of its sandboxes means."""

    started: list[Lease] = field(default_factory=list)
    """There, and the node's word that they were ready had been lost."""
    lost: list[Lease] = field(default_factory=list)
    """Promised or alive before, and not there."""
    gone: list[Lease] = field(default_factory=list)
    """Being killed, and not there any more."""
    unknown: list[str] = field(default_factory=list)
    """There, and nobody's."""


class Fleet:
    """Every node of a cluster."""

    def __init__(self, config: FleetConfig) -> None:
        self.config = config
        self.nodes: dict[str, Node] = {}
        self.leases: dict[str, Lease] = {}
        self.headroom = Headroom()
        self.members: RandomSet[Node] = RandomSet()
        self.totals = [0, 0, 0]
        """Memory, CPU and disk of all nodes not dead, in quanta."""
        self.reserved_memory = 0
        self.dying_memory = 0
        self._holders: dict[str, RandomSet[Node]] = {}
        self._hardware: set[tuple[tuple[Offer, ...], int, int, int]] = set()
        self._offers: dict[tuple[Offer, ...], tuple[Offer, ...]] = {}
        """One object for all equal offers, so that the index compares them by identity."""
        self._limits = (
            ("memory", config.max_memory),
            ("disk", config.max_disk),
            ("cpu_some", config.max_cpu_some),
            ("memory_some", config.max_memory_some),
            ("memory_full", config.max_memory_full),
            ("io_full", config.max_io_full),
        )

    # --- nodes -------------------------------------------------------------------------------------------------------

    def join(self, hello: Hello, now: float) -> Node:
        """A new node, without leases: the caller puts back those it knows."""
        node = Node(hello.node, self.config.first_start_s)
        self.nodes[node.name] = node
        self.members.add(node)
        self.renew(node, hello, now)
        return node

    def renew(self, node: Node, hello: Hello, now: float) -> None:
        """Take in all that a node says of itself, its sandboxes left out."""
        node.life, node.seen_at = NodeHealth.ALIVE, now
        node.incarnation, node.seq, node.start_slots = hello.incarnation, hello.seq, hello.start_slots
        node.offers = self._offers.setdefault(hello.offers, hello.offers)
        room = capacity_of(hello.resources, self.config.memory_quantum_mb, self.config.cpu_overcommit)
        memory, cpus, disk = (new - old for new, old in zip(room, (node.memory, node.cpus, node.disk), strict=True))
        node.memory, node.cpus, node.disk = room
        node.free_memory += memory
        node.free_cpus += cpus
        node.free_disk += disk
        self._add_to_totals(memory, cpus, disk)
        self._hardware.add((node.offers, *room))
        self.set_holds(node, hello.holds)
        self.refresh(node)

    def _add_to_totals(self, *more: int) -> None:
        self.totals = [total + part for total, part in zip(self.totals, more, strict=True)]

    def remove_node(self, node: Node) -> None:
        """Drop a dead node, whose leases the caller has released."""
        assert node.life is NodeHealth.DEAD and not node.leases
        self.headroom.drop(node)
        self.set_holds(node, ())
        self.members.discard(node)
        del self.nodes[node.name]
        self._add_to_totals(-node.memory, -node.cpus, -node.disk)

    def set_holds(self, node: Node, keys: Iterable[str]) -> None:
        """Replace the list of images and snapshots a node holds."""
        keys = set(keys)
        for key in node.holds - keys:
            holders = self._holders[key]
            holders.discard(node)
            if not holders:
                del self._holders[key]
                self.headroom.version += 1  # who waits for room beside it waits in vain, and is to be told
        for key in keys - node.holds:
            self.add_hold(node, key)
        node.holds = keys

    def add_hold(self, node: Node, key: str) -> None:
        node.holds.add(key)
        holders = self._holders.get(key)
        if holders is None:
            holders = self._holders[key] = RandomSet()
        holders.add(node)

    def holders(self, key: str, rng: Random) -> Iterator[Node]:
        """Nodes that hold an image or a snapshot, from a random one on."""
        holders = self._holders.get(key)
        return iter(()) if holders is None else holders.walk(rng)

    def held(self, key: str) -> bool:
        """Whether any node holds an image or a snapshot."""
        return key in self._holders

    def can_ever_fit(self, shape: Shape) -> bool:
        """Whether an empty node of any kind seen so far would have the room; true while none has been seen."""
        return not self._hardware or any(
            shape.backend_of(offers) is not None
            and (shape.memory <= memory and shape.cpus <= cpus and shape.disk <= disk)
            for offers, memory, cpus, disk in self._hardware
        )

    def record_pressure(self, node: Node, beat: Heartbeat, now: float) -> None:
        """Take in a heartbeat's pressure."""
        node.life = NodeHealth.ALIVE
        node.seen_at, node.seq, node.pressure, node.draining = now, beat.seq, beat.pressure, beat.draining
        slack = self.config.cool if node.hot else 1.0
        node.hot = any(getattr(beat.pressure, name) > slack * limit for name, limit in self._limits)
        if beat.holds is not None:
            self.set_holds(node, beat.holds)
        self.refresh(node)

    def suspect(self, node: Node) -> None:
        node.life = NodeHealth.SUSPECTED
        self.refresh(node)

    def refresh(self, node: Node) -> None:
        """Bring the index up to date with a node. To be called after any change to it."""
        idle = node.usable and node.claim is None and node.starting < node.start_slots
        if idle and node.free_memory > 0 and node.free_cpus > 0 and node.free_disk > 0:
            self.headroom.put(node)
        else:
            self.headroom.drop(node)

    # --- leases ------------------------------------------------------------------------------------------------------

    def reserve(self, lease: Lease, adopted: bool = False) -> None:
        """Take a lease's room from its node. Raises EtudeError if it is not there, unless a node reports it as fact."""
        node, shape = lease.node, lease.shape
        if lease.id in self.leases or not (adopted or node.fits(shape)):
            raise EtudeError(f"sandbox {lease.id} was to go to {node.name}, which has no room for it or has it already")
        self.reserved_memory += shape.memory
        node.free_memory -= shape.memory
        node.free_cpus -= shape.cpus
        node.free_disk -= shape.disk
        node.starting += lease.phase is LeasePhase.STARTING
        node.leases[lease.id] = self.leases[lease.id] = lease
        self.refresh(node)

    def release(self, lease: Lease) -> None:
        """Give a lease's room back: its node said the sandbox is gone, or is gone itself."""
        node, shape = lease.node, lease.shape
        del self.leases[lease.id], node.leases[lease.id]
        node.starting -= lease.phase is LeasePhase.STARTING
        self.dying_memory -= shape.memory if lease.phase is LeasePhase.DYING else 0
        self.reserved_memory -= shape.memory
        node.free_memory += shape.memory
        node.free_cpus += shape.cpus
        node.free_disk += shape.disk
        self.refresh(node)

    def set_phase(self, lease: Lease, phase: LeasePhase) -> None:
        """Move a lease on, and the sums that depend on its phase."""
        node, before = lease.node, lease.phase
        node.starting += (phase is LeasePhase.STARTING) - (before is LeasePhase.STARTING)
        self.dying_memory += lease.shape.memory * ((phase is LeasePhase.DYING) - (before is LeasePhase.DYING))
        lease.phase = phase
        self.refresh(node)

    def started(self, lease: Lease, seq: int, now: float) -> None:
        """The node's word that a sandbox is ready; learns how long its starts take."""
        if lease.acknowledged is None:
            lease.acknowledged = seq
        if lease.phase is LeasePhase.STARTING:
            if not lease.fetches:
                self.learn(lease.node, now - lease.since)
            self.set_phase(lease, LeasePhase.LIVE)

    def learn(self, node: Node, took_s: float) -> None:
        node.start_s += 0.2 * (took_s - node.start_s)

    def inventory(self, node: Node, present: Iterable[str], seq: int, restarted: bool) -> Inventory:
        """Compare what a node says is ready on it with what was reserved there.

        `restarted`: its agent is a new one, so no order given to the old one is still under way.
        """
        found, ids = Inventory(), set(present)
        for lease in list(node.leases.values()):
            known_before = restarted or (lease.acknowledged is not None and lease.acknowledged < seq)
            if lease.id in ids:
                # (one with both was warm, and is being resumed: that it is there says nothing of the resume)
                if lease.phase is LeasePhase.STARTING and lease.acknowledged is None:
                    found.started.append(lease)
            elif known_before:
                (found.gone if lease.phase is LeasePhase.DYING else found.lost).append(lease)
        found.unknown = [name for name in ids if name not in node.leases]
        found.unknown.sort()
        return found

    def check(self) -> None:
        """Recount every node. Raises EtudeError where the sums do not agree."""
        for node in self.nodes.values():
            shapes = [lease.shape for lease in node.leases.values()]
            memory = node.memory - sum(shape.memory for shape in shapes)
            cpus, disk = node.cpus - sum(s.cpus for s in shapes), node.disk - sum(s.disk for s in shapes)
            if (memory, cpus, disk) != (node.free_memory, node.free_cpus, node.free_disk):
                raise EtudeError(f"{node.name} has {memory} quanta free by its leases, and counts {node.free_memory}")
            starting = sum(lease.phase is LeasePhase.STARTING for lease in node.leases.values())
            if starting != node.starting:
                raise EtudeError(f"{node.name} starts {starting} sandboxes, and counts {node.starting}")
