"""How the server of sessions refuses requests, in the form that Etude's servers share.

Owns `Refused` and the one mapping of our errors to status and kind. A message says what to change; what went wrong on
our side never tells more than its kind.
"""

from __future__ import annotations

from etude.errors import CheckpointError, ConfigError, DeadlineExceeded, EtudeError, MissingDependency, Overloaded
from etude.serving.wire import Answer, Denied, bug, refusal

_STATUS = {
    "invalid": 400,
    "not_found": 404,
    "conflict": 409,
    "working": 409,
    "idle": 409,
    "busy": 429,
    "draining": 503,
}
_RETRYABLE = {"working", "busy", "draining", "deadline"}


class Refused(EtudeError):
    """A request is refused, for a reason that `kind` names to programs."""

    def __init__(self, kind: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind, self.retry_after_s = kind, retry_after_s


def answer_of(error: Exception) -> Answer:
    """An error as a whole answer: {"error": {"kind", "message", "retryable"}}."""
    status, kind, message = _said(error)
    retry_after_s = error.retry_after_s if isinstance(error, Refused) else None
    return refusal(status, kind, message, kind in _RETRYABLE, retry_after_s)


def told(error: Exception) -> str:
    """An error as a sentence, for who watches a session."""
    return _said(error)[2]


def _said(error: Exception) -> tuple[int, str, str]:
    match error:
        case Refused():
            return _STATUS[error.kind], error.kind, str(error)
        case Denied():
            return error.status, error.kind, str(error)
        case ConfigError():
            return 400, "invalid", str(error)
        case CheckpointError():
            return 409, "conflict", str(error)
        case DeadlineExceeded():
            return 504, "deadline", str(error)
        case MissingDependency():
            return 501, "missing", str(error)
        case Overloaded():
            return 429, "busy", str(error)
        case EtudeError():
            return 502, "failed", str(error)
    return 500, "internal", bug(error)
