"""Who may talk to a server of ours: whoever has its token, and comes to it by its own name.

Owns the checks made before any request is looked at. A web page that a user of this machine opens can make the browser
send requests here; it has no token, its Origin is refused, and a name of its own that it points at this address (DNS
rebinding) is refused by the Host check. Whoever watches over processes may ask without a token whether the server is
well, and is told no more than that. A server that has pages of its own says which paths are open: there no token is
asked for, and all other checks are made.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from etude.serving.wire import Answer, Denied, denial

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{0,5})?")
_PROBES = frozenset({"/health", "/ready"})
_CONTROL = re.compile(r"[\0-\x1f\x7f]")


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
        opened: Callable[[str, str], bool] | None = None,
    ) -> None:
        """`refusal` puts an error into the form that this server's clients know. `opened` says of a method and a path
        whether they need no token: of a server with pages of its own, whose Origin is let in then.
        """
        self._app, self._max_body, self._refusal, self._opened = app, max_body, refusal, opened
        self._expected = f"Bearer {token}".encode()
        self._hosts, self._origins = frozenset(map(str.lower, hosts)), frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            known = self._check(scope, Headers(scope=scope))
        except Denied as error:
            answer = self._refusal(error)
            told = {"Connection": "close"} if error.kind == "malformed" else None  # nobody knows where the next begins
            await Response(answer.body, answer.status, told, media_type="application/json")(scope, receive, send)
            return
        if known:
            await self._app(scope, self._limited(receive), send)
        else:
            await self._app(scope, _nothing, _status_alone(scope, send))

    def _check(self, scope: Scope, headers: Headers) -> bool:
        """Whether it goes to its route whole: with the token, or where none is needed; a probe without one does not.
        Raises Denied."""
        if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
            raise Denied("malformed", "Transfer-Encoding: a proxy may see another end of it; send its length alone")
        host = headers.get("host", "")
        if _name_in(host) not in self._hosts:
            raise Denied("forbidden", f"Host {host[:100]!r} is not a name of this server; `hosts` lists those")
        for origin in headers.getlist("origin"):
            if origin not in self._origins and not (self._opened and origin == f"{scope['scheme']}://{host.lower()}"):
                raise Denied("forbidden", f"Origin {origin[:100]!r} may not use this server; `origins` lists who may")
        given = ", ".join(headers.getlist("authorization")).encode("latin-1")  # what several are the same as
        if not given and (key := headers.getlist("x-api-key")):
            given = f"Bearer {', '.join(key)}".encode("latin-1")  # as Anthropic's clients send it
        known = bool(given) or scope["path"] not in _PROBES or scope["method"] != "GET"
        is_open = self._opened is not None and self._opened(scope["method"], scope["path"])
        if known and not is_open and not hmac.compare_digest(given, self._expected):
            raise Denied("unauthorized", "send the server's token: `Authorization: Bearer TOKEN`, from its token file")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._max_body:
            raise self._too_large()
        if _CONTROL.search(scope["path"]):  # `$` in a route's pattern also stands before a last newline
            raise Denied("no_route", f"{scope['path'][:200]!r}: no route has control characters in it")
        return known

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


async def _nothing() -> Message:
    """The body of a request that has none."""
    return {"type": "http.request", "body": b"", "more_body": False}


def _status_alone(scope: Scope, send: Send) -> Send:
    """Sends an answer's status, and nothing else of it."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            body = b'{"status":"ok"}' if status < 400 else b'{"status":"unavailable"}'
            await Response(body, status, media_type="application/json")(scope, _nothing, send)

    return sending


def _name_in(host: str) -> str:
    """The name in a Host, without its port; empty where there is more, or less, in it."""
    found = _HOST.fullmatch(host.lower())
    return found[1].strip("[]") if found else ""
