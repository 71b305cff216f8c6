"""GET /openapi.json: what may be asked of the server of sessions, as OpenAPI 3.1.

Owns the document. Request bodies are the models that requests are parsed with, so it cannot say another thing than the
server does; docs/sessions.md tells of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude.config import Config
from etude.environments.server.openapi import AT, REFUSED, document
from etude.environments.wire import dump
from etude.product.sessions.bodies import AnswersBody, CreateBody, ForkBody, PromptBody, UndoBody


@dataclass(frozen=True)
class Operation:
    """One route as the document tells of it; `keys` are what every answer has."""

    path: str
    method: str
    summary: str
    keys: tuple[str, ...]
    body: type[Config] | None = None
    status: int = 200
    query: tuple[tuple[str, str], ...] = ()
    """Names and types."""
    streams: bool = False


_ONE = "/sessions/{session}"
_SHOWN = ("id", "directory", "model", "lines", "prompts", "stop", "open", "working", "now")
_COUNT = "integer"

OPERATIONS: tuple[Operation, ...] = (
    Operation("/health", "get", "Whether work is taken", ("status", "open", "working", "streams")),
    Operation(
        "/sessions", "get", "The sessions there are, the newest first", ("sessions", "total"),
        query=(("directory", "string"), ("limit", _COUNT)),
    ),
    Operation("/sessions", "post", "Begin a session in a directory", _SHOWN, CreateBody, 201),
    Operation(_ONE, "get", "A session, and how it stands", _SHOWN),
    Operation(
        f"{_ONE}/events", "get", "Its log from any event on, and what goes on", (), query=(("after", _COUNT),),
        streams=True,
    ),
    Operation(f"{_ONE}/diff", "get", "What changed since it began, as a patch", ("diff",)),
    Operation(f"{_ONE}/prompt", "post", "Say something to it", ("after",), PromptBody, 202),
    Operation(f"{_ONE}/resume", "post", "Go on with a prompt that was cut short", ("after",), status=202),
    Operation(f"{_ONE}/compact", "post", "Have its model summarise now", ("after",), status=202),
    Operation(f"{_ONE}/cancel", "post", "Stop what it does", ("cancelled",)),
    Operation(f"{_ONE}/undo", "post", "Back by a prompt, or so many turns", ("written", "removed", "kept"), UndoBody),
    Operation(f"{_ONE}/redo", "post", "Take the last undo back", ("written", "removed", "kept")),
    Operation(f"{_ONE}/fork", "post", "A new session with its past", _SHOWN, ForkBody, 201),
    Operation(f"{_ONE}/close", "post", "Let another process have it", ("closed",)),
    Operation(f"{_ONE}/permissions/{{request}}", "post", "Answer what it asks", ("answered",), AnswersBody),
)  # fmt: skip


def routes() -> list[Route]:
    """Path -> handler."""
    document = dump(openapi())

    async def show(request: Request) -> Response:
        return Response(document, media_type="application/json")

    return [Route("/openapi.json", show, methods=["GET"])]


def openapi() -> dict[str, Any]:
    """The document."""
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    bodies = (each.body for each in OPERATIONS if each.body is not None)
    error = {"kind": {"type": "string"}, "message": {"type": "string"}, "retryable": {"type": "boolean"}}
    return document("Etude sessions", paths, bodies, error)


def _described(operation: Operation) -> dict[str, Any]:
    answer = {"schema": {"type": "object", "required": list(operation.keys)}}
    content = (
        {"text/event-stream": {"schema": {"type": "string"}}} if operation.streams else {"application/json": answer}
    )
    named = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    inside: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named
    ]
    asked: list[dict[str, Any]] = [
        {"name": name, "in": "query", "schema": {"type": kind, **({"minimum": 0} if kind == _COUNT else {})}}
        for name, kind in operation.query
    ]
    told: dict[str, Any] = {
        "operationId": "_".join([operation.method, *operation.path.replace("{", "").replace("}", "").split("/")[1:]]),
        "summary": operation.summary,
        "parameters": [*inside, *asked],
        "responses": {str(operation.status): {"description": "Done", "content": content}, "default": REFUSED},
    }
    if operation.body is not None:
        schema = {"$ref": AT + operation.body.__name__}
        needed = any(field.is_required() for field in operation.body.model_fields.values())
        told["requestBody"] = {"required": needed, "content": {"application/json": {"schema": schema}}}
    return told
