"""GET /openapi.json: what may be asked of the engine, as OpenAPI 3.1.

Owns the list of those that have operations. docs/serving.md has what their answers hold beyond what is named here.
"""

from __future__ import annotations

from typing import Any

from etude.engine.server.anthropic import Messages
from etude.engine.server.chat import Chat
from etude.engine.server.completions import Completions
from etude.engine.server.control import Control
from etude.engine.server.generate import Generate
from etude.engine.server.loans import Loans
from etude.engine.server.responses import Responses
from etude.serving.openapi import Operation, document, operations_of

_WORD = {"type": "string"}
_ERROR = {"message": _WORD, "type": _WORD, "param": {"type": ["string", "null"]}, "code": _WORD}

OPERATIONS: tuple[Operation, ...] = operations_of(Chat, Completions, Responses, Messages, Generate, Control, Loans)


def openapi() -> dict[str, Any]:
    """The document."""
    return document("Etude engine", OPERATIONS, _ERROR)
