"""Answers of our servers as they are sent.

Owns `respond`, and `whole_number` of what a request's address holds. Knows no route, and no form of what an answer
holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.responses import Response

from etude.environments.wire import Answer
from etude.errors import ConfigError

_DIGITS = 15
"""More than any count of ours has; Python refuses to read numbers of thousands."""


def respond(answer: Answer, headers: Mapping[str, str] | None = None) -> Response:
    """An answer as it is sent."""
    told = dict(headers or {})
    if answer.retry_after_s is not None:
        told["Retry-After"] = str(math.ceil(answer.retry_after_s))
    return Response(answer.body, answer.status, told, media_type="application/json")


def whole_number(name: str, text: str) -> int:
    """Of a query's or a path's text. Raises ConfigError; `²` is a digit to Python, and no number here."""
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        raise ConfigError(f"{name}: {text[:40]!r} is no whole number, or one too large")
    return int(text)
