"""The server of sessions as a process: its application, and how it starts and stops.

Owns the order of stopping: at SIGTERM new requests are refused, running prompts have `drain_s`, then they are stopped
where they can be resumed, sessions release their sandboxes, and listeners are disconnected. Access is checked by the
guard that all our servers share; put something that speaks TLS before it where it does not listen on loopback alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from etude.environments.server.guard import Guard, own_token
from etude.environments.server.http import respond
from etude.environments.server.openapi import served
from etude.environments.server.process import Server, listening, url_of
from etude.environments.wire import Answer, dump
from etude.errors import EtudeError
from etude.harness.store import SessionStore
from etude.product.config import AgentConfig
from etude.product.sessions.config import SessionsConfig
from etude.product.sessions.errors import answer_of
from etude.product.sessions.hub import Hub
from etude.product.sessions.openapi import openapi
from etude.product.sessions.routes import Routes


def application(hub: Hub, config: SessionsConfig, token: str) -> Starlette:
    """The ASGI application over a hub, which it does not close."""
    guard = Middleware(
        Guard, token=token, hosts=config.hosts, origins=config.origins, max_body=config.max_body_mb << 20,
        refusal=answer_of,
    )  # fmt: skip
    handlers = {EtudeError: _failed, HTTPException: _no_route, ClientDisconnect: _hung_up, Exception: _failed}
    routes = [*Routes(hub).table(), served(openapi())]
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)


async def serve(config: SessionsConfig, agent: AgentConfig, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. `ready` is called with the URL once requests are answered."""
    with listening(config.host, config.port, config.hosts) as sock:
        config.token_path.parent.mkdir(parents=True, exist_ok=True)
        hub = Hub(SessionStore(), config, agent)
        app = application(hub, config, own_token(config.token_path))
        keeping = asyncio.create_task(hub.keep())
        try:
            await Server(app, hub.drain, lambda: ready(url_of(sock)), config.http).serve(sockets=[sock])
        finally:
            keeping.cancel()


async def _failed(request: Request, error: Exception) -> Response:
    answer = answer_of(error)
    if answer.status == 500:
        structlog.get_logger("sessions").error("bug", path=request.url.path, exc_info=error)
    return respond(answer)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = f"{request.method} {request.url.path}: {error.detail}; GET /openapi.json lists what there is"
    response = respond(
        Answer(error.status_code, dump({"error": {"kind": "no_route", "message": said, "retryable": False}}))
    )
    response.headers.update(error.headers or {})
    return response


async def _hung_up(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it
