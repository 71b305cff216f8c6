"""How many VMs to boot before anyone asks for them.

Owns `Rate` and `WarmPools`. Counts arrivals and says how many warm sandboxes each kind should have; the scheduler
makes, hands out and kills them. A pool is opened by the first request of its kind: an isolation or backend that is slow
to start, an image, a shape. Sandboxes that start in milliseconds have none.

Size: by Little's law L = rate x boot time are being booted at any moment if every request is met by one, so L must be
on the way or waiting; arrivals scatter by about the square root of L, and `headroom` roots are added, which is the
square-root rule of staffing. One that would on average expire unused is not booted at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from etude.config import Config
from etude.environments.scheduling.fleet import Lease, NodeHealth
from etude.environments.scheduling.headroom import Shape
from etude.environments.scheduling.messages import Request


class WarmConfig(Config):
    """Which sandboxes are kept warm, and how many."""

    backends: tuple[str, ...] = ("qemu", "firecracker")
    """Asked for by name, or by `isolation = "vm"`."""
    headroom: float = 2.0
    boot_s: float = 2.0
    """Until boots of the kind have shown their own time."""
    max_idle_s: float = 120.0
    max_size: int = 64
    max_pools: int = 32
    rate_window_s: float = 60.0
    refill_every_s: float = 1.0


class Rate:
    """Events a second, the older counting less: each is worth 1/window and fades with e^(-age/window)."""

    __slots__ = ("_at", "_value", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s, self._value, self._at = window_s, 0.0, 0.0

    def add(self, now: float, count: int = 1) -> None:
        self._value = self.at(now) + count / self._window_s
        self._at = now

    def at(self, now: float) -> float:
        return self._value * math.exp(-max(0.0, now - self._at) / self._window_s)


@dataclass(slots=True, eq=False)
class Pool:
    """The warm sandboxes of one kind."""

    pattern: Request
    shape: Shape
    rate: Rate
    boot_s: float
    idle: list[Lease] = field(default_factory=list)
    """Oldest first."""
    starting: int = 0
    handed_out: int = 0
    """Its use; a pool nobody ever took from is paid for in vain."""
    missed: int = 0

    def desired(self, now: float, config: WarmConfig) -> int:
        """How many should be idle or on the way."""
        rate = self.rate.at(now)
        if rate * config.max_idle_s < 0.5:
            return 0
        load = rate * self.boot_s
        return min(config.max_size, math.ceil(load + config.headroom * math.sqrt(load)))


class WarmPools:
    """Every pool of a cluster."""

    def __init__(self, config: WarmConfig) -> None:
        self.config = config
        self.pools: dict[tuple[Shape, str], Pool] = {}

    def arrival(self, request: Request, shape: Shape, now: float) -> None:
        """Count a request; opens its pool if it has none and another kind can make way."""
        if request.snapshot is not None or not self._slow(request):
            return
        key = (shape, request.image)
        pool = self.pools.get(key)
        if pool is None:
            if len(self.pools) >= self.config.max_pools and not self._drop_unused(now):
                return
            pattern = Request(
                "",
                "",
                resources=request.resources,
                backend=request.backend,
                isolation=request.isolation,
                image=request.image,
            )
            pool = Pool(pattern, shape, Rate(self.config.rate_window_s), self.config.boot_s)
            self.pools[key] = pool
        pool.rate.add(now)

    def pool_of(self, request: Request, shape: Shape) -> Pool | None:
        return self.pools.get((shape, request.image)) if request.snapshot is None else None

    def take(self, request: Request, shape: Shape) -> Lease | None:
        """A warm sandbox for the request: the newest, so that those nobody needs grow old and expire."""
        pool = self.pool_of(request, shape)
        if pool is None:
            return None
        for lease in reversed(pool.idle):
            if lease.node.life is NodeHealth.ALIVE:
                pool.idle.remove(lease)
                pool.handed_out += 1
                return lease
        pool.missed += 1
        return None

    def booted(self, lease: Lease, now: float) -> None:
        """A warm sandbox is ready."""
        pool = lease.pool
        assert pool is not None
        pool.starting -= 1
        pool.boot_s += 0.2 * (now - lease.since - pool.boot_s)
        lease.since = now
        pool.idle.append(lease)

    def drop(self, lease: Lease, was_starting: bool) -> None:
        """A warm sandbox is lost or being killed."""
        pool = lease.pool
        assert pool is not None
        if was_starting:
            pool.starting -= 1
        else:
            pool.idle.remove(lease)

    def missing(self, now: float) -> list[tuple[Pool, int]]:
        """How many to boot, by pool."""
        wanted = [
            (pool, pool.desired(now, self.config) - len(pool.idle) - pool.starting) for pool in self.pools.values()
        ]
        return [(pool, count) for pool, count in wanted if count > 0]

    def surplus(self, now: float) -> list[Lease]:
        """Those too old, and the oldest of those too many."""
        found = []
        for pool in self.pools.values():
            spare = len(pool.idle) + pool.starting - pool.desired(now, self.config)
            for at, lease in enumerate(pool.idle):
                if at < spare or now - lease.since > self.config.max_idle_s:
                    found.append(lease)
        return found

    def idle(self) -> Lease | None:
        """Any one, the oldest of its pool: to make room for a request that found none."""
        return next((pool.idle[0] for pool in self.pools.values() if pool.idle), None)

    def _slow(self, request: Request) -> bool:
        return request.isolation == "vm" or request.backend in self.config.backends

    def _drop_unused(self, now: float) -> bool:
        for key, pool in self.pools.items():
            if not pool.idle and not pool.starting and pool.desired(now, self.config) == 0:
                del self.pools[key]
                return True
        return False
