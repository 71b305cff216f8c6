"""A relay's cache of a store: named bytes in a directory, brought once however many ask at the same time.

Owns the directory: files that are whole once they have their name, the least recently used deleted first. What is kept
may be lost at any moment, and is then brought again; a full disk costs the keeping and nothing else. Never judges what
it keeps: readers check hashes. Use on one event loop.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Cache:
    """`counters`: kept_hits, brought, brought_bytes, shared (who waited for what another had asked for), unkept (the
    disk did not take it), evicted.
    """

    def __init__(self, directory: Path, most_bytes: int, threads: int) -> None:
        self.counters = Counter(
            dict.fromkeys(("kept_hits", "brought", "brought_bytes", "shared", "unkept", "evicted"), 0)
        )
        self._directory, self._most_bytes = directory, most_bytes
        self._bringers = ThreadPoolExecutor(threads, "relay-bring")  # apart: slow links must not hold up the disk
        self._flights: dict[str, asyncio.Task[Any]] = {}
        self._sizes: OrderedDict[str, int] = OrderedDict()
        directory.mkdir(parents=True, exist_ok=True)
        found = [(path, path.stat()) for path in directory.iterdir()]
        for path, status in sorted(found, key=lambda each: each[1].st_mtime):
            if path.name.startswith("."):
                path.unlink()  # half written by one that was killed
            else:
                self._sizes[path.name] = status.st_size
        self.held_bytes = sum(self._sizes.values())

    async def get(self, name: str, bring: Callable[[], bytes | memoryview], *, again: bool = False) -> bytes:
        """The bytes of that name: kept ones, or else what `bring` returns. With `again`, kept ones will not do."""
        data = None if again else await self.find(name)
        return data if data is not None else await self.share(name, lambda: self._bring(name, bring))

    async def find(self, name: str) -> bytes | None:
        """The bytes of that name if they are kept."""
        if name not in self._sizes:
            return None
        data = await asyncio.to_thread(self._read, name)
        if data is None:
            self._forget(name)
        elif name in self._sizes:
            self._sizes.move_to_end(name)
        self.counters["kept_hits"] += data is not None
        return data

    async def keep(self, name: str, data: bytes) -> bool:
        """Keep what was brought; false if the disk refuses it."""
        self.counters["brought"] += 1
        self.counters["brought_bytes"] += len(data)
        try:
            await asyncio.to_thread(self._write, name, data)
        except OSError:
            self.counters["unkept"] += 1
            return False
        self._forget(name)
        self._sizes[name] = len(data)
        self.held_bytes += len(data)
        while self.held_bytes > self._most_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self._forget(oldest)
            self.counters["evicted"] += 1
            await asyncio.to_thread((self._directory / oldest).unlink, missing_ok=True)
        return True

    async def share(self, name: str, start: Callable[[], Awaitable[T]]) -> T:
        """One flight for all who ask while it lasts. Who gives up does not end it for the others."""
        flight = self._flights.get(name)
        if flight is None:
            flight = asyncio.ensure_future(start())
            self._flights[name] = flight
            flight.add_done_callback(lambda done: self._landed(name, done))
        else:
            self.counters["shared"] += 1
        return await asyncio.shield(flight)

    async def apart(self, ask: Callable[[], T]) -> T:
        """What `ask`, which may take long, returns; it runs in a thread that the disk does not need."""
        return await asyncio.get_running_loop().run_in_executor(self._bringers, ask)

    def close(self) -> None:
        """Give up what is under way."""
        self._bringers.shutdown(wait=False, cancel_futures=True)

    def _landed(self, name: str, flight: asyncio.Task[Any]) -> None:
        del self._flights[name]
        if not flight.cancelled():
            flight.exception()  # seen, also where everybody who waited has gone

    async def _bring(self, name: str, bring: Callable[[], bytes | memoryview]) -> bytes:
        data = bytes(await self.apart(bring))
        await self.keep(name, data)
        return data

    def _forget(self, name: str) -> None:
        self.held_bytes -= self._sizes.pop(name, 0)

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except OSError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        partial = self._directory / f".{name}-{uuid.uuid4().hex[:8]}"
        try:
            partial.write_bytes(data)
            partial.rename(self._directory / name)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
