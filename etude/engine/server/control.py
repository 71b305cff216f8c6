"""The routes that do not sample: models, health, figures, and control of the engine.

Owns vLLM's names for control (`/pause`, `/resume`, `/is_paused`, `/abort_requests`, `/update_weights`, `/weight_info`).
A weight update answers when the version is in use: fetched, verified against its root, and swapped between two steps.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast, get_args

from starlette.requests import Request
from starlette.responses import Response

from etude.engine.server.bodies import AbortBody, UpdateBody, parse_body
from etude.engine.server.errors import ApiError, bad
from etude.engine.server.http import reply
from etude.engine.server.service import PauseMode, Service
from etude.records import Version
from etude.serving.openapi import Operation, answers, parameter

_MODE = parameter("mode", type="string", enum=list(get_args(PauseMode)))


class Control:
    """Over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @answers(Operation("/health", "get", "Whether requests are taken", ("status",)))
    async def health(self, request: Request) -> Response:
        """200 while requests are taken; 503 when the engine is down or the server is stopping."""
        self._service.raise_if_down()
        if self._service.draining:
            raise ApiError(503, "this server is stopping", "draining")
        return reply({"status": "ok", "paused": self._service.engine.paused})

    @answers(Operation("/ready", "get", "Whether users are served at once", ("status",)))
    async def ready(self, request: Request) -> Response:
        """200 while users are served at once; 503 also while the engine is lent. A load balancer asks this: requests
        that come all the same are served, once the engine is back.
        """
        lending = self._service.lending
        if lending is not None and lending.state != "serving":
            raise ApiError(503, "the engine is lent to rollouts; it comes back for users", "lent")
        return await self.health(request)

    @answers(Operation("/metrics", "get", "Figures for Prometheus", answer="text"))
    async def figures(self, request: Request) -> Response:
        text = await asyncio.to_thread(self._service.figures.exposition)
        return Response(text, media_type="text/plain; version=0.0.4")

    @answers(Operation("/v1/models", "get", "The model served", ("object", "data")))
    async def models(self, request: Request) -> Response:
        return reply({"object": "list", "data": [self._model()]})

    @answers(Operation("/v1/models/{model}", "get", "One model", ("id", "object")), "/v1/models/{model:path}")
    async def one_model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["model"])
        return reply(self._model())

    @answers(Operation("/pause", "post", "Stop sampling", ("status",), parameters=(_MODE,)))
    async def pause(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "abort")
        if mode not in get_args(PauseMode):
            raise bad("mode", f"{mode[:40]!r} is none of {', '.join(get_args(PauseMode))}")
        await self._service.pause(cast(PauseMode, mode))
        return reply({"status": "paused"})

    @answers(Operation("/resume", "post", "Go on sampling", ("status",)))
    async def resume(self, request: Request) -> Response:
        self._service.engine.resume()
        return reply({"status": "resumed"})

    @answers(Operation("/is_paused", "get", "Whether it is paused", ("is_paused",)))
    async def is_paused(self, request: Request) -> Response:
        return reply({"is_paused": self._service.engine.paused})

    @answers(Operation("/abort_requests", "post", "End requests with what they have", ("aborted",), AbortBody, True))
    async def abort(self, request: Request) -> Response:
        body = parse_body(await request.body(), AbortBody)
        return reply({"aborted": self._service.abort(body.request_ids)})

    @answers(
        Operation(
            "/update_weights", "post", "Serve a version of the weight store", ("version", "root"), UpdateBody, True
        )
    )
    async def update(self, request: Request) -> Response:
        body = parse_body(await request.body(), UpdateBody)
        if self._service.updates is None:
            raise ApiError(409, "this server follows no weight store; start it with `store`", "no_store")
        began = time.monotonic()
        await self._service.own()
        served = await self._service.updates.load(None if body.version is None else Version(body.version))
        told = {"deltas": 0, "bytes": 0, "seconds": time.monotonic() - began}
        if served is not None:
            fetched = served.fetched
            told |= {"deltas": len(fetched.path) - fetched.from_anchor, "bytes": fetched.payload_bytes}
        return reply({**self._weights(), **told})

    @answers(Operation("/weight_info", "get", "The weights served", ("version", "root", "lag")))
    async def weights(self, request: Request) -> Response:
        return reply(self._weights())

    # ----------------------------------------------------------------------------------------------------------------

    def _weights(self) -> dict[str, Any]:
        """What is served. `root` is the verified hash of the weights that this replica holds, once a version has come
        from the store, and `lag` how far they are behind the trainer.
        """
        updates = self._service.updates
        told = {"root": None, "lag": None} if updates is None else {"root": updates.root, "lag": updates.lag.figures()}
        return {"version": int(self._service.version), **told}

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._service.model,
            "object": "model",
            "created": self._service.created,
            "owned_by": "etude",
            "max_model_len": self._service.engine.max_context,
            "weight_version": int(self._service.version),
        }
