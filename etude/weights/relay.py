"""A site's relay: replicas read the store through it, so that each block crosses the wide link once.

Owns a read-only HTTP service: `/objects/KEY`, `/ranges/SIZE/KEY` (of a pack of that size, with a Range), the same below
`/again` (read from the store anew: what was kept proved damaged), `/lists/PREFIX`, `/metrics`, `/figures` and
`/openapi.json`, which says what may be asked. A pack
has its hash for a name, so its blocks are kept for good; of a manifest, which a rewind may replace, the store is asked
each time whether it is another one than what was kept. Listings are only shared among who asks at the same moment.
Verifies nothing and needs not be trusted: readers check every hash. Talks to: store, kept.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import blake3
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry
from pydantic import Field
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from etude.errors import ConfigError, DeadlineExceeded, WeightError
from etude.serving.guard import Guard
from etude.serving.http import handlers, respond
from etude.serving.openapi import Operation, answers, document, operations_of, parameter, routes_of, served
from etude.serving.process import ListenConfig, Port, Server, listening
from etude.serving.token import own_token
from etude.serving.wire import Kinds, answered, refusal
from etude.weights.cache import Cache
from etude.weights.manifest import MOST_MANIFEST_BYTES
from etude.weights.opening import open_store
from etude.weights.store import PARALLEL, MissingObject, Store, StoreConfig

T = TypeVar("T")
_PACK = re.compile(r"versions/\d{8,}/([0-9a-f]{64})\.pack")
_KEY = re.compile(r"(versions|pins)/\d{8,}/[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_PREFIX = re.compile(r"(versions|pins)(/\d{8,})?")
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})")
_GAUGES = ("held_bytes",)
_MOST_TAGS = 10_000
_KINDS: Kinds = {
    ConfigError: (400, "config", False),
    MissingObject: (404, "not_found", False),
    DeadlineExceeded: (504, "deadline", True),  # the link is down, not the relay
    WeightError: (502, "store", True),
}
"""What the store refuses, said in HTTP."""
_ANEW = ", read from the store anew"
_RANGES = Operation(
    "/ranges/{size}/{key}", "get", "Some bytes of a pack that has `size`", status=206, answer="bytes",
    parameters=(
        parameter("size", "path", type="integer", minimum=0),
        {**parameter("Range", "header", type="string", pattern="^bytes=[0-9]{1,15}-[0-9]{1,15}$"), "required": True},
    ),
)  # fmt: skip


class RelayConfig(ListenConfig):
    """Where a relay listens, who may use it, and what it keeps."""

    port: Port = 8480
    token_file: Path
    """Made when it is not there; replicas name a copy of it as `weight_store.token_file`."""
    directory: Path
    """Where blocks are kept."""
    most_gb: float = Field(64.0, gt=0)
    """What may be kept there. Less than one version's delta, and blocks may cross the wide link twice."""
    store: StoreConfig = StoreConfig()
    """How the store itself is read."""

    @property
    def token_path(self) -> Path:
        return self.token_file


