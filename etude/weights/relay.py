"""A site's relay: replicas read the store through it, so that each block crosses the wide link once.

Owns a read-only HTTP service: `/objects/KEY` (whole, or a range of a pack), `/again/KEY` (the same, but read from the
store anew: what was kept proved damaged), `/lists/PREFIX`, `/metrics` and `/figures`. A pack has its hash for a name,
so its blocks are kept for good; a manifest is kept under the store's tag for it, which is asked for every time, because
a rewind may replace it. Listings are only shared among who asks at the same moment. Verifies nothing and needs not be
trusted: readers check every hash. Talks to: store, kept.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import blake3
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry
from pydantic import Field
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude.config import Config
from etude.environments.server.guard import Guard, own_token
from etude.environments.server.process import LOOPBACK, Server, listening, url_of
from etude.errors import DeadlineExceeded, WeightError
from etude.weights.kept import Kept
from etude.weights.manifest import MOST_MANIFEST_BYTES
from etude.weights.store import MissingObject, Store, StoreConfig, open_store

_PACK = re.compile(r"versions/\d{8,}/([0-9a-f]{64})\.pack")
_KEY = re.compile(r"versions/\d{8,}/[A-Za-z0-9-]{1,200}(\.pack)?")
_PREFIX = re.compile(r"versions(/\d{8,})?")
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})")
_GAUGES = ("held_bytes",)
_MOST_SIZES = 100_000


class RelayConfig(Config):
    """Where a relay listens, who may use it, and what it keeps."""

    host: str = "127.0.0.1"
    port: int = Field(8470, ge=0, le=65535)
    """0: a free one, which is printed."""
    hosts: tuple[str, ...] = LOOPBACK
    """The names a request may give as its Host, without port. Name this machine's own when `host` is not loopback."""
    token_file: Path
    """Made when it is not there; replicas name a copy of it as `relay_token_file`."""
    directory: Path
    """Where blocks are kept."""
    most_gb: float = Field(64.0, gt=0)
    """What may be kept there. Less than one version's delta, and blocks may cross the wide link twice."""
    store: StoreConfig = StoreConfig()
    """How the store itself is read."""


