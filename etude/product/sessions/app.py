"""The server of sessions as a process: its application, and how it starts and stops.

Owns the order of stopping: at SIGTERM new requests are refused, running prompts have `drain_s`, then they are stopped
where they can be resumed, sessions release their sandboxes, and listeners are disconnected. Access is checked by the
guard that all our servers share; put something that speaks TLS before it where it does not listen on loopback alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.applications import Starlette

from etude.harness.store import SessionStore
from etude.product.config import AgentConfig
from etude.product.sessions.config import SessionsConfig
from etude.product.sessions.errors import answer_of
from etude.product.sessions.hub import Hub
from etude.product.sessions.routes import Routes, openapi
from etude.serving.http import handlers
from etude.serving.openapi import served
from etude.serving.process import Server, listening
from etude.serving.token import own_token


def application(hub: Hub, config: SessionsConfig, token: str) -> Starlette:
    """The ASGI application over a hub, which it does not close."""
    routes, errors = [*Routes(hub).table(), served(openapi())], handlers(answer_of, "sessions")
    return Starlette(routes=routes, middleware=[config.guard(token, answer_of)], exception_handlers=errors)


async def serve(config: SessionsConfig, agent: AgentConfig, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. `ready` is called with the URL once requests are answered."""
    with listening(config.host, config.port, config.hosts) as sock:
        hub = Hub(SessionStore(), config, agent)
        app = application(hub, config, own_token(config.token_path))
        keeping = asyncio.create_task(hub.keep())
        try:
            await Server(app, hub.drain, ready, config.http).serve(sockets=[sock])
        finally:
            keeping.cancel()
