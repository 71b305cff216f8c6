"""The routes of commands: run to the end, run with output as it comes, and run in the background.

Owns the form of the streams (server-sent events `output`, base64; `end`, with the result; `error`). A stream is a view:
the command goes on when nobody watches, and who comes back sees the output again, from where they say they are.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import math
from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from etude.environments.base import Process
from etude.environments.lives import Live, result_within
from etude.environments.node import Node
from etude.environments.server.http import whole_number
from etude.environments.server.routes import digest_of, key_of, once, reply
from etude.environments.server.sse import never_silent
from etude.environments.wire import KEY, Answer, ExecBody, answer_of, dump, parse_body
from etude.errors import ConfigError, EtudeError

_PIECE = 48 << 10
_WAIT_MAX_S = 60.0
_GRACE_S = 1.0
_LAST_PROCESS = 0xFFFFFFFF
"""What the line to a sandbox has room for."""


class Commands:
    """Over one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._streams: dict[str, asyncio.Future[Process]] = {}
        """Of commands under way that were asked for as a stream, by key."""

    def table(self) -> list[Route]:
        """Path -> handler."""
        box = "/sandboxes/{id}"
        return [
            Route(f"{box}/exec", self.exec, methods=["POST"]),
            Route(f"{box}/processes", self.listing, methods=["GET"]),
            Route(f"{box}/processes/{{process}}", self.wait, methods=["GET"]),
            Route(f"{box}/processes/{{process}}", self.kill, methods=["DELETE"]),
            Route(f"{box}/processes/{{process}}/output", self.output, methods=["GET"]),
        ]

    async def exec(self, request: Request) -> Response:
        raw = await request.body()
        body = parse_body(raw, ExecBody)
        name = request.path_params["id"]
        if body.background:

            async def start() -> object:
                return {"process": (await self._node.start(name, body)).id}

            return await once(self._node, request, raw, start)
        if body.timeout_s is None:
            raise ConfigError("timeout_s: only a command in the background may go without")
        if "text/event-stream" in request.headers.get("accept", ""):
            return self._streamed(request, raw, name, body)
        return await once(self._node, request, raw, lambda: self._node.exec(name, body))

    async def listing(self, request: Request) -> Response:
        async with self._node.use(request.path_params["id"]) as live:
            return reply(await live.box.processes())

    async def wait(self, request: Request) -> Response:
        text = request.query_params.get("wait_s", "0")
        try:
            wait_s = float(text)
        except ValueError:
            wait_s = math.nan
        if math.isnan(wait_s):  # which compares with nothing, so that no bound would hold it
            raise ConfigError(f"wait_s: {text[:40]!r} is no number of seconds")
        wait_s = min(max(wait_s, 0.0), _WAIT_MAX_S)
        live = self._node.find(request.path_params["id"])
        process = await self._process(request)
        async with self._node.use(live.id, awake=False):
            return reply({"result": await result_within(process, wait_s), "paused": live.paused})

    async def kill(self, request: Request) -> Response:
        async def work() -> object:
            await (await self._process(request)).kill()
            return {}

        return await once(self._node, request, b"", work)

    async def output(self, request: Request) -> Response:
        skip = whole_number("from", request.query_params.get("from", "0"))
        live = self._node.find(request.path_params["id"])
        process = await self._process(request)
        return _stream(self._told(live, process, skip))

    # ----------------------------------------------------------------------------------------------------------------

    async def _process(self, request: Request) -> Process:
        number = whole_number("process", request.path_params["process"])
        if number > _LAST_PROCESS:
            raise ProcessLookupError(errno.ESRCH, f"no background command has the id {number}")
        return await self._node.process(request.path_params["id"], number)

    async def _told(self, live: Live, process: Process, skip: int) -> AsyncGenerator[bytes]:
        try:
            async with self._node.use(live.id, awake=False):
                async for piece in process.output():
                    for event in _output(piece[skip:]):
                        yield event
                    skip = max(skip - len(piece), 0)
                yield _event("end", dump(await process.wait(_GRACE_S)))
        except (EtudeError, OSError) as error:
            yield _event("error", answer_of(error).body)

    def _streamed(self, request: Request, raw: bytes, name: str, body: ExecBody) -> Response:
        """A command under a key whose output is told as it comes; asked for again, from the beginning again."""
        key, digest = key_of(request), digest_of(request, raw)
        started = self._streams.setdefault(key, asyncio.get_running_loop().create_future())

        def tell(process: Process) -> None:
            if not started.done():
                started.set_result(process)

        async def whole() -> Answer:
            try:
                return await self._node.requests.once(key, digest, lambda: self._node.exec(name, body, tell))
            except EtudeError as error:
                return answer_of(error)
            finally:
                self._streams.pop(key, None)

        return _stream(_followed(started, asyncio.ensure_future(whole())), {KEY: key})


async def _followed(started: asyncio.Future[Process], answer: asyncio.Future[Answer]) -> AsyncGenerator[bytes]:
    await asyncio.wait({started, answer}, return_when=asyncio.FIRST_COMPLETED)
    if started.done():
        try:
            async for piece in started.result().output():
                for event in _output(piece):
                    yield event
        except EtudeError:
            pass  # what became of it is in the answer
    said = await asyncio.shield(answer)
    yield _event("end" if said.status == 200 else "error", said.body)


def _stream(events: AsyncGenerator[bytes], headers: dict[str, str] | None = None) -> Response:
    return StreamingResponse(
        never_silent(events), headers={"Cache-Control": "no-store", **(headers or {})}, media_type="text/event-stream"
    )


def _output(piece: bytes) -> list[bytes]:
    cut = [piece[at : at + _PIECE] for at in range(0, len(piece), _PIECE)]
    return [_event("output", base64.b64encode(part)) for part in cut]


def _event(kind: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)
