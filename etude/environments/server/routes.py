"""The routes of the environment server: from a request to a node and back, and nothing else.

Owns paths, parameters and the form of answers. Whatever changes something goes through the node's journal of requests
by its Idempotency-Key (made up where none is sent), so that a client may send it again; what only reads does not.
Commands and their streams are in `commands`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude.environments.base import Resources, SandboxSpec, Snapshot
from etude.environments.lives import Kept, Live
from etude.environments.node import Node
from etude.environments.server.http import respond, whole_number
from etude.environments.wire import (
    KEY,
    READ_MAX,
    Answer,
    CreateBody,
    ForkBody,
    TtlBody,
    dump,
    parse_body,
    part_body,
)
from etude.errors import ConfigError

_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_PREFER_WAIT = re.compile(r"\bwait=(\d{1,4})\b")


class Routes:
    """Over one node."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def table(self) -> list[Route]:
        """Path -> handler."""
        box = "/sandboxes/{id}"
        return [
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.figures, methods=["GET"]),
            Route("/requests/{key}", self.cancel, methods=["DELETE"]),
            Route("/sandboxes", self.create, methods=["POST"]),
            Route("/sandboxes", self.listing, methods=["GET"]),
            Route(box, self.show, methods=["GET"]),
            Route(box, self.destroy, methods=["DELETE"]),
            Route(f"{box}/files", self.read, methods=["GET"]),
            Route(f"{box}/files", self.write, methods=["PUT"]),
            Route(f"{box}/files", self.remove, methods=["DELETE"]),
            Route(f"{box}/files/list", self.entries, methods=["GET"]),
            Route(f"{box}/archive", self.download, methods=["GET"]),
            Route(f"{box}/archive", self.upload, methods=["PUT"]),
            Route(f"{box}/archive/part", self.part, methods=["GET"]),
            Route(f"{box}/snapshot", self.snapshot, methods=["POST"]),
            Route(f"{box}/fork", self.fork, methods=["POST"]),
            Route(f"{box}/pause", self.pause, methods=["POST"]),
            Route(f"{box}/resume", self.resume, methods=["POST"]),
            Route(f"{box}/ttl", self.ttl, methods=["POST"]),
            Route(f"{box}/metrics", self.metrics, methods=["GET"]),
            Route("/snapshots", self.snapshots, methods=["GET"]),
            Route("/snapshots/{id}", self.release, methods=["DELETE"]),
        ]

    # the server ---------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        return reply({"backends": self.node.capabilities, "alive": len(self.node.sandboxes())})

    async def figures(self, request: Request) -> Response:
        text = await asyncio.to_thread(self.node.accounts.exposition)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def cancel(self, request: Request) -> Response:
        await self.node.requests.cancel(_checked(request.path_params["key"]))
        return reply({})

    # sandboxes ----------------------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        raw = await request.body()

        async def work() -> object:
            body = parse_body(raw, CreateBody)
            spec = SandboxSpec(
                files=body.files,
                image=body.image,
                base=Snapshot(body.base) if body.base else None,
                resources=Resources(**body.resources.model_dump()),
                ttl_s=body.ttl_s,
                labels=body.labels,
                egress=body.egress,
            )
            return described(await self.node.create(spec, body.backend, body.isolation))

        return await once(self.node, request, raw, work)

    async def listing(self, request: Request) -> Response:
        return reply([described(live) for live in self.node.sandboxes()])

    async def show(self, request: Request) -> Response:
        return reply(described(self.node.find(request.path_params["id"], ending=True)))

    async def destroy(self, request: Request) -> Response:
        async def work() -> object:
            await self.node.destroy(request.path_params["id"])
            return {}

        # a disk too full to write the request down is no reason to keep a sandbox: it is ended all the same
        return await once(self.node, request, b"", work, unwritten=True)

    async def snapshot(self, request: Request) -> Response:
        return await self._on(request, lambda live, _: self._snapshot(live), awake=False)

    async def fork(self, request: Request) -> Response:
        async def fork(live: Live, raw: bytes) -> object:
            return [described(each) for each in await self.node.fork(live, parse_body(raw, ForkBody).n)]

        return await self._on(request, fork, awake=False)

    async def pause(self, request: Request) -> Response:
        return await self._on(request, lambda live, _: self.node.pause(live), awake=False)

    async def resume(self, request: Request) -> Response:
        return await self._on(request, lambda live, _: self.node.resume(live), awake=False)

    async def ttl(self, request: Request) -> Response:
        async def ttl(live: Live, raw: bytes) -> object:
            self.node.set_ttl(live, parse_body(raw, TtlBody).ttl_s)
            return described(live)

        return await self._on(request, ttl, awake=False)

    async def metrics(self, request: Request) -> Response:
        async with self.node.use(request.path_params["id"]) as live:
            return reply(await live.box.metrics())

    async def _snapshot(self, live: Live) -> object:
        return kept(await self.node.snapshot(live))

    # snapshots ----------------------------------------------------------------------------------------------------

    async def snapshots(self, request: Request) -> Response:
        return reply([kept(each) for each in self.node.snapshots()])

    async def release(self, request: Request) -> Response:
        async def work() -> object:
            await self.node.release(request.path_params["id"])
            return {}

        return await once(self.node, request, b"", work)

    # files --------------------------------------------------------------------------------------------------------

    async def read(self, request: Request) -> Response:
        query = _query(request)
        most = _number(query, "max_bytes", 10_000_000)
        if most > READ_MAX:
            raise ConfigError(f"max_bytes: at most {READ_MAX} at once; take larger ones in an archive, or in parts")
        async with self.node.use(request.path_params["id"]) as live:
            return Response(await live.box.read_file(_path(query), most), media_type="application/octet-stream")

    async def write(self, request: Request) -> Response:
        path = _path(_query(request))
        return await self._on(request, lambda live, raw: live.box.write_file(path, raw))

    async def remove(self, request: Request) -> Response:
        query = _query(request)
        path, recursive = _path(query), _yes(query, "recursive")
        return await self._on(request, lambda live, _: live.box.remove(path, recursive))

    async def entries(self, request: Request) -> Response:
        async with self.node.use(request.path_params["id"]) as live:
            return reply(await live.box.list_dir(_path(_query(request))))

    async def upload(self, request: Request) -> Response:
        path = _path(_query(request))
        return await self._on(request, lambda live, raw: live.box.upload(raw, path))

    async def download(self, request: Request) -> Response:
        async with self.node.use(request.path_params["id"]) as live:
            return Response(await live.box.download(_path(_query(request))), media_type="application/x-tar")

    async def part(self, request: Request) -> Response:
        query = _query(request)
        path, skip = _path(query), _number(query, "skip", 0)
        async with self.node.use(request.path_params["id"], awake=False) as live:
            return Response(part_body(await live.box.part(path, skip)), media_type="application/octet-stream")

    # ----------------------------------------------------------------------------------------------------------------

    async def _on(
        self, request: Request, act: Callable[[Live, bytes], Awaitable[object]], awake: bool = True
    ) -> Response:
        """Do something to the sandbox of the path, once; None is answered as {}."""
        raw = await request.body()

        async def work() -> object:
            async with self.node.use(request.path_params["id"], awake) as live:
                done = await act(live, raw)
                return {} if done is None else done

        return await once(self.node, request, raw, work)


