"""The document that says what a server of ours may be asked, as OpenAPI 3.1, and the routes that it tells of.

Owns `Operation`, the form of the document, and `queried`, which refuses parameters that it does not name. Bodies are
the models that requests are parsed with, so that a document cannot say another thing than its server does; an answer is
described by what every client relies on, or by the dataclass that it is made of. What a method `answers` stands at the
method, and nowhere else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude import __version__
from etude.errors import ConfigError
from etude.serving.wire import dump

H = TypeVar("H", bound=Callable[..., Awaitable[Response]])
_AT = "#/components/schemas/"
_REFUSED = {"description": "Refused", "content": {"application/json": {"schema": {"$ref": _AT + "Error"}}}}
"""What stands for every answer that is an error."""
_BUSY = {**_REFUSED, "headers": {"Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}}}}
_EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
_EVENTS = {"text/event-stream": {"schema": _EVENT}}
"""The schema is of one event, as OpenAPI's readers take it."""
MEDIA = {"text": "text/plain", "bytes": "application/octet-stream", "tar": "application/x-tar"}
OURS = {"kind": {"type": "string"}, "message": {"type": "string"}, "retryable": {"type": "boolean"}}
"""The members of an error, in the form that Etude's own servers have."""


@dataclass(frozen=True)
class Operation:
    """One route as the document tells of it. Parameters of the path that are not described are words."""

    path: str
    method: str
    summary: str
    keys: tuple[str, ...] = ()
    """Members that every answer has."""
    body: type[BaseModel] | Literal["bytes", "tar"] | None = None
    body_optional: bool = False
    parameters: tuple[dict[str, Any], ...] = ()
    status: int = 200
    answer: Literal["object", "array", "text", "bytes", "tar", "events"] | type = "object"
    """A dataclass where the document says all of it."""
    streams: bool = False
    """Whether the answer is a stream of events where the request asks for one."""
    is_open: bool = False
    """Whether it needs no token."""


def parameter(name: str, where: Literal["query", "path", "header"] = "query", **schema: Any) -> dict[str, Any]:
    """`schema` is JSON schema's; a word where it is not given."""
    return {"name": name, "in": where, "required": where == "path", "schema": schema or {"type": "string"}}


def answers(operation: Operation, route: str | None = None) -> Callable[[H], H]:
    """Marks the method that does it. `route` is its path where that says, as Starlette's do, what a part may be."""

    def mark(handler: H) -> H:
        handler.__dict__.setdefault("answers", []).append((operation, route or operation.path))
        return handler

    return mark


def _marked(owner: type) -> Iterator[tuple[str, Operation, str]]:
    """Of a class: methods, what they do, and the paths of their routes."""
    for name, each in vars(owner).items():
        for operation, route in getattr(each, "answers", ()):
            yield name, operation, route


def operations_of(*owners: type) -> tuple[Operation, ...]:
    """What the methods of these classes do."""
    return tuple(operation for owner in owners for _, operation, _ in _marked(owner))


def routes_of(owner: object, others: tuple[str, ...] = ()) -> list[Route]:
    """The routes of an object's methods. All refuse parameters that they do not name but those below `others`: clients
    of other protocols add parameters of their servers' (`beta`, `api-version`), which say nothing here.
    """
    routes = [
        (operation, Route(path, getattr(owner, name), methods=[operation.method]))
        for name, operation, path in _marked(type(owner))
    ]
    return [route if route.path.startswith(others) else queried(route, [each]) for each, route in routes]


def queried(route: Route, operations: Iterable[Operation]) -> Route:
    """The same route, refusing parameters that its operation does not name, and those given twice."""
    named = re.sub(r":\w+}", "}", route.path)
    at = {each.method: each for each in operations if each.path == named}

    async def endpoint(request: Request) -> Response:
        operation = at["get" if request.method == "HEAD" else request.method.lower()]
        known = sorted(each["name"] for each in operation.parameters if each["in"] == "query")
        query = request.scope["query_string"].decode("latin-1")  # that of `request.url` ends at a #
        given = Counter(name for name, _ in parse_qsl(query, keep_blank_values=True))
        for name, count in given.items():
            if name not in known:
                raise ConfigError(f"{name[:40]}: unknown parameter; known here: {', '.join(known) or 'none'}")
            if count > 1:
                raise ConfigError(f"{name}: given twice")
        return await route.endpoint(request)

    return Route(route.path, endpoint, methods=list(route.methods or ()))


def document(
    title: str, operations: Iterable[Operation], error: Mapping[str, Any] = OURS, told: Iterable[type] = ()
) -> dict[str, Any]:
    """`error` is what {"error": …} holds: its members, which it always has, and their schemas. `told` are dataclasses
    that clients get in another way than as an answer: in events.
    """
    paths: dict[str, Any] = {}
    bodies: set[type[BaseModel]] = set()
    records = set(told)
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
        if isinstance(operation.body, type):
            bodies.add(operation.body)
        if isinstance(operation.answer, type):
            records.add(operation.answer)
    models = sorted(bodies, key=lambda each: each.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_AT + "{model}")
    inner = {"type": "object", "required": list(error), "properties": dict(error)}
    failed = {"type": "object", "required": ["error"], "properties": {"error": inner}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas.get("$defs", {}), **_schemas_of(records), "Error": failed},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def served(document: Mapping[str, Any]) -> Route:
    """GET /openapi.json."""
    text = dump(document)

    async def show(request: Request) -> Response:
        return Response(text, media_type="application/json")

    itself = Operation("/openapi.json", "get", "This document")
    return queried(Route(itself.path, show, methods=["GET"]), [itself])


def _schemas_of(records: Iterable[type]) -> dict[str, Any]:
    """Of dataclasses that answers are made of: each by its name, with those it holds."""
    ordered = sorted(records, key=lambda each: each.__name__)
    adapters = [(each, "serialization", TypeAdapter(each)) for each in ordered]
    _, schemas = TypeAdapter.json_schemas(adapters, ref_template=_AT + "{model}")  # ty: ignore[invalid-argument-type]
    return schemas.get("$defs", {})


def _described(operation: Operation) -> dict[str, Any]:
    done = {"description": "Done", "content": _answered(operation)}
    words = operation.path.replace("{", "").replace("}", "").split("/")[1:]
    told: dict[str, Any] = {
        "operationId": "_".join([operation.method, *words]),
        "summary": operation.summary,
        "parameters": [*_inside(operation.path, operation.parameters), *operation.parameters],
        "responses": {str(operation.status): done, "429": _BUSY, "default": _REFUSED},
    }
    if operation.is_open:
        told["security"] = []
    if isinstance(operation.body, str):
        told["requestBody"] = {"required": True, "content": {MEDIA[operation.body]: {}}}
    elif operation.body is not None:
        content = {"application/json": {"schema": {"$ref": _AT + operation.body.__name__}}}
        told["requestBody"] = {"required": not operation.body_optional, "content": content}
    return told


def _inside(path: str, described: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {each["name"] for each in described}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [parameter(name, "path", type="string", minLength=1) for name in names if name not in known]


def _answered(operation: Operation) -> dict[str, Any]:
    if operation.answer == "events":
        return _EVENTS
    if isinstance(operation.answer, type):
        return {"application/json": {"schema": {"$ref": _AT + operation.answer.__name__}}}
    if operation.answer in MEDIA:
        return {MEDIA[operation.answer]: {}}
    needed = {"required": list(operation.keys)} if operation.answer == "object" else {}
    told = {"application/json": {"schema": {"type": operation.answer, **needed}}}
    return {**told, **_EVENTS} if operation.streams else told
