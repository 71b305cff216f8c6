"""The index of nodes by the room they have: finding one costs the same with a hundred nodes as with a hundred thousand.

Owns `Shape` (what a request needs, in quanta), `NodeBuckets` and `Headroom`. Knows nothing of pressure, tenants or
leases: the fleet puts in the nodes that may take a sandbox, and takes out those that may not.

Memory is counted in quanta (64 MiB by default), so the nodes with exactly k quanta free make one bucket, and one
integer of a `NodeBuckets` has bit k set where bucket k is not empty: the tightest fit for n quanta is the lowest bit
from n on. It is TLSF's idea of segregated free lists (Masmano et al., 2004) with nodes for blocks, made exact by
counting in quanta. Cost depends on a node's memory (4,096 bits for 256 GiB), never on how many nodes there are.

CPU and disk are classed by powers of two: a node of a higher class than the need has room for certain, and one of the
same class is looked at. So is every kind of node (by backends offered): classes are few, and each walk visits them all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from etude.environments.base import Resources
from etude.environments.scheduling.messages import Isolation, Offer, Request

if TYPE_CHECKING:
    from etude.environments.scheduling.fleet import Node

T = TypeVar("T")
CPU_QUANTUM = 0.25


class Shape(NamedTuple):
    """What a request needs of a node. Requests of one shape are alike to the index: room for one is room for all."""

    memory: int
    """In memory quanta, rounded up."""
    cpus: int
    """In quarters of a CPU, rounded up."""
    disk: int
    """In memory quanta too: one unit for both."""
    backend: str | None
    isolation: Isolation | None
    home: str | None = None
    """The snapshot it starts from, where snapshots stay on the nodes that hold them."""

    def backend_of(self, offers: tuple[Offer, ...]) -> str | None:
        """The first backend offered that will do."""
        for offer in offers:
            if self.backend in (None, offer.backend) and self.isolation in (None, offer.isolation):
                return offer.backend
        return None


def shape_of(request: Request, quantum_mb: int, home: str | None = None) -> Shape:
    """The request's needs in quanta; nothing is for free."""
    needs = request.resources
    return Shape(
        max(1, math.ceil(needs.memory_mb / quantum_mb)),
        max(1, math.ceil(needs.cpus / CPU_QUANTUM)),
        max(1, math.ceil(needs.disk_mb / quantum_mb)),
        request.backend,
        request.isolation,
        home,
    )


def capacity_of(resources: Resources, quantum_mb: int, cpu_overcommit: float) -> tuple[int, int, int]:
    """What a node can give, in the quanta of `Shape`, rounded down. Only CPU is promised more than once."""
    cpus = int(resources.cpus * cpu_overcommit / CPU_QUANTUM)
    return resources.memory_mb // quantum_mb, cpus, resources.disk_mb // quantum_mb


class RandomSet(Generic[T]):
    """A set that can be walked from a random place on. All operations take constant time."""

    __slots__ = ("_at", "_items")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._at: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        if item not in self._at:
            self._at[item] = len(self._items)
            self._items.append(item)

    def discard(self, item: T) -> None:
        at = self._at.pop(item, None)
        if at is None:
            return
        last = self._items.pop()
        if last is not item:
            self._items[at] = last
            self._at[last] = at

    def walk(self, rng: Random) -> Iterator[T]:
        """Every item once, from a random one on. The set must not change meanwhile."""
        items, size = self._items, len(self._items)
        start = int(rng.random() * size)
        for at in range(start, start + size):
            yield items[at] if at < size else items[at - size]