class Relay:
    """Over one store. Use on one event loop."""

    def __init__(self, store: Store, config: RelayConfig) -> None:
        self.counters: Counter[str] = Counter()
        self._store, self._kept = store, Cache(config.directory, int(config.most_gb * 1e9), 2 * PARALLEL)
        self._tags: dict[str, str] = {}
        """Key → the store's tag for what is kept of it."""

    async def pack(self, key: str, pack: str, size: int, start: int, stop: int, again: bool) -> bytes:
        """Bytes `start` to `stop` of a pack that has `size` bytes; fewer where it ends before. Raises what
        `Store.get_range` does.
        """
        block, stop = self._store.config.block_bytes, min(stop, size)

        async def bring(at: int) -> bytes:
            begins, ends = at * block, min((at + 1) * block, size)
            name = f"{pack}-{size}-{block}-{at}"
            return await self._kept.get(name, lambda: self._store.get_range(key, begins, ends, size), again=again)

        blocks = range(start // block, (stop - 1) // block + 1) if start < stop else range(0)
        found = await asyncio.gather(*map(bring, blocks))
        return b"".join(found)[start - blocks.start * block :][: stop - start]

    async def whole(self, key: str, again: bool) -> tuple[bytes, str | None]:
        """Any other object, and the store's tag for it."""
        return await self._kept.share(f"whole {again} {key}", lambda: self._whole(key, again))

    async def _whole(self, key: str, again: bool) -> tuple[bytes, str | None]:
        known = None if again else self._tags.get(key)
        changed = await self._kept.apart(lambda: self._store.get_changed(key, MOST_MANIFEST_BYTES, known))
        if changed is None:
            kept = await self._kept.find(_name(key, known))
            return (kept, known) if kept is not None else await self._whole(key, again=True)
        data, tag = changed
        if await self._kept.keep(_name(key, tag), data) and tag is not None:
            if len(self._tags) >= _MOST_TAGS:
                self._tags.clear()
            self._tags[key] = tag
        return data, tag

    async def stamp(self, key: str) -> tuple[int, str | None]:
        return await self._ask(f"stamp {key}", lambda: self._store.stamp(key))

    async def listing(self, prefix: str) -> dict[str, int]:
        return await self._ask(f"list {prefix}", lambda: self._store.list(f"{prefix}/"))

    async def _ask(self, name: str, ask: Callable[[], T]) -> T:
        """What the store says now, to all who ask at the same moment."""
        return await self._kept.share(name, lambda: self._kept.apart(ask))

    def figures(self) -> dict[str, int]:
        """Counters since the start: what came in, what went out, and what is kept now."""
        return {**self._kept.counters, **self.counters, "held_bytes": self._kept.held_bytes}

    def collect(self) -> Iterator[Metric]:
        """The same for Prometheus."""
        for name, value in self.figures().items():
            family = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
            yield family(f"etude_relay_{name}", f"The relay's {name.replace('_', ' ')}.", value=value)

    def close(self) -> None:
        self._kept.close()


class Routes:
    """Over a relay, which it does not close."""

    def __init__(self, relay: Relay) -> None:
        self._relay, self._registry = relay, CollectorRegistry()
        self._registry.register(relay)

    @answers(Operation("/objects/{key}", "get", "An object of a chain", answer="bytes"), "/objects/{key:path}")
    @answers(
        Operation("/again/objects/{key}", "get", f"An object of a chain{_ANEW}", answer="bytes"),
        "/again/objects/{key:path}",
    )
    async def objects(self, request: Request) -> Response:
        key, again = request.path_params["key"], request.url.path.startswith("/again/")
        if not _KEY.fullmatch(key):
            raise MissingObject(f"{key[:200]!r}: no object of a chain has such a name")
        if request.method == "HEAD":
            size, tag = await self._relay.stamp(key)
            return Response(headers={"content-length": str(size)} | _tag(tag))
        data, tag = await self._relay.whole(key, again)
        return self._counted(Response(data, media_type="application/octet-stream", headers=_tag(tag)))

    @answers(_RANGES, "/ranges/{size:int}/{key:path}")
    @answers(
        replace(_RANGES, path="/again/ranges/{size}/{key}", summary=f"{_RANGES.summary}{_ANEW}"),
        "/again/ranges/{size:int}/{key:path}",
    )
    async def ranges(self, request: Request) -> Response:
        key, size = request.path_params["key"], request.path_params["size"]
        pack, span = _PACK.fullmatch(key), _RANGE.fullmatch(request.headers.get("range", ""))
        if pack is None:
            raise MissingObject(f"{key[:200]!r}: no pack has such a name")
        if request.method == "HEAD":
            return Response(headers={"content-length": str((await self._relay.stamp(key))[0])})
        if span is None or int(span[1]) > min(int(span[2]), size - 1):
            said = f"Range: `bytes=FIRST-LAST` below {size} is what can be answered"
            return respond(refusal(416, "range", said), {"content-range": f"bytes */{size}"})
        start, again = int(span[1]), request.url.path.startswith("/again/")
        data = await self._relay.pack(key, pack[1], size, start, int(span[2]) + 1, again)
        headers = {"content-range": f"bytes {start}-{start + len(data) - 1}/{size}"}
        return self._counted(Response(data, 206, media_type="application/octet-stream", headers=headers))

    @answers(Operation("/lists/{prefix}", "get", "The objects below a prefix, and their sizes"), "/lists/{prefix:path}")
    async def lists(self, request: Request) -> Response:
        prefix = request.path_params["prefix"]
        if not _PREFIX.fullmatch(prefix):
            raise MissingObject(f"{prefix[:200]!r}: no objects of a chain lie there")
        return self._counted(_json(await self._relay.listing(prefix)))

    @answers(Operation("/health", "get", "Whether requests are answered", ("status",)))
    async def health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    @answers(Operation("/metrics", "get", "Figures for Prometheus", answer="text"))
    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")

    @answers(Operation("/figures", "get", "The same, as JSON", ("held_bytes",)))
    async def figures(self, request: Request) -> Response:
        return _json(self._relay.figures())

    def _counted(self, response: Response) -> Response:
        self._relay.counters["answered"] += 1
        self._relay.counters["answered_bytes"] += len(response.body)
        return response


OPERATIONS: tuple[Operation, ...] = operations_of(Routes)


def openapi() -> dict[str, Any]:
    """GET /openapi.json: what may be asked of a relay."""
    return document("Etude relay", OPERATIONS)


def application(relay: Relay, config: RelayConfig, token: str) -> Starlette:
    """The ASGI application over a relay, which it does not close."""
    guard = Middleware(Guard, token=token, hosts=config.hosts, origins=(), max_body=0)
    routes, errors = [*routes_of(Routes(relay)), served(openapi())], handlers(partial(answered, kinds=_KINDS), "relay")
    return Starlette(routes=routes, middleware=[guard], exception_handlers=errors)


async def serve(url: str, config: RelayConfig, ready: Callable[[str], None]) -> None:
    """Relay a store until SIGTERM or Ctrl-C. `ready` is called with the relay's URL once requests are answered."""

    async def drain() -> None:
        return  # what is under way is read again, from the store

    with listening(config.host, config.port, config.hosts) as sock:
        token, relay = own_token(config.token_path), Relay(open_store(url, config.store), config)
        try:
            await Server(application(relay, config, token), drain, ready, config.http).serve(sockets=[sock])
        finally:
            relay.close()


def _name(key: str, tag: str | None) -> str:
    return blake3.blake3(f"{key}\0{tag}".encode()).hexdigest()


def _json(value: object) -> Response:
    return Response(json.dumps(value), media_type="application/json")


def _tag(tag: str | None) -> dict[str, str]:
    return {} if tag is None else {"etag": tag}
