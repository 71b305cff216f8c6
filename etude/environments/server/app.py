"""The environment server as a process: its config, its application, and how it starts and stops.

Owns the order of starting (lock, sweep, recover, listen) and of stopping: at SIGTERM nothing new begins, what is under
way has `drain_s`, then every sandbox is destroyed. Listens on this machine alone unless told otherwise; put something
that speaks TLS before it where it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import Field
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from etude.deadlines import DeadlineConfig
from etude.environments.lives import NodeConfig
from etude.environments.node import Node
from etude.environments.remote import default_state_dir
from etude.environments.server.operations import openapi, strict
from etude.environments.server.routes import Routes
from etude.environments.wire import answer_of
from etude.serving.http import handlers
from etude.serving.openapi import served
from etude.serving.process import ApiConfig, Port, Server, listening
from etude.serving.token import own_token
from etude.serving.tracing import continued, exported


class ServerConfig(ApiConfig):
    """Where the server listens, who may use it, and what it serves."""

    port: Port = 8460
    max_body_mb: int = Field(64, ge=1)
    """The longest request: files of a sandbox come in one."""
    spans_to: str | None = Field(None, pattern=r"^https?://")
    """A collector of spans, in OTLP over HTTP: http://127.0.0.1:4318/v1/traces, say. Needs the extra `otel`."""
    node: NodeConfig = NodeConfig()
    deadlines: DeadlineConfig = DeadlineConfig()

    @property
    def token_path(self) -> Path:
        return self.token_file or (self.node.state_dir or default_state_dir()) / "token"


def application(node: Node, config: ServerConfig, token: str) -> Starlette:
    """The ASGI application over an open node, which it does not close."""
    routes = [*map(strict, Routes(node).table()), served(openapi())]
    before = [config.guard(token, answer_of), Middleware(_Traced)]
    return Starlette(routes=routes, middleware=before, exception_handlers=handlers(answer_of, "environments"))


async def serve(config: ServerConfig, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. `ready` is called with the URL once requests are answered."""
    with listening(config.host, config.port, config.hosts) as sock:
        async with exported(config.spans_to, "etude-environments"):
            node = Node(config.node)  # sweeps and recovers before anybody is let in
            try:
                app = application(node, config, own_token(config.token_path))
                server = Server(app, lambda: node.drain(config.drain_s), ready, config.http)
                await server.serve(sockets=[sock])
            finally:
                await node.close()


class _Traced:
    """ASGI middleware: what a request leads to is part of its sender's trace."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with continued(Headers(scope=scope)):
            await self._app(scope, receive, send)
