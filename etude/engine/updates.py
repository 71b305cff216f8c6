"""An engine that follows a weight store.

Owns what is held for the next delta: the bits of the version that is served. A version is fetched and verified in a
thread of its own, then swapped in between two steps, one at a time and never backwards. Talks to: the engine, and
`weights.subscriber`.
"""

from __future__ import annotations

import asyncio

from etude.engine.base import Engine
from etude.records import Version
from etude.weights.manifest import Bits
from etude.weights.subscriber import FetchResult, Subscriber


class WeightUpdates:
    """Use on one event loop."""

    def __init__(self, engine: Engine, subscriber: Subscriber) -> None:
        self.version: Version | None = None
        """The newest version taken from the store; None while the engine has what it was started with."""
        self.root: str | None = None
        self._engine, self._subscriber = engine, subscriber
        self._bits: Bits | None = None
        self._loading = asyncio.Lock()

    async def load(self, target: Version | None = None) -> FetchResult | None:
        """Serve `target`, or the newest there is. None if that or a later version is in already."""
        async with self._loading:
            if target is None:
                target = await asyncio.to_thread(self._subscriber.latest)
            if self.version is not None and self.version >= target:
                return None
            bits, fetched = await asyncio.to_thread(self._subscriber.fetch, self._bits, self.version, target)
            await asyncio.wrap_future(self._engine.swap(bits, target))
            self._bits, self.version, self.root = bits, target, fetched.root
            return fetched
