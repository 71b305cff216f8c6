"""The engines of a run as its fleet and its sessions know them: how each is reached, and what is known of it.

Owns the `Link` protocol and the one over Ray, to an engine process of the run's own; and `FleetEngine`, what the fleet
remembers of one between two looks at it. An engine that is gone for good (`worker.WorkerGone`) is told apart from every
other failure, so that neither the fleet nor the router knows what is behind a link. Decides nothing. Talks to:
actors.engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from etude.harness.sampler import Completion, SampleRequest
from etude.records import Version
from etude.rollouts.ray_process import RayProcess
from etude.rollouts.worker import Process

Loaded = dict[str, Any]
"""What an engine says of a version it has taken up: version, root, bytes, deltas, pause_ms."""
GAUGES = frozenset({"running", "waiting", "version", "pages", "pages_held", "cache_tokens", "sessions_idle"})
"""What an engine tells that is no count since its start."""
_WEIGHT = 0.2
"""Of one measurement in an engine's speed."""
_LEAST_BUSY_S = 0.2
"""Work that a speed is measured over."""


class Link(Process, Protocol):
    """To one engine. Can be sent to another process; a call that is cancelled is dropped by the engine too."""

    async def sample(self, request: SampleRequest, deadline_s: float) -> Completion:
        """Raises WorkerGone, or what the engine raises; DeadlineExceeded after `deadline_s`."""
        ...

    async def load(self, version: Version, deadline_s: float) -> Loaded | None:
        """Have it take up a version from the weight store; None if it has that or a later one."""
        ...

    async def drop(self, session: str) -> None:
        """Have it forget a session: what it samples for it, and its cache. Of an engine that is gone, nothing."""
        ...

    async def stats(self, deadline_s: float) -> dict[str, float]:
        """Counters since its start, and gauges."""
        ...


class RayLink(RayProcess):
    """To an `EngineActor`."""

    async def sample(self, request: SampleRequest, deadline_s: float) -> Completion:
        what = f"{self.name} to sample for {request.session_id}"
        return await self.call("sample", request, seconds=deadline_s, what=what)

    async def load(self, version: Version, deadline_s: float) -> Loaded | None:
        return await self.call("load", version, seconds=deadline_s, what=f"{self.name} to load version {version}")

    async def put(self, bits: Any, version: Version, deadline_s: float) -> None:
        """Swap in weights that are on no chain."""
        await self.call("put", bits, version, seconds=deadline_s, what=f"{self.name} to load version {version}")

    async def drop(self, session: str) -> None:
        self.tell("cancel", [session])

    async def stats(self, deadline_s: float) -> dict[str, float]:
        return await self.call("stats", seconds=deadline_s, what=f"{self.name} to tell its figures")


@dataclass(frozen=True)
class Swap:
    """What came of telling an engine of a version. `loaded` is None where it had a later one, or is `lost`."""

    engine: str
    loaded: Loaded | None
    seconds: float
    lost: bool = False


@dataclass(eq=False)
class FleetEngine:
    """One engine, from its start to its end. Times are of the monotonic clock."""

    name: str
    link: Link
    lent: bool = False
    """Whether it is another's."""
    gone: bool = False
    loaded: Version | None = None
    """The newest version it has taken from the store; None while it has what it was started with."""
    root: str | None = None
    """Of that version, as the engine has verified it."""
    speed: float | None = None
    """Tokens computed in a second of work; None until measured."""
    stats: Mapping[str, float] = field(default_factory=dict)
    serving_since: float | None = None
    _progressed_at: float = 0.0
    _measured: Mapping[str, float] | None = None
    """What it told when its speed was last measured."""

    def look(self, stats: Mapping[str, float], now: float) -> None:
        """Take in what it tells of itself."""
        if counts(stats) != counts(self.stats) or not _holds(stats):
            self._progressed_at = now
        self.stats = stats
        if self._measured is None:
            self._measured = stats
        busy_s = stats.get("busy_s", 0.0) - self._measured.get("busy_s", 0.0)
        if busy_s >= _LEAST_BUSY_S:
            speed = (_tokens(stats) - _tokens(self._measured)) / busy_s
            self.speed = speed if self.speed is None else self.speed + _WEIGHT * (speed - self.speed)
            self._measured = stats

    def stood_still_s(self, now: float) -> float:
        """For how long it has held requests and counted nothing."""
        return now - self._progressed_at if _holds(self.stats) else 0.0

    def served_s(self, now: float) -> float:
        """For how long it has been there to serve."""
        return 0.0 if self.serving_since is None else now - self.serving_since


def counts(stats: Mapping[str, float]) -> dict[str, float]:
    """What of an engine's figures only grows."""
    return {name: value for name, value in stats.items() if name not in GAUGES}


def _holds(stats: Mapping[str, float]) -> bool:
    return bool(stats.get("running") or stats.get("waiting"))


def _tokens(stats: Mapping[str, float]) -> float:
    """Computed, not taken from a cache; a foreign engine tells prompt tokens instead."""
    prompts = stats.get("prompt_tokens", 0.0) - stats.get("prefix_hit_tokens", 0.0) if "prompt_tokens" in stats else 0.0
    return stats.get("decode_tokens", 0.0) + stats.get("prefill_tokens", prompts)
