"""An engine that follows a weight store.

Owns what is held for the next delta: the bits of the version that is served, in slices where the chain is cut into
them. A version is fetched and verified in a thread of its own, then swapped in between two steps, one at a time and
never backwards. Talks to: the engine, and `weights.subscriber`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from etude.engine.adapted import adapted_names, merged
from etude.engine.lag import Lag
from etude.errors import DeadlineExceeded, EtudeError, WeightError
from etude.records import Version
from etude.weights.manifest import Bits
from etude.weights.slices import join
from etude.weights.subscriber import FetchResult, Subscriber, WrongBase


class WeightReceiver(Protocol):
    """What of an engine is needed here."""

    def swap(self, bits: Mapping[str, np.ndarray], version: Version) -> Future[float]:
        """As `engine.base.Engine.swap`."""
        ...


@dataclass(frozen=True)
class AppliedVersion:
    """A version that came in: how it was fetched, and how long sampling stood still while it was put in."""

    fetched: FetchResult
    pause_s: float
    adapters: int = 0
    """How many matrices were made of adapters before they were put in."""

    def as_json(self) -> dict[str, Any]:
        """To whoever published it and had it loaded."""
        fetched = self.fetched
        return {
            "version": int(fetched.version), "root": fetched.root, "bytes": fetched.payload_bytes,
            "deltas": len(fetched.path) - fetched.from_anchor, "pause_ms": 1000 * self.pause_s,
            "adapters": self.adapters,
        }  # fmt: skip


class WeightUpdates:
    """Use on one event loop."""

    def __init__(self, engine: WeightReceiver, subscriber: Subscriber, region: str = "") -> None:
        self.version: Version | None = None
        """The newest version taken from the store; None while the engine has what it was started with."""
        self.root: str | None = None
        self.lag = Lag(region)
        self._engine, self._subscriber = engine, subscriber
        self._bits: Bits | None = None
        self.turn = asyncio.Lock()
        """Whoever holds it keeps the weights that are served: no version comes in meanwhile."""

    async def load(self, target: Version | None = None) -> AppliedVersion | None:
        """Serve `target`, or the newest there is. None if that or a later version is in already."""
        async with self.turn:
            try:
                return await self._load(target)
            except EtudeError as error:
                self.lag.update_failed(error)
                raise

    async def follow(self, every_s: float) -> None:
        """Serve the newest version whenever there is one, until cancelled. What fails is told by `lag`, and done again:
        a region whose link is down goes on serving what it has.
        """
        while True:
            with suppress(WeightError, DeadlineExceeded):
                await self.load()
            await asyncio.sleep(every_s)

    async def _load(self, target: Version | None) -> AppliedVersion | None:
        if target is None:
            target = await asyncio.to_thread(self._subscriber.latest)
        if self.version is not None and self.version >= target:
            return None
        bits, fetched = await self._fetch(target)
        served = await asyncio.to_thread(lambda: merged(join(bits)))
        pause_s = await asyncio.wrap_future(self._engine.swap(served, target))
        self._bits, self.version, self.root = bits, target, fetched.root
        self.lag.version_applied(fetched)
        return AppliedVersion(fetched, pause_s, len(adapted_names(bits)))

    async def _fetch(self, target: Version) -> tuple[Bits, FetchResult]:
        try:
            return await asyncio.to_thread(self._subscriber.fetch, self._bits, self.version, target)
        except WrongBase:  # the trainer went back and published another version in this one's place
            return await asyncio.to_thread(self._subscriber.fetch, None, None, target)
