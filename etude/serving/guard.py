"""Who may talk to a server of ours: whoever has its token, and comes to it by its own name.

Owns the checks made before any request is looked at. A web page that a user of this machine opens can make the browser
send requests here; it has no token, its Origin is refused, and a name of its own that it points at this address (DNS
rebinding) is refused by the Host check.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from etude.serving.wire import Answer, Denied, denial


class Guard:
    """ASGI middleware: refuses what has the wrong token, Host or Origin, and cuts bodies that are too long."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        hosts: Sequence[str],
        origins: Sequence[str],
        max_body: int,
        refusal: Callable[[Denied], Answer] = denial,
    ) -> None:
        """`refusal` puts an error into the form that this server's clients know."""
        self._app, self._max_body, self._refusal = app, max_body, refusal
        self._expected = f"Bearer {token}".encode()
        self._hosts, self._origins = frozenset(hosts), frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(Headers(scope=scope))
        except Denied as error:
            answer = self._refusal(error)
            await Response(answer.body, answer.status, media_type="application/json")(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _check(self, headers: Headers) -> None:
        host = _without_port(headers.get("host", ""))
        if host not in self._hosts:
            raise Denied("forbidden", f"Host {host[:100]!r} is not a name of this server; `hosts` lists those")
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins:
            raise Denied("forbidden", f"Origin {origin[:100]!r} may not use this server; `origins` lists who may")
        given = headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, self._expected):
            raise Denied("unauthorized", "send the server's token: `Authorization: Bearer TOKEN`, from its token file")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._max_body:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        taken = 0

        async def counting() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._max_body:
                raise self._too_large()
            return message

        return counting

    def _too_large(self) -> Denied:
        return Denied("too_large", f"a body may have at most {self._max_body} bytes; send it in parts")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[").lower()
    return host.partition(":")[0].lower()
