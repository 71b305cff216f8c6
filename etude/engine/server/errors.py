"""How the engine's server refuses requests, in the form that OpenAI's clients read.

Owns `ApiError` and the one mapping of our errors to status, type and code. A message says what to change; what went
wrong on our side never tells more than its kind.
"""

from __future__ import annotations

from typing import Any

from etude.errors import ConfigError, ContextOverflow, DeadlineExceeded, EtudeError, InvalidRequest, WeightError
from etude.serving.wire import Answer, Denied, bug, dump

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_CODES = {"unauthorized": "invalid_api_key", "too_large": "request_too_large"}
"""Of what no route has seen, where OpenAI has another word than ours."""


class ApiError(EtudeError):
    """A request is refused. `param` is the path of the field to blame, `code` what a program can tell it by."""

    def __init__(
        self, status: int, message: str, code: str, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after_s = status, code, param, retry_after_s


def bad(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A field of the body is wrong."""
    return ApiError(400, f"{param}: {message}", code, param)


def error_object(error: Exception) -> dict[str, Any]:
    """{"message", "type", "param", "code"}, as it stands in a body or in a stream."""
    known = _as_api_error(error)
    kind = _TYPES.get(known.status, "server_error")
    return {"message": str(known), "type": kind, "param": known.param, "code": known.code}


def answer_of(error: Exception) -> Answer:
    """An error as a whole answer."""
    known = _as_api_error(error)
    body = {"type": "error", "error": error_object(known)}  # the type is for Anthropic's clients
    return Answer(known.status, dump(body), known.retry_after_s)


def _as_api_error(error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case Denied():
            return ApiError(error.status, str(error), _CODES.get(error.kind, error.kind))
        case ContextOverflow():
            return ApiError(400, f"{error}; shorten the prompt or ask for fewer tokens", "context_length_exceeded")
        case InvalidRequest() | ConfigError():
            return ApiError(400, str(error), "invalid_value")
        case DeadlineExceeded():
            return ApiError(504, str(error), "deadline_exceeded")
        case WeightError():
            return ApiError(409, str(error), "weights_refused")
        case EtudeError():
            return ApiError(503, str(error), "engine_down")
    return ApiError(500, bug(error), "internal_error")
