"""Answers of our servers as they are sent.

Owns `respond`. Knows no route, and no form of what an answer holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.responses import Response

from etude.environments.wire import Answer


def respond(answer: Answer, headers: Mapping[str, str] | None = None) -> Response:
    """An answer as it is sent."""
    told = dict(headers or {})
    if answer.retry_after_s is not None:
        told["Retry-After"] = str(math.ceil(answer.retry_after_s))
    return Response(answer.body, answer.status, told, media_type="application/json")
