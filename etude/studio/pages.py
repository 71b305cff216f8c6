"""The pages as they are sent: the built files, and the headers by which a browser lets them do no more than they need.

Owns `Pages`, which has read every built file before the first request, so that no path of a request ever reaches a
disk, and `Headed`, which puts the same headers on every answer of the server, errors among them. What the pages show is
another's: they ask below /api.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from etude.serving.wire import Denied

STATIC = Path(__file__).parent / "static"
_NOT_BUILT = b"""The pages of this studio are not built: etude/studio/static has no index.html.
A released wheel has them. In a clone, build them: tools/web.sh
The API answers all the same: GET /openapi.json, with the token, says what there is.
"""
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_KEPT = "public, max-age=31536000, immutable"
"""Of what has the hash of its content in its name, as all below assets/ has."""


def is_page(method: str, path: str) -> bool:
    """Whether a request is for the pages, which hold nothing of anybody's, or to enter: neither needs a token."""
    if method in ("GET", "HEAD"):
        return not path.startswith("/api/") and path not in ("/api", "/openapi.json", "/health", "/ready")
    return (method, path) == ("POST", "/api/enter")


class Pages:
    """The built files of one directory."""

    def __init__(self, directory: Path = STATIC) -> None:
        files = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
        self._files = {name: (path.read_bytes(), _type_of(name)) for name, path in files.items()}
        self._packed = {name: gzip.compress(data, mtime=0) for name, (data, _) in self._files.items()}

    @property
    def are_built(self) -> bool:
        return "index.html" in self._files

    def route(self) -> Route:
        """Answers every GET that no other route has: it stands last."""
        return Route("/{path:path}", self._show, methods=["GET"])

    async def _show(self, request: Request) -> Response:
        name = request.path_params["path"] or "index.html"
        if name == "index.html" and not self.are_built:
            return Response(_NOT_BUILT, 503, media_type="text/plain")
        if name.startswith("api/"):
            raise Denied("no_route", f"GET /{name[:200]}: Not Found; GET /openapi.json lists what there is")
        if name not in self._files:
            raise Denied("no_route", f"GET /{name[:200]}: no such page; / is where they begin")
        data, media = self._files[name]
        told = {"Cache-Control": _KEPT if name.startswith("assets/") else "no-cache", "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            data, told["Content-Encoding"] = self._packed[name], "gzip"
        told["ETag"] = tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=told)
        return Response(data, headers=told, media_type=media)


def _type_of(name: str) -> str:
    if name.endswith((".js", ".mjs")):  # what the machine's own table says may be another, which a browser refuses
        return "text/javascript"
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


class Headed:
    """ASGI: the same headers on every answer. Nothing of the API is kept by a browser."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, sending)
