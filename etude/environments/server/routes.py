"""The routes of the environment server: from a request to a node and back, and nothing else.

Owns the form of answers. Which routes there are is in `operations` and, for the verbs of sandboxes, in `verbs`: this is
a loop over both. Whatever changes something goes through the node's journal of requests by its Idempotency-Key (made up
where none is sent), so that a client may send it again; what only reads does not. A command's stream is `streams`'.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude.environments.base import SandboxSpec, Snapshot
from etude.environments.hosted import Hosted
from etude.environments.lives import LiveSandbox, LiveSnapshot
from etude.environments.node import Node
from etude.environments.server.operations import ASKED, BOX, SERVED
from etude.environments.server.streams import Streams
from etude.environments.verbs import PARAMETERS, VERBS
from etude.environments.wire import KEY, CreateBody
from etude.errors import ConfigError
from etude.serving.http import respond
from etude.serving.openapi import MEDIA
from etude.serving.sse import EventStream
from etude.serving.wire import Answer, dump, parse_body

_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_PREFER_WAIT = re.compile(r"\bwait=(\d{1,4})\b")


class Routes:
    """Over one node."""

    def __init__(self, node: Node) -> None:
        self.node, self.hosted = node, Hosted(node)
        self.streams = Streams(self.hosted)

    def table(self) -> list[Route]:
        """Path -> handler."""
        named = [Route(each.path, getattr(self, name), methods=[each.method]) for name, each in SERVED.items()]
        return named + [
            Route(BOX + verb.path, partial(self.asked, name), methods=[verb.method]) for name, verb in ASKED.items()
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
                resources=body.resources,
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

    # snapshots ----------------------------------------------------------------------------------------------------

    async def snapshots(self, request: Request) -> Response:
        return reply([kept(each) for each in self.node.snapshots()])

    async def release(self, request: Request) -> Response:
        async def work() -> object:
            await self.node.release(request.path_params["id"])
            return {}

        return await once(self.node, request, b"", work)

    # verbs --------------------------------------------------------------------------------------------------------

    async def asked(self, name: str, request: Request) -> Response:
        """One of the verbs: what reads is answered, what changes something is done once."""
        verb, raw = VERBS[name], await request.body()
        arguments = verb.arguments(request.path_params, _query(request), raw)
        if name == "exec" and arguments.pop("background"):
            name = "start"
        elif name == "exec":
            if arguments["timeout_s"] is None:
                raise ConfigError("timeout_s: only a command in the background may go without")
            if "text/event-stream" in request.headers.get("accept", ""):
                return self._streamed(request, raw, arguments)

        async def work() -> object:
            return _told(name, await self.hosted.call(request.path_params["id"], name, **arguments))

        if verb.changes:
            # a disk too full to write the request down is no reason to keep a sandbox: it is ended all the same
            return await once(self.node, request, raw, work, unwritten=name == "destroy")
        said = await work()
        if isinstance(said, bytes):
            return Response(said, media_type=MEDIA[verb.answer])
        return reply(said)

    async def output(self, request: Request) -> Response:
        given = {name: PARAMETERS[name] for name in ("process", "from")}
        process = given["process"].read("process", request.path_params["process"])
        skip = given["from"].read("from", request.query_params.get("from", given["from"].default))
        return EventStream(await self.streams.of(request.path_params["id"], process, skip))

    def _streamed(self, request: Request, raw: bytes, arguments: dict[str, Any]) -> Response:
        """A command whose output is told as it comes."""
        key = key_of(request)
        name, digest = request.path_params["id"], digest_of(request, raw)
        return EventStream(self.streams.run(key, digest, name, arguments), headers={KEY: key})


def _told(verb: str, value: Any) -> object:
    """What a verb came to, as answers tell of it."""
    match verb:
        case "snapshot":
            return kept(value)
        case "fork":
            return [described(each) for each in value]
        case "ttl":
            return described(value)
        case "part":
            return value.encoded()
        case "start":
            return {"process": value}
    return {} if value is None else value


async def once(
    node: Node, request: Request, raw: bytes, work: Callable[[], Awaitable[object]], unwritten: bool = False
) -> Response:
    """Answer by the request's key: see requests.Requests.run_once."""
    key, wait = key_of(request), _PREFER_WAIT.search(request.headers.get("prefer", ""))
    wait_s = float(wait[1]) if wait else None
    answer = await node.requests.run_once(key, digest_of(request, raw), work, wait_s, unwritten)
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


def described(live: LiveSandbox) -> dict[str, Any]:
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
        "ending": None if live.ending is None else {"why": live.ending.why, "trouble": live.ending.last_error},
        "created_at": round(live.born, 3),
        "expires_at": round(live.expires, 3),
    }


def kept(snapshot: LiveSnapshot) -> dict[str, Any]:
    """A snapshot as answers tell of it."""
    return {"id": snapshot.id, "backend": snapshot.backend, "image": snapshot.image, "of": snapshot.sandbox_id}


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{KEY}: {key[:40]!r} must be 1 to 128 of letters, digits and _.:-")
    return key


def _query(request: Request) -> dict[str, str]:
    """The parameters, names that are not UTF-8 kept as Python keeps those of files."""
    given = request.scope["query_string"].decode("latin-1")
    return dict(parse_qsl(given, keep_blank_values=True, errors="surrogateescape"))
