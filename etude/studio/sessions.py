"""Sessions of the product in the studio: the routes of its server of sessions below /api, and a topic for each.

Owns which of those routes there are here, and `SessionTopic`. Who only looks may list sessions and read them; what
opens one, or writes, needs `--work`. A session is followed in the stream that a tab has anyway, and in none of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude.product.sessions.channel import LINE, Listener
from etude.product.sessions.errors import Refused
from etude.product.sessions.hub import Hub
from etude.product.sessions.routes import OPERATIONS as OF_SESSIONS
from etude.product.sessions.routes import Routes
from etude.product.sessions.stream import Tail
from etude.serving.openapi import Operation, routes_of
from etude.studio.topic import AT_ONCE, LOOK_S, MakeTopic, Told, Topic

_LOOK_S = 1.0
"""How often a log is looked at for what another process writes."""
_LEFT_OUT = ("/health", "/sessions/{session}/events")
_READ = {("/sessions", "GET"), ("/sessions/{session}", "GET")}
Endpoint = Callable[[Request], Awaitable[Response]]
OPERATIONS: tuple[Operation, ...] = tuple(
    replace(each, path=f"/api{each.path}") for each in OF_SESSIONS if each.path not in _LEFT_OUT
)


@dataclass(frozen=True)
class SessionEvent:
    """Of `session/ID`. `line` is an event of its log, whose cursor is its number. Without a cursor come `now`, how it
    stands, first; then what is in no log, by its name: words, call, again, printed, asked, answered, state."""

    line: dict[str, Any] | None = None
    name: str | None = None
    data: dict[str, Any] | None = None


def session_routes(hub: Hub, work: bool) -> Iterator[Route]:
    """The routes of sessions, as `/api/sessions…`."""
    for route in routes_of(Routes(hub)):
        if route.path in _LEFT_OUT:
            continue
        methods = route.methods or set()
        endpoint = route.endpoint if work or (route.path, next(iter(methods - {"HEAD"}))) in _READ else _only_read
        yield Route(f"/api{route.path}", endpoint, methods=list(methods))


async def _only_read(request: Request) -> Response:
    raise Refused("forbidden", "this studio only looks; start it with --work to have sessions at work")


def session_topics(hub: Hub) -> MakeTopic:
    """Those of sessions."""

    def made(parts: Sequence[str], cursor: str | None) -> Topic | None:
        match parts:
            case ["session", id]:
                return SessionTopic(hub, id, cursor)
        return None

    return made


class SessionTopic(Topic):
    """One session: its log from any line on, and what goes on beside it."""

    every_s = LOOK_S / 2

    def __init__(self, hub: Hub, session: str, cursor: str | None) -> None:
        """Raises Refused for a session that is not there."""
        super().__init__(cursor)
        after = int(cursor) if cursor and cursor.isascii() and cursor.isdigit() and len(cursor) < 12 else 0
        self._tail, self._channel = Tail(hub.log(session), after), hub.channel(session)
        self._listener = Listener()
        self._caught_up, self._looked_at = False, 0.0

    async def open(self) -> Told:
        self._listener = self._channel.listen()
        return [("", {"opened": True})]

    async def new(self) -> Told:
        if self._listener.over:  # it fell too far behind: what it missed is in the log, or gone
            self.close()
            self._listener, self._caught_up = self._channel.listen(), False
        if not self._caught_up:
            return await self._catch_up()
        told: Told = []
        while len(told) < AT_ONCE and (item := self._listener.taken()) is not None:
            if item is LINE:
                told += _numbered(self._tail.one())
            else:
                told.append(("", {"name": item.name, "data": dict(item.data)}))
        now = asyncio.get_running_loop().time()
        if told or now - self._looked_at < _LOOK_S:
            return told
        self._looked_at = now
        return await self._more()  # what another process writes

    async def _catch_up(self) -> Told:
        lines = await self._more()
        if len(lines) >= AT_ONCE:
            return lines
        self._listener.forget()  # from here to the snapshot nothing is awaited: what it heard of is in one of the two
        self._caught_up = True
        return [*lines, *_numbered(self._tail), ("", {"name": "now", "data": self._channel.snapshot()})]

    async def _more(self) -> Told:
        return await asyncio.to_thread(lambda: _numbered(itertools.islice(self._tail, AT_ONCE)))

    def close(self) -> None:
        self._channel.leave(self._listener)


def _numbered(sent: Iterable[bytes]) -> Told:
    """Of lines as the server of sessions sends them: an id, and the event."""
    parts = [each.partition(b"\ndata: ") for each in sent]
    return [(head.removeprefix(b"id: ").decode(), {"line": json.loads(data)}) for head, _, data in parts]
