"""GET /openapi.json: what may be asked of the environment server, as OpenAPI 3.1.

Owns the list of what a server does besides the verbs of its sandboxes (`verbs`), and `strict`, which refuses what an
operation does not have. docs/environments.md tells of keys that name a request, of streams and of errors.
"""

from __future__ import annotations

from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude.environments.verbs import PARAMETERS, SHOWN, VERBS, Verb
from etude.environments.wire import CreateBody, ExecBody, NoBody
from etude.serving.openapi import Operation, document, parameter, queried
from etude.serving.wire import parse_body

BOX = "/sandboxes/{id}"


def _parameter(name: str, where: Literal["query", "path"] = "query") -> dict[str, Any]:
    known = PARAMETERS[name]
    return {**parameter(name, where, **known.schema), "required": where == "path" or known.needed}


def _told(verb: Verb) -> Operation:
    inside = [_parameter(name, "path") for name in PARAMETERS if f"{{{name}}}" in verb.path]
    body: Any = "tar" if verb.body == "archive" else "bytes" if verb.body == "data" else verb.body
    return Operation(
        BOX + verb.path, verb.method.lower(), verb.summary, verb.keys, body, verb.body_optional,
        (*inside, *map(_parameter, verb.query)), answer=verb.answer, streams=verb.body is ExecBody,
    )  # fmt: skip


SERVED: dict[str, Operation] = {
    "health": Operation("/health", "get", "What is offered, and how many sandboxes there are", ("backends", "alive")),
    "figures": Operation("/metrics", "get", "Figures for Prometheus", answer="text"),
    "cancel": Operation("/requests/{key}", "delete", "Stop a request, also before it comes"),
    "listing": Operation("/sandboxes", "get", "The sandboxes there are", answer="array"),
    "create": Operation("/sandboxes", "post", "Make a sandbox", SHOWN, CreateBody, True),
    "show": Operation(BOX, "get", "A sandbox", SHOWN),
    "output": Operation(
        f"{BOX}/processes/{{process}}/output", "get", "Its output as it comes", answer="events",
        parameters=(_parameter("process", "path"), _parameter("from")),
    ),
    "snapshots": Operation("/snapshots", "get", "The snapshots there are", answer="array"),
    "release": Operation("/snapshots/{id}", "delete", "Let go of a snapshot"),
}  # fmt: skip
"""By the method of `Routes` that does it."""
ASKED = {name: verb for name, verb in VERBS.items() if name != "start"}
"""The verbs by their routes: to start a command is a way of running one."""
OPERATIONS: tuple[Operation, ...] = (*SERVED.values(), *map(_told, ASKED.values()))


def strict(route: Route) -> Route:
    """The same route, refusing unknown parameters, those given twice, and keys of a body where it has none."""
    bare = {each.method for each in OPERATIONS if each.path == route.path and each.body is None}

    async def endpoint(request: Request) -> Response:
        if ("get" if request.method == "HEAD" else request.method.lower()) in bare:
            parse_body(await request.body(), NoBody)
        return await route.endpoint(request)

    return queried(Route(route.path, endpoint, methods=list(route.methods or ())), OPERATIONS)


def openapi() -> dict[str, Any]:
    """The document."""
    return document("Etude environments", OPERATIONS)