async def once(
    node: Node, request: Request, raw: bytes, work: Callable[[], Awaitable[object]], unwritten: bool = False
) -> Response:
    """Answer by the request's key: see requests.Requests.once."""
    key, wait = key_of(request), _PREFER_WAIT.search(request.headers.get("prefer", ""))
    wait_s = float(wait[1]) if wait else None
    answer = await node.requests.once(key, digest_of(request, raw), work, wait_s, unwritten)
    return respond(answer, {KEY: key})


def key_of(request: Request) -> str:
    """The request's key; one of our own where it has none."""
    return _checked(request.headers.get(KEY) or secrets.token_hex(16))


def digest_of(request: Request, raw: bytes) -> str:
    """What a request asks for, so that its key is not taken for another's."""
    head = f"{request.method} {request.url.path}?{request.url.query}\n".encode()
    return hashlib.sha256(head + raw).hexdigest()


def reply(value: object) -> Response:
    return respond(Answer(200, dump(value)))


def described(live: Live) -> dict[str, Any]:
    """A sandbox as answers tell of it."""
    spec = replace(live.spec, files={})
    return {
        "id": live.id,
        "backend": live.backend,
        "image": spec.image,
        "resources": spec.resources,
        "labels": dict(spec.labels),
        "egress": spec.egress,
        "paused": live.paused,
        "ending": None if live.ending is None else {"why": live.ending.why, "trouble": live.ending.trouble},
        "created_at": round(live.born, 3),
        "expires_at": round(live.expires, 3),
    }


def kept(snapshot: Kept) -> dict[str, Any]:
    """A snapshot as answers tell of it."""
    return {"id": snapshot.id, "backend": snapshot.backend, "image": snapshot.image, "of": snapshot.of}


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{KEY}: {key[:40]!r} must be 1 to 128 of letters, digits and _.:-")
    return key


def _query(request: Request) -> dict[str, str]:
    """The parameters, names that are not UTF-8 kept as Python keeps those of files."""
    return dict(parse_qsl(request.url.query, keep_blank_values=True, errors="surrogateescape"))


def _path(query: dict[str, str]) -> str:
    if not query.get("path", "").startswith("/") or "\0" in query["path"]:
        raise ConfigError("path: give an absolute path inside the sandbox, without NUL")
    return query["path"]


def _yes(query: dict[str, str], name: str) -> bool:
    if (said := query.get(name, "false")) not in ("true", "false"):
        raise ConfigError(f"{name}: {said[:40]!r} must be true or false")
    return said == "true"


def _number(query: dict[str, str], name: str, default: int) -> int:
    return whole_number(name, query[name]) if name in query else default
