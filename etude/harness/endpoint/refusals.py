"""What an endpoint's refusal means: try again, and when, or an error that says what to do.

Owns the reading of statuses, of the bodies and headers beside them, and of errors inside an answer. Every server words
these differently; this module knows their words. Sends nothing.
"""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping
from typing import Any

from etude.errors import ConfigError, ContextOverflow, EndpointError, EtudeError
from etude.harness.endpoint.completion import BadAnswer
from etude.harness.endpoint.config import EndpointConfig

_BUSY = {408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529}
_TOO_LONG = (
    "context_length", "context length", "context window", "context size", "maximum context", "max_model_len",
    "prompt is too long", "input is too long", "too many tokens", "reduce the length", "longer than the m",
    "exceeds the maximum number of tokens", "exceeds the model", "context_window_exceeded",
)  # fmt: skip
_NO_MONEY = ("insufficient_quota", "billing", "credit balance", "insufficient credits", "payment required")
_TRANSIENT = ("overload", "server_error", "internal", "rate_limit", "timeout", "unavailable", "busy", "try again")


class RetryableError(Exception):
    """An attempt that failed and may be repeated; `after_s` is when the server wants to be asked again."""

    def __init__(self, why: str, after_s: float | None = None, silent: bool = False, unreached: bool = False) -> None:
        super().__init__(why)
        self.after_s, self.silent, self.unreached = after_s, silent, unreached


class UnknownParameter(EndpointError):
    """The server does not know a part of the request, and says so in `server_message`."""

    def __init__(self, message: str, server_message: str) -> None:
        super().__init__(message)
        self.server_message = server_message

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (str(self), self.server_message)


def refusal(
    config: EndpointConfig, path: str, status: int, headers: Mapping[str, str], body: bytes, models: str = ""
) -> RetryableError | EtudeError:
    """What to raise for an answer that is none. `models` are those the server has, where it was asked for them."""
    said, where = message_of(unkeyed(config, body)), f"{config.url}{path}"
    lower = said.lower()
    if any(sign in lower for sign in _TOO_LONG) and status != 429:
        return ContextOverflow(f"{where}: {said}")
    if status == 402 or (status in (403, 429) and any(sign in lower for sign in _NO_MONEY)):
        return EndpointError(f"{where} refuses for want of credit ({status}: {said}); see to the account of its key")
    if status in _BUSY:
        return RetryableError(f"status {status}: {said}", _retry_after(headers))
    if status in (401, 403):
        return EndpointError(f"{where} refuses the key ({status}: {said}); {_key_hint(config)}")
    if status in (404, 405):
        has = f"; it has {models}" if models else ""
        return EndpointError(
            f"{where} knows no such route or model ({status}: {said}){has}; endpoint.url is what comes before {path}, "
            f"usually ending in /v1, and endpoint.model is {config.model!r}"
        )
    if 300 <= status < 400:
        return EndpointError(f"{where} has moved to {headers.get('location', 'another place')}; set endpoint.url to it")
    return UnknownParameter(f"{where} does not take the request ({status}: {said})", said)


def error_of_fault(config: EndpointConfig, path: str, fault: BadAnswer) -> RetryableError | EtudeError:
    """What to raise for an error told inside an answer."""
    where, said = f"{config.url}{path}", unkeyed(config, str(fault).encode()).decode()
    lower = f"{said} {fault.code}".lower()
    if any(sign in lower for sign in _TOO_LONG):
        return ContextOverflow(f"{where}: {said}")
    if any(sign in lower for sign in _NO_MONEY):
        return EndpointError(f"{where} refuses for want of credit ({said}); see to the account of its key")
    if fault.code == "content_filter":
        return EndpointError(f"{where}: {said}, and it gives no answer; say it otherwise, or use another endpoint")
    if fault.code.isdigit():
        return refusal(config, path, int(fault.code), {}, said.encode())
    if not fault.code or any(sign in lower for sign in _TRANSIENT):
        return RetryableError(f"it says: {said}")
    return EndpointError(f"{where} gave up while it answered: {said} ({fault.code})")


def message_of(body: bytes) -> str:
    """The part of an error's body that a person reads; each server has its own form."""
    text = body.decode("utf-8", "replace").strip()
    try:
        said: Any = json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.split())[:300] or "it says no more"
    code = ""
    for _ in range(4):
        if isinstance(said, list) and said:
            said = said[0]
        if not isinstance(said, dict):
            break
        code = code or str(said.get("code") or "")
        said = next((said[key] for key in ("error", "message", "detail", "msg") if said.get(key)), str(said))
    told = str(said)[:300]
    return f"{told} [{code}]" if code and not code.isdigit() and code not in told else told


def unkeyed(config: EndpointConfig, said: bytes) -> bytes:
    """Without our key: some servers repeat it to us, and errors go to terminals, logs and sessions."""
    try:
        key = config.read_key()
    except ConfigError:  # it is gone meanwhile
        key = None
    return said.replace(key.encode(), b"(the key)") if key else said


def _key_hint(config: EndpointConfig) -> str:
    if config.key_env:
        return f"export a valid one in ${config.key_env}"
    if config.key_file is not None:
        return f"put a valid one into {config.key_file}"
    return "name the variable that holds one in endpoint.key_env"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """When the server wants to be asked again: in milliseconds, seconds, or as a date."""
    try:
        if told := headers.get("retry-after-ms"):
            return max(float(told) / 1000, 0.0)
        told = headers.get("retry-after", "")
        if told.replace(".", "", 1).isdigit():
            return float(told)
        return max(email.utils.parsedate_to_datetime(told).timestamp() - time.time(), 0.0) if told else None
    except (ValueError, OverflowError):
        return None
