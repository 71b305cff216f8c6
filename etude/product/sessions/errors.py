"""How the server of sessions refuses requests, in the form that Etude's servers share.

Owns `Refused` and the one mapping of our errors to status and kind. A message says what to change; what went wrong on
our side never tells more than its kind.
"""

from __future__ import annotations

from etude.errors import CheckpointError, ConfigError, DeadlineExceeded, EtudeError, MissingDependency, Overloaded
from etude.serving.wire import Answer, Kinds, answered, named, refusal

_REFUSED = {
    "invalid": (400, False),
    "forbidden": (403, False),
    "not_found": (404, False),
    "conflict": (409, False),
    "working": (409, True),
    "idle": (409, False),
    "busy": (429, True),
    "draining": (503, True),
}
"""Why a request is refused -> HTTP status, and whether trying again can be expected to work."""
_KINDS: Kinds = {
    ConfigError: (400, "invalid", False),
    CheckpointError: (409, "conflict", False),
    DeadlineExceeded: (504, "deadline", True),
    MissingDependency: (501, "missing", False),
    Overloaded: (429, "busy", True),
    EtudeError: (502, "failed", False),
}


class Refused(EtudeError):
    """A request is refused, for a reason that `kind` names to programs."""

    def __init__(self, kind: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind, self.retry_after_s = kind, retry_after_s


def answer_of(error: Exception) -> Answer:
    """An error as a whole answer: {"error": {"kind", "message", "retryable"}}."""
    if isinstance(error, Refused):
        status, retryable = _REFUSED[error.kind]
        return refusal(status, error.kind, str(error), retryable, error.retry_after_s)
    return answered(error, _KINDS)


def error_sentence(error: Exception) -> str:
    """An error as a sentence, for who watches a session."""
    return named(error, _KINDS)[-1]
