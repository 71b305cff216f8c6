"""GET /openapi.json: what may be asked, as OpenAPI 3.1.

Owns the document. Request bodies are the models that `bodies` parses with, so the document cannot say another thing
than the server does. Answers are described by what every client relies on; docs/serving.md has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude.engine.server import anthropic, blocks, bodies, chat, completions, generate, loans, responses
from etude.engine.server.http import reply
from etude.engine.server.service import PauseMode
from etude.environments.server.openapi import AT, REFUSED, document


@dataclass(frozen=True)
class Operation:
    """One route as the document tells of it."""

    path: str
    method: str
    summary: str
    keys: tuple[str, ...] = ()
    """Members that every answer has."""
    body: type[bodies.Body] | None = None
    body_optional: bool = False
    streams: bool = False
    parameters: tuple[dict[str, Any], ...] = ()
    text: bool = False


_MODE = {"name": "mode", "in": "query", "schema": {"type": "string", "enum": list(get_args(PauseMode))}}
_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        chat.ROUTE, "post", "An assistant's message", ("id", "choices", "usage"), bodies.ChatBody, streams=True
    ),
    Operation(
        completions.ROUTE, "post", "Plain text that goes on", ("id", "choices", "usage"), bodies.CompletionBody,
        streams=True,
    ),
    Operation(
        responses.ROUTE, "post", "A response, without state", ("id", "output", "usage"), bodies.ResponsesBody,
        streams=True,
    ),
    Operation(
        anthropic.ROUTE, "post", "An assistant's message, in Anthropic's form", ("id", "content", "usage"),
        blocks.MessagesBody, streams=True,
    ),
    Operation(anthropic.COUNT, "post", "How many tokens a prompt has", ("input_tokens",), blocks.CountBody),
    *(
        Operation(path, "post", "Token ids in, token ids out", ("id", "choices"), bodies.GenerateBody, streams=True)
        for path in generate.ROUTES
    ),
    Operation("/v1/models", "get", "The model served", ("object", "data")),
    Operation("/v1/models/{model}", "get", "One model", ("id", "object"), parameters=(_MODEL,)),
    Operation("/health", "get", "Whether requests are taken", ("status",)),
    Operation("/metrics", "get", "Figures for Prometheus", text=True),
    Operation("/pause", "post", "Stop sampling", ("status",), parameters=(_MODE,)),
    Operation("/resume", "post", "Go on sampling", ("status",)),
    Operation("/is_paused", "get", "Whether it is paused", ("is_paused",)),
    Operation(
        "/abort_requests", "post", "End requests with what they have", ("aborted",), bodies.AbortBody,
        body_optional=True,
    ),
    Operation(
        "/update_weights", "post", "Serve a version of the weight store", ("version", "root"), bodies.UpdateBody,
        body_optional=True,
    ),
    Operation("/ready", "get", "Whether users are served at once", ("status",)),
    Operation("/lending", "get", "What the engine is used for, and whether it would be lent", ("state", "uses")),
    Operation("/loan", "post", "Borrow the engine", ("lease", "lease_s", "return_s"), loans.BorrowBody),
    Operation("/loan/sample", "post", "Token ids in and out, while it is lent", ("token_ids",), loans.LoanSampleBody),
    Operation("/loan/load", "post", "Serve a version of the borrower's", ("loaded",), loans.LoanLoadBody),
    Operation("/loan/drop", "post", "Forget sessions of the borrower's", ("dropped",), loans.LoanDropBody),
    Operation("/loan/stats", "post", "The engine's counters", ("busy_s",), loans.LeaseBody),
    Operation("/loan/wait", "post", "Wait for the end of a loan, and keep it", ("over",), loans.LoanWaitBody),
    Operation("/loan/end", "post", "Give the engine back", ("seconds",), loans.LeaseBody),
    Operation("/weight_info", "get", "The weights served", ("version", "root", "lag")),
)  # fmt: skip


def routes() -> list[Route]:
    """Path -> handler."""
    document = openapi(OPERATIONS)

    async def show(request: Request) -> Response:
        return reply(document)

    return [Route("/openapi.json", show, methods=["GET"])]


def openapi(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document."""
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    bodies = (operation.body for operation in operations if operation.body is not None)
    return document("Etude engine", paths, bodies, _ERROR)


_WORD = {"type": "string"}
_ERROR = {"message": _WORD, "type": _WORD, "param": {"type": ["string", "null"]}, "code": _WORD}


def _described(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if not operation.text:
        content = {"application/json": {"schema": {"type": "object", "required": list(operation.keys)}}}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    busy = {**REFUSED, "headers": {"Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}}}}
    told: dict[str, Any] = {
        "operationId": f"{operation.method}{operation.path.replace('/', '_').strip('{}')}",
        "summary": operation.summary,
        "parameters": list(operation.parameters),
        "responses": {"200": {"description": "Done", "content": content}, "429": busy, "default": REFUSED},
    }
    if operation.body is not None:
        schema = {"$ref": AT + operation.body.__name__}
        content = {"application/json": {"schema": schema}}
        told["requestBody"] = {"required": not operation.body_optional, "content": content}
    return told
