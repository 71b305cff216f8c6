"""GET /openapi.json: what may be asked of the environment server, as OpenAPI 3.1.

Owns the list of operations, and `strict`, which refuses what an operation does not have. docs/environments.md tells of
keys that name a request, of streams and of errors.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from etude.environments.server.openapi import Operation, document, parameter
from etude.environments.wire import CreateBody, ExecBody, ForkBody, NoBody, TtlBody, parse_body
from etude.errors import ConfigError

_BOX = "/sandboxes/{id}"
_SHOWN = ("id", "backend", "image", "resources", "labels", "egress", "paused", "created_at", "expires_at")
_KEPT = ("id", "backend", "image", "of")
_RAN = ("exit_code", "output", "timed_out", "log_path")
_PROCESS = parameter("process", "path", type="integer", minimum=1)
_PATH = {**parameter("path", type="string", pattern="^/"), "required": True}


def _count(name: str) -> dict[str, Any]:
    return parameter(name, type="integer", minimum=0)


OPERATIONS: tuple[Operation, ...] = (
    Operation("/health", "get", "What is offered, and how many sandboxes there are", ("backends", "alive")),
    Operation("/metrics", "get", "Figures for Prometheus", answer="text"),
    Operation("/requests/{key}", "delete", "Stop a request, also before it comes"),
    Operation("/sandboxes", "get", "The sandboxes there are", answer="array"),
    Operation("/sandboxes", "post", "Make a sandbox", _SHOWN, CreateBody, True),
    Operation(_BOX, "get", "A sandbox", _SHOWN),
    Operation(_BOX, "delete", "Destroy a sandbox"),
    Operation(
        f"{_BOX}/files", "get", "A file", answer="bytes", parameters=(_PATH, _count("max_bytes"))
    ),
    Operation(f"{_BOX}/files", "put", "Write a file", (), "bytes", parameters=(_PATH,)),
    Operation(
        f"{_BOX}/files", "delete", "Remove a file, or with `recursive` a directory",
        parameters=(_PATH, parameter("recursive", type="string", enum=["true", "false"])),
    ),
    Operation(f"{_BOX}/files/list", "get", "What a directory holds", answer="array", parameters=(_PATH,)),
    Operation(f"{_BOX}/archive", "get", "A directory as a tar archive", answer="tar", parameters=(_PATH,)),
    Operation(f"{_BOX}/archive", "put", "Unpack a tar archive", (), "tar", parameters=(_PATH,)),
    Operation(
        f"{_BOX}/archive/part", "get", "A directory in archives, from the entry `skip` on", answer="bytes",
        parameters=(_PATH, _count("skip")),
    ),
    Operation(f"{_BOX}/snapshot", "post", "Take a snapshot", _KEPT),
    Operation(f"{_BOX}/fork", "post", "Copies of it, which go on by themselves", (), ForkBody, True, answer="array"),
    Operation(f"{_BOX}/pause", "post", "Let it stand still"),
    Operation(f"{_BOX}/resume", "post", "Let it go on"),
    Operation(f"{_BOX}/ttl", "post", "Give it so long from now", _SHOWN, TtlBody),
    Operation(f"{_BOX}/metrics", "get", "What it uses", ("cpu_s", "memory_bytes", "pids", "disk_bytes", "uptime_s")),
    Operation(
        f"{_BOX}/exec", "post", "Run a command, to its end, as a stream or in the background", (), ExecBody,
        streams=True,
    ),
    Operation(f"{_BOX}/processes", "get", "Its commands in the background", answer="array"),
    Operation(
        f"{_BOX}/processes/{{process}}", "get", "How one ended, if it did", ("result", "paused"),
        parameters=(_PROCESS, parameter("wait_s", type="number", minimum=0)),
    ),
    Operation(f"{_BOX}/processes/{{process}}", "delete", "Kill one", parameters=(_PROCESS,)),
    Operation(
        f"{_BOX}/processes/{{process}}/output", "get", "Its output as it comes", answer="events",
        parameters=(_PROCESS, _count("from")),
    ),
    Operation("/snapshots", "get", "The snapshots there are", answer="array"),
    Operation("/snapshots/{id}", "delete", "Let go of a snapshot"),
)  # fmt: skip


def strict(route: Route) -> Route:
    """The same route, refusing unknown parameters, those given twice, and keys of a body where it has none."""
    at = {each.method: each for each in OPERATIONS if each.path == route.path}

    async def endpoint(request: Request) -> Response:
        operation = at["get" if request.method == "HEAD" else request.method.lower()]
        known = sorted(each["name"] for each in operation.parameters if each["in"] == "query")
        given = Counter(name for name, _ in parse_qsl(request.url.query, keep_blank_values=True))
        for name, count in given.items():
            if name not in known:
                raise ConfigError(f"{name[:40]}: unknown parameter; known here: {', '.join(known) or 'none'}")
            if count > 1:
                raise ConfigError(f"{name}: given twice")
        if operation.body is None:
            parse_body(await request.body(), NoBody)
        return await route.endpoint(request)

    return Route(route.path, endpoint, methods=list(route.methods or ()))


def openapi() -> dict[str, Any]:
    """The document."""
    return document("Etude environments", OPERATIONS)
