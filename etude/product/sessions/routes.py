"""The routes of the server of sessions.

Owns the routes, each a few lines over the hub, and what /openapi.json says of them. A prompt is answered at once with
202, and its progress goes to the listeners; everything else is answered when it is done. docs/sessions.md tells of the
stream.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude.harness.shadow import Restored
from etude.product.agent import Agent
from etude.product.sessions.about import about
from etude.product.sessions.bodies import AnswersBody, CreateBody, ForkBody, PromptBody, UndoBody
from etude.product.sessions.channel import Json
from etude.product.sessions.errors import Refused
from etude.product.sessions.hub import Hub
from etude.product.sessions.live import Live
from etude.product.sessions.stream import followed, line_count
from etude.serving.openapi import Operation, answers, document, operations_of, parameter, routes_of
from etude.serving.sse import EventStream
from etude.serving.wire import dump, parse_body, whole_number

_LISTED_MAX = 1000
_ONE = "/sessions/{session}"
_SHOWN = ("id", "directory", "model", "lines", "prompts", "stop", "open", "working", "now")
_RESTORED = ("written", "removed", "kept")


def _count(name: str) -> Json:
    return parameter(name, type="integer", minimum=0)


class Routes:
    """Over one hub, which it does not close."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def table(self) -> list[Route]:
        """What it answers."""
        return routes_of(self)

    # --- what there is ------------------------------------------------------------------------------------------------

    @answers(Operation("/health", "get", "Whether work is taken", ("status", "open", "working", "streams")))
    async def health(self, request: Request) -> Response:
        hub = self._hub
        at_work = sum(live.working for live in hub.open.values())
        status = "draining" if hub.draining else "ok"
        return reply({"status": status, "open": len(hub.open), "working": at_work, "streams": hub.streams})

    @answers(
        Operation(
            "/sessions", "get", "The sessions there are, the newest first", ("sessions", "total"),
            parameters=(parameter("directory"), _count("limit")),
        )
    )  # fmt: skip
    async def listed(self, request: Request) -> Response:
        """The newest first, of one directory or all."""
        directory, limit = request.query_params.get("directory"), _number(request, "limit", 100)
        found = await asyncio.to_thread(self._hub.store.sessions)
        chosen = [each for each in found if directory in (None, each.workspace)][: min(limit, _LISTED_MAX)]
        told = [
            {
                "id": each.id, "directory": each.workspace, "task": each.task, "began": each.began,
                "last_active": each.last_active.isoformat(), **self._presence(each.id),
            }
            for each in chosen
        ]  # fmt: skip
        return reply({"sessions": told, "total": len(found)})

    @answers(Operation(_ONE, "get", "A session, and how it stands", _SHOWN))
    async def show(self, request: Request) -> Response:
        id = request.path_params["session"]
        return reply(await self._shown(id))

    @answers(
        Operation(
            f"{_ONE}/events", "get", "Its log from any event on, and what goes on", parameters=(_count("after"),),
            answer="events",
        )
    )  # fmt: skip
    async def events(self, request: Request) -> Response:
        """The log from any line on, and what goes on beside it."""
        id = request.path_params["session"]
        log = self._hub.log(id)
        after = _number(request, "after", 0, request.headers.get("last-event-id"))
        if after > (count := await asyncio.to_thread(line_count, log)):
            raise Refused("conflict", f"after: the log of {id} has {count} events; begin again, after 0")
        with ExitStack() as stack:
            stack.enter_context(self._hub.listening())
            channel = self._hub.channel(id)
            listener = channel.listen()
            stack.callback(channel.leave, listener)
            held = stack.pop_all()
        return EventStream(followed(log, channel, listener, after), held)

    @answers(Operation(f"{_ONE}/diff", "get", "What changed since it began, as a patch", ("diff",)))
    async def diff(self, request: Request) -> Response:
        """What changed in the directory since the session began, as a patch."""
        live = await self._live(request)
        return reply({"diff": await live.agent.session.checkpoints.diff()})

    # --- work ---------------------------------------------------------------------------------------------------------

    @answers(Operation("/sessions", "post", "Begin a session in a directory", _SHOWN, CreateBody, status=201))
    async def create(self, request: Request) -> Response:
        body = parse_body(await request.body(), CreateBody)
        live = await self._hub.begin(body.directory, body.model)
        _set_mode(live, body.mode)
        if (prompt := body.prompt) is not None:
            live.start(lambda agent: agent.play(prompt))
        id = live.agent.id
        return reply(await self._shown(id), 201, {"Location": f"/sessions/{id}"})

    @answers(Operation(f"{_ONE}/prompt", "post", "Say something to it", ("after",), PromptBody, status=202))
    async def prompt(self, request: Request) -> Response:
        body = parse_body(await request.body(), PromptBody)
        live = await self._live(request)
        live.require_idle()
        if body.after is not None and body.after != (length := live.agent.session.log.length):
            raise Refused("conflict", f"after: the log has gone on to {length}; look at what was said since")
        _set_mode(live, body.mode)
        if body.model is not None:
            live.agent.use_model(body.model)
        live.start(lambda agent: agent.play(body.text))
        return reply({"after": live.agent.session.log.length}, 202)

    @answers(Operation(f"{_ONE}/resume", "post", "Go on with a prompt that was cut short", ("after",), status=202))
    async def resume(self, request: Request) -> Response:
        """Go on with a prompt that was cancelled or killed."""
        live = await self._live(request)
        state = live.agent.session.state
        if not state.prompts or state.stop is not None:
            raise Refused("idle", "there is nothing to go on with; give it a prompt")
        live.start(lambda agent: agent.play(None))
        return reply({"after": live.agent.session.log.length}, 202)

    @answers(Operation(f"{_ONE}/compact", "post", "Have its model summarise now", ("after",), status=202))
    async def compact(self, request: Request) -> Response:
        live = await self._live(request)
        live.start(_compacted)
        return reply({"after": live.agent.session.log.length}, 202)

    @answers(Operation(f"{_ONE}/cancel", "post", "Stop what it does", ("cancelled",)))
    async def cancel(self, request: Request) -> Response:
        id = request.path_params["session"]
        self._hub.log(id)
        live = self._hub.open.get(id)
        return reply({"cancelled": live is not None and await live.cancel()})

    @answers(Operation(f"{_ONE}/permissions/{{request}}", "post", "Answer what it asks", ("answered",), AnswersBody))
    async def answer(self, request: Request) -> Response:
        body = parse_body(await request.body(), AnswersBody)
        id = request.path_params["session"]
        self._hub.log(id)
        if (live := self._hub.open.get(id)) is None:
            raise Refused("not_found", f"session {id} asks nothing: it is not open")
        live.answer(
            request.path_params["request"], [(each.allowed, each.remember, each.words) for each in body.answers]
        )
        return reply({"answered": len(body.answers)})

    # --- the past -----------------------------------------------------------------------------------------------------

    @answers(Operation(f"{_ONE}/undo", "post", "Back by a prompt, or so many turns", _RESTORED, UndoBody, True))
    async def undo(self, request: Request) -> Response:
        body = parse_body(await request.body(), UndoBody)
        live = await self._live(request)
        return reply(_restored(await live.briefly(lambda agent: agent.session.checkpoints.undo(body.turns))))

    @answers(Operation(f"{_ONE}/redo", "post", "Take the last undo back", _RESTORED))
    async def redo(self, request: Request) -> Response:
        live = await self._live(request)
        return reply(_restored(await live.briefly(lambda agent: agent.session.checkpoints.redo())))

    @answers(Operation(f"{_ONE}/fork", "post", "A new session with its past", _SHOWN, ForkBody, True, status=201))
    async def fork(self, request: Request) -> Response:
        body = parse_body(await request.body(), ForkBody)
        id = request.path_params["session"]
        self._hub.log(id)
        forked = await self._hub.store.fork(id, body.line)
        return reply(await self._shown(forked), 201, {"Location": f"/sessions/{forked}"})

    @answers(Operation(f"{_ONE}/close", "post", "Let another process have it", ("closed",)))
    async def close(self, request: Request) -> Response:
        """Let another process have it."""
        id = request.path_params["session"]
        self._hub.log(id)
        return reply({"closed": await self._hub.close(id)})

    async def _live(self, request: Request) -> Live:
        live = await self._hub.live(request.path_params["session"])
        await live.settled()
        return live

    async def _shown(self, id: str) -> Json:
        told = await asyncio.to_thread(about, self._hub.log(id))
        live = self._hub.open.get(id)
        if live is not None and live.ready:
            told |= {"mode": live.agent.gate.mode, "spent": asdict(live.agent.ledger.spent)}
        return {**told, **self._presence(id), "now": self._hub.channel(id).snapshot()}

    def _presence(self, id: str) -> Json:
        live = self._hub.open.get(id)
        return {"open": live is not None, "working": live is not None and live.working}


OPERATIONS: tuple[Operation, ...] = operations_of(Routes)


def openapi() -> Json:
    """The document."""
    return document("Etude sessions", OPERATIONS)


def reply(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(dump(value), status, headers, media_type="application/json")


async def _compacted(agent: Agent) -> str:
    return "compacted" if await agent.compact() else "cancelled"


def _set_mode(live: Live, mode: Any) -> None:
    if mode is not None:
        live.agent.gate.mode = mode


def _restored(restored: Restored) -> Json:
    return {"written": restored.written, "removed": restored.removed, "kept": restored.kept}


def _number(request: Request, name: str, otherwise: int, instead: str | None = None) -> int:
    """A whole number of the query's, or of a header's that comes before it."""
    given = instead if instead is not None else request.query_params.get(name)
    if given is None:
        return otherwise
    return whole_number(name, given)
