"""GET /openapi.json: what may be asked of the engine, as OpenAPI 3.1.

Owns the list of operations. docs/serving.md has what their answers hold beyond what is named here.
"""

from __future__ import annotations

from typing import Any, get_args

from etude.engine.server import anthropic, blocks, bodies, chat, completions, generate, loans, responses
from etude.engine.server.service import PauseMode
from etude.serving.openapi import Operation, document, parameter

_MODE = parameter("mode", type="string", enum=list(get_args(PauseMode)))
_WORD = {"type": "string"}
_ERROR = {"message": _WORD, "type": _WORD, "param": {"type": ["string", "null"]}, "code": _WORD}

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
    Operation("/v1/models/{model}", "get", "One model", ("id", "object")),
    Operation("/health", "get", "Whether requests are taken", ("status",)),
    Operation("/metrics", "get", "Figures for Prometheus", answer="text"),
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


def openapi() -> dict[str, Any]:
    """The document."""
    return document("Etude engine", OPERATIONS, _ERROR)