class NodeBuckets:
    """Nodes that offer the same backends and have about the same CPU and disk free, in buckets of free memory."""

    __slots__ = ("bits", "buckets", "cpu_class", "disk_class", "offers")

    def __init__(self, offers: tuple[Offer, ...], cpu_class: int, disk_class: int) -> None:
        self.offers, self.cpu_class, self.disk_class = offers, cpu_class, disk_class
        self.bits = 0
        self.buckets: dict[int, RandomSet[Node]] = {}

    def add(self, node: Node, bucket: int) -> None:
        nodes = self.buckets.get(bucket)
        if nodes is None:
            nodes = self.buckets[bucket] = RandomSet()
            self.bits |= 1 << bucket
        nodes.add(node)

    def discard(self, node: Node, bucket: int) -> None:
        nodes = self.buckets[bucket]
        nodes.discard(node)
        if not nodes:
            del self.buckets[bucket]
            self.bits &= ~(1 << bucket)

    def tightest(self, memory: int) -> int | None:
        """The least bucket that holds at least so much."""
        bits = self.bits >> memory
        return memory + (bits & -bits).bit_length() - 1 if bits else None


class Headroom:
    """The nodes that may take a sandbox now, by the room they have."""

    def __init__(self) -> None:
        self._classes: dict[tuple[tuple[Offer, ...], int, int], NodeBuckets] = {}
        self._accepts: dict[tuple[str | None, str | None, tuple[Offer, ...]], bool] = {}
        self.version = 0
        """Grows whenever a node comes in or gains room: what did not fit before may fit now."""

    def put(self, node: Node) -> None:
        """Put a node where its free room says, from wherever it was."""
        cpu_class, disk_class = node.free_cpus.bit_length(), node.free_disk.bit_length()
        bucket, at = node.free_memory, node.in_buckets
        if at is None:
            self.version += 1
        else:
            nodes, old = at
            self.version += bucket > old or cpu_class > nodes.cpu_class or disk_class > nodes.disk_class
            if nodes.cpu_class == cpu_class and nodes.disk_class == disk_class and nodes.offers is node.offers:
                if old != bucket:
                    nodes.discard(node, old)
                    nodes.add(node, bucket)
                    node.in_buckets = (nodes, bucket)
                return
            self.drop(node)
        key = (node.offers, cpu_class, disk_class)
        nodes = self._classes.get(key)
        if nodes is None:
            nodes = self._classes[key] = NodeBuckets(*key)
        nodes.add(node, bucket)
        node.in_buckets = (nodes, bucket)

    def drop(self, node: Node) -> None:
        """Take a node out, if it is in."""
        if node.in_buckets is None:
            return
        nodes, bucket = node.in_buckets
        node.in_buckets = None
        nodes.discard(node, bucket)
        if not nodes.buckets:
            del self._classes[nodes.offers, nodes.cpu_class, nodes.disk_class]

    def walk(self, shape: Shape, rng: Random) -> Iterator[Node]:
        """Nodes with the memory, the tightest fits first, at random among equals.

        All that have the CPU and disk are met; some that have too little are met too, so the caller still looks.
        """
        cpu_class, disk_class = shape.cpus.bit_length(), shape.disk.bit_length()
        found: list[tuple[int, int, NodeBuckets]] = []
        for order, nodes in enumerate(self._classes.values()):
            if nodes.cpu_class >= cpu_class and nodes.disk_class >= disk_class and self._accept(shape, nodes.offers):
                bucket = nodes.tightest(shape.memory)
                if bucket is not None:
                    found.append((bucket, order, nodes))
        heapq.heapify(found)
        while found:
            bucket, order, nodes = found[0]
            yield from nodes.buckets[bucket].walk(rng)
            following = nodes.tightest(bucket + 1)
            if following is None:
                heapq.heappop(found)
            else:
                heapq.heapreplace(found, (following, order, nodes))

    def _accept(self, shape: Shape, offers: tuple[Offer, ...]) -> bool:
        key = (shape.backend, shape.isolation, offers)
        known = self._accepts.get(key)
        if known is None:
            known = self._accepts[key] = shape.backend_of(offers) is not None
        return known

    def any(self) -> bool:
        """Whether there is a node in it at all."""
        return bool(self._classes)
