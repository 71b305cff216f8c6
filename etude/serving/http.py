"""Answers of our servers as they are sent, and what they say where no route answers.

Owns `respond`, and the handlers of errors that all our servers have. Knows no route, and no form of what an answer
holds: a server gives `answer_of`, which puts an error into the form that its clients know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from etude.errors import EtudeError
from etude.serving.wire import Answer, Denied


def respond(answer: Answer, headers: Mapping[str, str] | None = None) -> Response:
    """An answer as it is sent."""
    told = dict(headers or {})
    if answer.retry_after_s is not None:
        told["Retry-After"] = str(math.ceil(answer.retry_after_s))
    return Response(answer.body, answer.status, told, media_type="application/json")


def handlers(
    answer_of: Callable[[Exception], Answer],
    server: str,
    refused: Callable[[Request, Answer], None] = lambda request, answer: None,
) -> dict[Any, Callable[..., Any]]:
    """What becomes of errors, for Starlette. A bug goes to the log of `server`; `refused` is told of every answer."""

    async def failed(request: Request, error: Exception) -> Response:
        answer = answer_of(error)
        refused(request, answer)
        if answer.status == 500:
            structlog.get_logger(server).error("bug", path=request.url.path, exc_info=error)
        return respond(answer)

    async def no_route(request: Request, error: HTTPException) -> Response:
        said = f"{request.method} {request.url.path[:200]}: {error.detail}; GET /openapi.json lists what there is"
        return respond(answer_of(Denied("no_route", said, error.status_code)), error.headers)

    async def hung_up(request: Request, error: Exception) -> Response:
        return Response(status_code=400)  # nobody reads it

    of_ours = dict.fromkeys((EtudeError, OSError, Exception), failed)
    return {**of_ours, HTTPException: no_route, ClientDisconnect: hung_up}
