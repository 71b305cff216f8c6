"""Which node a request goes to, and why that one.

Owns `Placer`. Reads the fleet, changes nothing.

The rule: draw a few nodes with room, the tightest fits first, and take the one from which the sandbox is expected to be
ready soonest, with a fixed price in seconds for leaving memory in crumbs. That a few draws are nearly as good as a look
at every node is the power of two choices (Mitzenmacher 2001), which Sparrow (Ousterhout et al. 2013) brought to cluster
scheduling by probing; Borg (Verma et al. 2015) likewise scores a random subset that is large enough, and packs by a
mixture of best fit and spread. Here the index makes the draws good ones (tight fits only), so four of them do, and a
placement costs the same whatever the number of nodes.

A snapshot is where it is. Its holders are tried first, also when all their start slots are taken: waiting for a slot is
counted in the same seconds as fetching the snapshot elsewhere, so a storm of forks stays at home until that would take
longer than moving, the rest waits in the queue, and every node it has spread to is a holder too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

from etude.config import Config
from etude.environments.scheduling.fleet import Fleet, Node, NodeHealth
from etude.environments.scheduling.headroom import Shape
from etude.environments.scheduling.messages import Fetch, Request, image_key, snapshot_key


class PlacementConfig(Config):
    """How hard to look for a node, and what is worth how many seconds."""

    choices: int = 4
    """Nodes with room that are compared."""
    probes: int = 32
    """Nodes looked at to find them."""
    image_fetch_s: float = 5.0
    snapshot_fetch_s: float = 1.0
    packing_s: float = 0.5
    """What an empty node must be sooner by to be taken before an almost full one."""
    failed_before_s: float = 10.0
    """The same for a node that failed this very request."""


@dataclass(slots=True)
class Choice:
    """A node with room, the backend to use there, and what it must get first."""

    node: Node
    backend: str
    fetch: tuple[Fetch, ...] = ()


@dataclass(slots=True)
class NoRoom:
    """Why nothing was found, and whether waiting in the queue, or else asking again, can help."""

    why: str
    wait: bool = True
    retryable: bool = True


class Placer:
    """Chooses nodes; holds the random numbers, so that one seed gives one history."""

    def __init__(self, config: PlacementConfig, fleet: Fleet, seed: int) -> None:
        self.config, self.fleet, self._rng = config, fleet, Random(seed)

    def choose(self, request: Request, shape: Shape, avoid: tuple[str, ...] = ()) -> Choice | NoRoom:
        """The best of a few nodes that have room for the request now."""
        snapshot = snapshot_key(request.snapshot) if request.snapshot is not None else None
        if snapshot is not None and not request.snapshot_stored and self._source(snapshot) is None:
            if self.fleet.held(snapshot):
                return NoRoom(f"every node that holds {snapshot} is silent", wait=False)
            why = f"no node holds {snapshot}, and it is not in the object store"
            return NoRoom(why, wait=False, retryable=False)
        best: Node | None = None
        best_s = float("inf")
        wanted = snapshot or image_key(request.image)
        for node in self._candidates(request, shape, snapshot, wanted):
            cost_s = self._ready_s(node) + self.config.packing_s * node.free_memory / node.memory
            if wanted not in node.holds and (snapshot is not None or request.image != "host"):
                cost_s += self.config.snapshot_fetch_s if snapshot is not None else self.config.image_fetch_s
            if node.name in avoid:
                cost_s += self.config.failed_before_s
            if cost_s < best_s:
                best, best_s = node, cost_s
        if best is None:
            return NoRoom(self._why_not(shape))
        return self.on(best, request, shape)

    def on(self, node: Node, request: Request, shape: Shape) -> Choice:
        """The choice of a node already decided on."""
        backend = shape.backend_of(node.offers)
        assert backend is not None  # only nodes that offer one are looked at
        fetch = []
        if request.image != "host" and (key := image_key(request.image)) not in node.holds:
            fetch.append(Fetch(key, self._source(key)))
        if request.snapshot is not None and (key := snapshot_key(request.snapshot)) not in node.holds:
            fetch.append(Fetch(key, self._source(key)))
        return Choice(node, backend, tuple(fetch))

    def roomiest(self, shape: Shape) -> Node | None:
        """Of a few nodes that would hold the shape if they were empty, the one with most free: where to wait."""
        best: Node | None = None
        for probe, node in enumerate(self.fleet.members.walk(self._rng)):
            if probe >= self.config.probes:
                break
            able = node.usable and node.claim is None and shape.backend_of(node.offers) is not None
            able = able and shape.memory <= node.memory and shape.cpus <= node.cpus and shape.disk <= node.disk
            able = able and (shape.home is None or shape.home in node.holds)
            if able and (best is None or node.free_memory > best.free_memory):
                best = node
        return best

    def _candidates(self, request: Request, shape: Shape, snapshot: str | None, wanted: str) -> Iterator[Node]:
        """Holders of the snapshot; the tightest fits; of those that hold the image as many, or any holders."""
        if snapshot is not None:
            yield from self._few(self._willing_holders(wanted, shape, may_wait=True), shape)
        if shape.home is not None:
            return
        if snapshot is not None or request.image == "host":
            yield from self._few(self.fleet.headroom.walk(shape, self._rng), shape)
            return
        holding = others = 0
        for node in islice(self.fleet.headroom.walk(shape, self._rng), self.config.probes):
            if not node.fits(shape):
                continue
            if wanted in node.holds:
                yield node
                holding += 1
                if holding == self.config.choices:
                    return
            elif others < self.config.choices:
                yield node
                others += 1
        if not holding:
            yield from self._few(self._willing_holders(wanted, shape, may_wait=False), shape)

    def _few(self, nodes: Iterator[Node], shape: Shape) -> Iterator[Node]:
        wanted = self.config.choices
        for node in islice(nodes, self.config.probes):
            if node.fits(shape):
                yield node
                wanted -= 1
                if not wanted:
                    return

    def _willing_holders(self, key: str, shape: Shape, may_wait: bool) -> Iterator[Node]:
        for node in islice(self.fleet.holders(key, self._rng), self.config.probes):
            if not node.usable or node.claim is not None or shape.backend_of(node.offers) is None:
                continue
            if node.starting < node.start_slots or (may_wait and self._ready_s(node) <= self.config.snapshot_fetch_s):
                yield node

    def _ready_s(self, node: Node) -> float:
        """Seconds until one more start there would be done, at the pace it has shown, slowed as its CPU is."""
        slots = max(1, node.start_slots)
        rounds = max(1.0, (node.starting + 1) / slots)
        return node.start_s * rounds * (1.0 + node.pressure.cpu_some / 100.0)

    def _source(self, key: str) -> str | None:
        for node in self.fleet.holders(key, self._rng):
            if node.life is NodeHealth.ALIVE:
                return node.name
        return None

    def _why_not(self, shape: Shape) -> str:
        if not self.fleet.nodes:
            return "for a node: none has reported yet"
        if not self.fleet.headroom.any():
            return "for a node that is not full, starting others already, under pressure, or silent"
        memory_mb = shape.memory * self.fleet.config.memory_quantum_mb
        kind = shape.backend or shape.isolation or "any backend"
        return f"for a node with {memory_mb} MiB of memory, {shape.cpus / 4:g} CPUs and {kind}"
