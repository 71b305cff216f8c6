"""What the environment server and its client say to each other: bodies, and errors by their names.

Owns the form of each and both directions of every conversion, so that an error raised beside a sandbox is the same
error at the other end of the wire. What all our servers say alike is `serving.wire`'s.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from etude.config import Config
from etude.environments.base import WORKSPACE, ExecResult, Resources, SandboxSpec
from etude.errors import ConfigError, DeadlineExceeded, EtudeError, SandboxError, SandboxSpoiled
from etude.serving.wire import DENIED, Answer, Kinds, answered, dump, refusal

KEY = "Idempotency-Key"
"""The header that names a request, so that sending it again is never doing it again."""
UNDER_WAY = 202
"""The status of an answer that says: still at it, ask again with the same key."""
SPOILED = "spoiled"
"""What ran in a sandbox made it unusable: the kind of SandboxSpoiled, and how such a sandbox ended."""
Isolation = Literal["namespace", "container", "vm"]
READ_MAX = 60 << 20
"""The longest file that is read at once, in bytes."""

_KINDS: dict[str, tuple[int, bool]] = {
    "not_found": (404, False),
    "paused": (409, False),
    "cancelled": (409, False),
    "expired": (410, False),
    "ended": (410, False),
    "lost": (410, True),
    "key_reused": (422, False),
    "busy": (429, True),
    "sandbox": (502, True),
    "draining": (503, True),
    "ending": (503, True),
    "interrupted": (503, True),
    "unwritable": (507, True),
    **{kind: (status, False) for kind, status in DENIED.items()},
}
"""Errors that only a server has -> HTTP status, and whether trying again (with a new key; where need be, in a new
sandbox) can be expected to work."""


class ServerError(SandboxError):
    """What a server says no to, by one of the names above; the same object at both ends of the wire."""

    def __init__(self, kind: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s

    @property
    def retryable(self) -> bool:
        return _KINDS[self.kind][1]

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.kind, str(self))


def gone(how: str, message: str) -> SandboxError:
    """What is said of a sandbox that is not there any more; `how` it ended is a kind, or SPOILED."""
    return SandboxSpoiled(message) if how == SPOILED else ServerError(how, message)


def _content(value: object) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else b"?", validate=True)
    except binascii.Error:
        raise ValueError("must be base64") from None


Content = Annotated[bytes, BeforeValidator(_content)]


class _Body(Config):
    model_config = ConfigDict(allow_inf_nan=False)


LONGEST_S = 365 * 86_400.0
"""What a duration may be at most: clocks of ours count it in milliseconds, kernels in less."""


class CreateBody(_Body):
    """POST /sandboxes. Without `backend` and `isolation`, the server's first backend; with either, that or an error."""

    backend: str | None = None
    isolation: Isolation | None = None
    image: str = Field("host", pattern=r"^[ -~]{1,1024}$")
    base: str | None = None
    files: dict[str, Content] = {}
    resources: Resources = Resources()
    ttl_s: float | None = Field(None, gt=0, le=LONGEST_S)
    labels: dict[str, str] = {}
    egress: Annotated[tuple[str, ...], Field(fail_fast=True)] | None = None


class ExecBody(_Body):
    """POST /sandboxes/ID/exec."""

    command: str
    cwd: str = WORKSPACE
    timeout_s: float | None = Field(60.0, gt=0, le=LONGEST_S)
    """None only for a command in the background."""
    env: dict[str, str] = {}
    max_output_bytes: int = Field(30_000, ge=0, le=1 << 30)
    background: bool = False


class ForkBody(_Body):
    n: int = Field(1, ge=1, le=1000)


class NoBody(_Body):
    """Of a request that says everything by its path."""


class TtlBody(_Body):
    ttl_s: float = Field(gt=0, le=LONGEST_S)


def create_body(spec: SandboxSpec, backend: str | None, isolation: Isolation | None) -> bytes:
    """What asks a server for `spec`."""
    body: dict[str, Any] = {"backend": backend, "isolation": isolation, "image": spec.image, "ttl_s": spec.ttl_s}
    body["base"] = spec.base.id if spec.base else None
    body["egress"] = spec.egress
    return dump({**body, "files": dict(spec.files), "resources": spec.resources, "labels": dict(spec.labels)})


def exec_result(said: dict[str, Any]) -> ExecResult:
    """`said` is an answer's form of one."""
    output = base64.b64decode(said["output"])
    return ExecResult(said["exit_code"], output, said["timed_out"], said["log_path"])


_OTHERS: Kinds = {
    ConfigError: (400, "config", False),
    DeadlineExceeded: (504, "deadline", True),
    SandboxSpoiled: (410, SPOILED, False),
    EtudeError: (502, "sandbox", True),
}
"""Errors that are the same without a server."""
_OF_ERRNO = {errno.ENOENT: 404, errno.ESRCH: 404, errno.EACCES: 403, errno.EPERM: 403}


def answer_of(error: Exception) -> Answer:
    """An error in the form it is sent in: {"error": {"kind", "message", "retryable", ...}}."""
    match error:
        case ServerError():
            status, retryable = _KINDS[error.kind]
            return refusal(status, error.kind, str(error), retryable, error.retry_after_s)
        case DeadlineExceeded():
            return answered(error, _OTHERS, waited_for=error.waited_for, seconds=error.seconds)
        case OSError():
            return refusal(
                _OF_ERRNO.get(error.errno or 0, 409), "os", str(error),
                errno=error.errno, strerror=error.strerror, filename=error.filename,
            )  # fmt: skip
    return answered(error, _OTHERS)


def error_of(body: bytes, where: str) -> Exception:
    """The error that `answer_of` put into an answer. `where` names the server, for answers that hold none."""
    try:
        said = json.loads(body)["error"]
        kind, message = said["kind"], said["message"]
    except (ValueError, KeyError, TypeError):
        return SandboxError(f"{where} is no environment server, or something stands before it: {body[:200]!r}")
    if kind in _KINDS:
        return ServerError(kind, message, said.get("retry_after_s"))
    if kind == SPOILED:
        return gone(kind, message)
    if kind == "config":
        return ConfigError(message)
    if kind == "deadline":
        return DeadlineExceeded(said["waited_for"], said["seconds"])
    if kind == "os":
        named = (said["errno"], said["strerror"])
        return OSError(*named, said["filename"]) if said["filename"] is not None else OSError(*named)
    return SandboxError(f"{where}: {message}")
