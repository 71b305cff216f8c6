"""Requests to a foreign engine's server, with deadlines, and errors that say what to do.

Owns one HTTP client: what a busy server, a broken connection and a refusal each lead to. Sampling changes nothing at
the server, so a request whose connection broke is sent again; what is running there ends when its connection does.
Knows no route.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from etude.errors import ConfigError, ContextOverflow, DeadlineExceeded, EtudeError
from etude.serving.trust import trust

_BUSY = {429, 502, 503, 504}
_TOO_LONG = ("context length", "max_model_len", "longer than the maximum", "longer than the model")
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0


class ServerRefused(EtudeError):
    """A foreign engine's server would not do what it was asked."""


class ServerConnection:
    """To one server. Use on one event loop; the caller closes it.

    `hints` say what to do about a status that the kind of server gives for a known reason.
    """

    def __init__(self, url: str, token: str | None, hints: Mapping[int, str]) -> None:
        self.url, self._hints = url.rstrip("/"), hints
        self.retries = 0
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx2.Timeout(None, connect=5.0),  # each call has its deadline
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=4.0),
            trust_env=False,
            verify=trust(self.url),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def post(
        self, path: str, what: str, deadline_s: float, body: Mapping[str, Any] | None = None, **params: str | int
    ) -> Any:
        """The answer's JSON, or None for an empty one. `what` appears in errors."""
        return await self._ask("POST", path, what, deadline_s, body, params)

    async def get(self, path: str, what: str, deadline_s: float) -> Any:
        return await self._ask("GET", path, what, deadline_s, None, {})

    async def _ask(
        self, method: str, path: str, what: str, deadline_s: float, body: Mapping[str, Any] | None, params: Any
    ) -> Any:
        last = "no answer yet"
        pause_s = _PAUSE_S
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    try:
                        response = await self._http.request(method, path, json=body, params=params)
                    except httpx2.TransportError as error:
                        last, wait_s = f"{type(error).__name__}: {error}", pause_s
                    else:
                        if response.is_success:
                            return self._read(response, what)
                        last, wait_s = self._refusal(response, what, path), _retry_after(response, pause_s)
                    self.retries += 1
                    await asyncio.sleep(wait_s * random.uniform(1.0, 1.5))
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except TimeoutError:
            raise DeadlineExceeded(f"{self.url}{path} to {what}", deadline_s, last) from None

    def _read(self, response: httpx2.Response, what: str) -> Any:
        if not response.content:
            return None
        try:
            return response.json()
        except json.JSONDecodeError:
            if response.headers.get("content-type", "").startswith("text/plain"):
                return None
            raise ServerRefused(
                f"{self.url} was to {what} and answered no JSON ({response.text[:80]!r}); is it the right server?"
            ) from None

    def _refusal(self, response: httpx2.Response, what: str, path: str) -> str:
        """What a busy server said; raises for any other."""
        said = _message(response)
        if response.status_code in _BUSY:
            return f"status {response.status_code}: {said}"
        if response.status_code in (400, 413, 422) and any(sign in said for sign in _TOO_LONG):
            raise ContextOverflow(f"{self.url} was to {what}: {said}")
        hint = self._hints.get(response.status_code)
        raise ServerRefused(
            f"{self.url}{path} was to {what} and answered {response.status_code}: {said}{f'; {hint}' if hint else ''}"
        )


def _retry_after(response: httpx2.Response, pause_s: float) -> float:
    """How long to wait before asking again: what the server says, if it says so in seconds."""
    told = response.headers.get("retry-after", "")
    return min(float(told), _LONGEST_PAUSE_S) if told.isdigit() else pause_s


def _message(response: httpx2.Response) -> str:
    """The part of an error's body that a person reads; each server has its own form."""
    try:
        body = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        return response.text[:300].strip()
    for _ in range(3):
        if not isinstance(body, dict):
            break
        body = next((body[key] for key in ("error", "message", "detail") if body.get(key)), str(body))
    return str(body)[:300]


def read_token(path: Path | None) -> str | None:
    """The key in a token file. Raises ConfigError if it cannot be read."""
    if path is None:
        return None
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"engine.token_file: {path} cannot be read: {error.strerror}") from None