class Relay:
    """Over one store. Use on one event loop."""

    def __init__(self, store: Store, config: RelayConfig) -> None:
        self.counters: Counter[str] = Counter()
        self._store, self._kept = store, Kept(config.directory, int(config.most_gb * 1e9), 2 * store.config.parallel)
        self._sizes: dict[str, int] = {}

    async def pack(self, key: str, pack: str, start: int, stop: int, again: bool) -> tuple[bytes, int]:
        """Bytes `start` to `stop` of a pack, or as many as there are, and its size."""
        if pack not in self._sizes:
            if len(self._sizes) >= _MOST_SIZES:
                self._sizes.clear()
            size, _ = await self._kept.ask(f"stamp {key}", lambda: self._store.stamp(key))
            self._sizes[pack] = size
        size, block = self._sizes[pack], self._store.config.block_bytes
        stop = min(stop, size)

        async def bring(at: int) -> bytes:
            begins, ends = at * block, min((at + 1) * block, size)
            name = f"{pack}-{block}-{at}"
            return await self._kept.get(name, lambda: self._store.get_range(key, begins, ends, size), again=again)

        blocks = range(start // block, (stop - 1) // block + 1) if start < stop else range(0)
        found = await asyncio.gather(*map(bring, blocks))
        return b"".join(found)[start - blocks.start * block :][: stop - start], size

    async def whole(self, key: str, again: bool) -> tuple[bytes, str]:
        """Any other object, and its tag."""
        size, tag = await self.stamp(key)
        if tag is None:
            tag = f"{size}-{time.time_ns()}"  # a store without tags: good for who asks at this moment
        name = blake3.blake3(f"{key}\0{tag}".encode()).hexdigest()
        return await self._kept.get(name, lambda: self._store.get(key, MOST_MANIFEST_BYTES), again=again), tag

    async def stamp(self, key: str) -> tuple[int, str | None]:
        return await self._kept.ask(f"stamp {key}", lambda: self._store.stamp(key))

    async def listing(self, prefix: str) -> dict[str, int]:
        return await self._kept.ask(f"list {prefix}", lambda: self._store.list(f"{prefix}/"))

    def figures(self) -> dict[str, int]:
        """Counters since the start: what came in, what went out, and what is kept now."""
        return {**self._kept.counters, **self.counters, "held_bytes": self._kept.held_bytes}

    def close(self) -> None:
        self._kept.close()


def application(relay: Relay, config: RelayConfig, token: str) -> Starlette:
    """The ASGI application over a relay, which it does not close."""
    guard = Middleware(Guard, token=token, hosts=config.hosts, origins=(), max_body=0)
    registry = CollectorRegistry()
    registry.register(_Figures(relay))

    async def objects(request: Request) -> Response:
        key, again = request.path_params["key"], request.url.path.startswith("/again/")
        if not _KEY.fullmatch(key):
            raise MissingObject(f"{key[:200]!r}: no object of a chain has such a name")
        if request.method == "HEAD":
            size, tag = await relay.stamp(key)
            return Response(headers={"content-length": str(size)} | _tag(tag))
        pack = _PACK.fullmatch(key)
        span = _RANGE.fullmatch(request.headers.get("range", ""))
        if pack is None or span is None:
            data, tag = await relay.whole(key, again)
            return _answer(relay, Response(data, media_type="application/octet-stream", headers=_tag(tag)))
        start, stop = int(span[1]), int(span[2]) + 1
        data, size = await relay.pack(key, pack[1], start, stop, again)
        if not data:
            return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
        headers = {"content-range": f"bytes {start}-{start + len(data) - 1}/{size}"}
        return _answer(relay, Response(data, 206, media_type="application/octet-stream", headers=headers))

    async def lists(request: Request) -> Response:
        prefix = request.path_params["prefix"]
        if not _PREFIX.fullmatch(prefix):
            raise MissingObject(f"{prefix[:200]!r}: no objects of a chain lie there")
        return _answer(relay, _json(await relay.listing(prefix)))

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    async def figures(request: Request) -> Response:
        return _json(relay.figures())

    routes = [
        Route("/objects/{key:path}", _saying(objects)),
        Route("/again/{key:path}", _saying(objects)),
        Route("/lists/{prefix:path}", _saying(lists)),
        Route("/metrics", metrics),
        Route("/figures", figures),
    ]
    return Starlette(routes=routes, middleware=[guard])


async def serve(url: str, config: RelayConfig, ready: Callable[[str], None]) -> None:
    """Relay a store until SIGTERM or Ctrl-C. `ready` is called with the relay's URL once requests are answered."""

    async def drain() -> None:
        return  # what is under way is read again, from the store

    with listening(config.host, config.port, config.hosts) as sock:
        config.token_file.parent.mkdir(parents=True, exist_ok=True)
        token, relay = own_token(config.token_file), Relay(open_store(url, config.store), config)
        try:
            await Server(application(relay, config, token), drain, lambda: ready(url_of(sock))).serve(sockets=[sock])
        finally:
            relay.close()


def _saying(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The handler, with what the store refuses said in HTTP. 504 says that the link is down, not the relay."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except MissingObject as error:
            return Response(str(error), 404)
        except DeadlineExceeded as error:
            return Response(str(error), 504)
        except WeightError as error:
            return Response(str(error), 502)

    return handle


def _answer(relay: Relay, response: Response) -> Response:
    relay.counters["answered"] += 1
    relay.counters["answered_bytes"] += len(response.body)
    return response


def _json(value: object) -> Response:
    return Response(json.dumps(value), media_type="application/json")


def _tag(tag: str | None) -> dict[str, str]:
    return {} if tag is None else {"etag": tag}


class _Figures(Collector):
    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def describe(self) -> list[Metric]:
        return []

    def collect(self):
        for name, value in self._relay.figures().items():
            family = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
            yield family(f"etude_relay_{name}", f"The relay's {name.replace('_', ' ')}.", value=value)
