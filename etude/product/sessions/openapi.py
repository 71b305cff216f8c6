"""GET /openapi.json: what may be asked of the server of sessions, as OpenAPI 3.1.

Owns the list of operations; docs/sessions.md tells of the stream.
"""

from __future__ import annotations

from typing import Any

from etude.product.sessions.bodies import AnswersBody, CreateBody, ForkBody, PromptBody, UndoBody
from etude.serving.openapi import Operation, document, parameter

_ONE = "/sessions/{session}"
_SHOWN = ("id", "directory", "model", "lines", "prompts", "stop", "open", "working", "now")
_RESTORED = ("written", "removed", "kept")


def _count(name: str) -> dict[str, Any]:
    return parameter(name, type="integer", minimum=0)


OPERATIONS: tuple[Operation, ...] = (
    Operation("/health", "get", "Whether work is taken", ("status", "open", "working", "streams")),
    Operation(
        "/sessions", "get", "The sessions there are, the newest first", ("sessions", "total"),
        parameters=(parameter("directory"), _count("limit")),
    ),
    Operation("/sessions", "post", "Begin a session in a directory", _SHOWN, CreateBody, status=201),
    Operation(_ONE, "get", "A session, and how it stands", _SHOWN),
    Operation(
        f"{_ONE}/events", "get", "Its log from any event on, and what goes on", parameters=(_count("after"),),
        answer="events",
    ),
    Operation(f"{_ONE}/diff", "get", "What changed since it began, as a patch", ("diff",)),
    Operation(f"{_ONE}/prompt", "post", "Say something to it", ("after",), PromptBody, status=202),
    Operation(f"{_ONE}/resume", "post", "Go on with a prompt that was cut short", ("after",), status=202),
    Operation(f"{_ONE}/compact", "post", "Have its model summarise now", ("after",), status=202),
    Operation(f"{_ONE}/cancel", "post", "Stop what it does", ("cancelled",)),
    Operation(f"{_ONE}/undo", "post", "Back by a prompt, or so many turns", _RESTORED, UndoBody, True),
    Operation(f"{_ONE}/redo", "post", "Take the last undo back", _RESTORED),
    Operation(f"{_ONE}/fork", "post", "A new session with its past", _SHOWN, ForkBody, True, status=201),
    Operation(f"{_ONE}/close", "post", "Let another process have it", ("closed",)),
    Operation(f"{_ONE}/permissions/{{request}}", "post", "Answer what it asks", ("answered",), AnswersBody),
)  # fmt: skip


def openapi() -> dict[str, Any]:
    """The document."""
    return document("Etude sessions", OPERATIONS)
