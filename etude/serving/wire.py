"""What every server of ours says alike: answers and refusals as JSON, and the reading of what it is asked.

Owns `Answer`, `Denied` and the one form of an error, {"error": {"kind", "message", "retryable", …}}. Bytes inside JSON
are base64. Knows nothing of HTTP beyond the status of an error, and none of what a server of one room says besides.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from etude.config import Config
from etude.errors import ConfigError, EtudeError

B = TypeVar("B", bound=Config)
Kinds = Mapping[type[Exception], tuple[int, str, bool]]
"""Classes of errors, narrower ones first -> HTTP status, kind, and whether trying again can be expected to work."""
DENIED = {"malformed": 400, "unauthorized": 401, "forbidden": 403, "no_route": 404, "too_large": 413}
"""What is refused before any route has seen it -> HTTP status."""
_TOLD_FAULTS, _MOST_FAULTS = 8, 1000
"""How much that is wrong is told apart, and of how much at most anything is."""
LONGEST_PATH = 300
"""Characters of the path of what is wrong."""
_DIGITS = 15
"""More than any count of ours has; Python refuses to read numbers of thousands."""


@dataclass(frozen=True)
class Answer:
    """What is sent back."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    """When to come again, of a refusal before anything was done."""


class Denied(EtudeError):
    """A request that no route has seen, by one of the names above. `status` where it is another than usual."""

    def __init__(self, kind: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.status = kind, status or DENIED[kind]


def refusal(
    status: int, kind: str, message: str, retryable: bool = False, retry_after_s: float | None = None, **more: Any
) -> Answer:
    """An error in the form of all our servers."""
    said = {"kind": kind, "message": message, "retryable": retryable, **more}
    if retry_after_s is not None:
        said["retry_after_s"] = retry_after_s
    return Answer(status, dump({"error": said}), retry_after_s)


def denial(error: Denied) -> Answer:
    """The same of what no route has seen."""
    return refusal(error.status, error.kind, str(error))


def bug(error: Exception) -> str:
    """What is told of an error that nobody foresaw: never more than its kind."""
    return f"a bug of the server: {type(error).__name__}; its log has the rest"


def named(error: Exception, kinds: Kinds) -> tuple[int, str, bool, str]:
    """What is told of an error, and its message, by the first of `kinds` that it is of; else that it is a bug."""
    found = next((said for kind, said in kinds.items() if isinstance(error, kind)), None)
    return (500, "internal", False, bug(error)) if found is None else (*found, str(error))


def answered(error: Exception, kinds: Kinds, **more: Any) -> Answer:
    """An error in the form of all our servers, with what only this kind of error has."""
    if isinstance(error, Denied):
        return denial(error)
    status, kind, retryable, message = named(error, kinds)
    return refusal(status, kind, message, retryable, **more)


def dump(value: object) -> bytes:
    """JSON. Names of files that are not UTF-8 survive, as escaped surrogates; a number that JSON does not have, such as
    a loss that is infinite, is null."""
    try:
        return json.dumps(value, default=_plain, separators=(",", ":"), allow_nan=False).encode("ascii")
    except ValueError:
        return json.dumps(_finite(value), default=_plain, separators=(",", ":")).encode("ascii")


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return _finite(_plain(value)) if is_dataclass(value) else value


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def parse_body(raw: bytes, schema: type[B]) -> B:
    """Raises ConfigError, which has the paths of the first wrong keys. Texts that are not UTF-8 come as `dump` sends
    them.
    """
    try:
        said = json.loads(raw or b"{}")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"body: not JSON: {error}") from None
    try:
        return schema.model_validate(said)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, item['loc']))[:LONGEST_PATH] or 'body'}: {item['msg']}" for item in faults(error)]
        raise ConfigError("; ".join(wrong)) from None


def faults(error: ValidationError) -> Sequence[Mapping[str, Any]]:
    """The first things that are wrong, as pydantic tells of them. Where there are very many none is told apart: that
    takes longer than it took to find them.
    """
    if (count := error.error_count()) > _MOST_FAULTS:
        return [{"type": "flood", "loc": (), "msg": f"{count} things are wrong in it; GET /openapi.json has its form"}]
    return error.errors(include_url=False, include_context=False, include_input=False)[:_TOLD_FAULTS]


def whole_number(name: str, text: str) -> int:
    """Of a query's or a path's text. Raises ConfigError; `²` is a digit to Python, and no number here."""
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS:
        raise ConfigError(f"{name}: {text[:40]!r} is no whole number, or one too large")
    return int(text)
