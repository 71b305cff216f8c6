"""Requests to an environment server that are carried out once, however often the connection breaks.

Owns one HTTP client: keys, retries, what a broken connection, a busy server and a cancelled caller each lead to. Knows
no route. A server that answers may take as long as it likes, since it keeps the deadlines of what is asked; one that
does not answer has `unreachable_s`.
"""

from __future__ import annotations

import asyncio
import base64
import random
import secrets
import time
from collections.abc import AsyncIterator

import httpx2

from etude.environments.far import TURN_S
from etude.environments.remote import RemoteConfig
from etude.environments.wire import KEY, UNDER_WAY, ServerError, error_of
from etude.errors import DeadlineExceeded, SandboxError
from etude.serving.tracing import outgoing
from etude.serving.trust import trust

_READ_S = TURN_S + 25.0
_CANCEL_S = 30.0
_EVENT_MAX = 64 << 20


class Connection:
    """To one server. Use on one event loop; the caller closes it."""

    def __init__(self, config: RemoteConfig, token: str) -> None:
        self._config = config
        self._http = httpx2.AsyncClient(
            base_url=config.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(60.0, connect=5.0, read=_READ_S, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=4.0),
            verify=trust(config.url),
            trust_env=False,  # sandboxes are reached directly, whatever proxy this machine's browsers use
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, what: str) -> bytes:
        return await self._answered("GET", path, what, b"", {})

    async def ask(self, method: str, path: str, what: str, body: bytes = b"") -> bytes:
        """Have something done, once. Returns the answer; raises what the server says. `what` appears in errors.

        Who is cancelled leaves nothing behind: the server is told to stop, and has stopped when this returns."""
        key = secrets.token_hex(16)
        headers = {KEY: key, "Prefer": f"wait={TURN_S:.0f}"}
        try:
            return await self._answered(method, path, what, body, headers)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.ensure_future(self._cancel(key)))
            raise

    async def events(self, path: str, what: str) -> AsyncIterator[bytes]:
        """A stream of output from its beginning to its end, whole also where the connection breaks."""
        self._must_be_open(what)
        at, patience = 0, _Patience(self._config.unreachable_s, what, self._config.url)
        while True:
            try:
                async with self._http.sse(
                    path, params={"from": at}, headers=outgoing(), max_event_size=_EVENT_MAX
                ) as source:
                    if source.response.status_code != 200:
                        raise error_of(await source.response.aread(), self._config.url)
                    async for event in source:
                        patience.renew()
                        if event.event == "output":
                            piece = base64.b64decode(event.data)
                            at += len(piece)
                            yield piece
                        elif event.event == "error":
                            raise error_of(event.data.encode(), self._config.url)
                        elif event.event == "end":
                            return
                await patience.wait("the stream broke off")
            except httpx2.TransportError as error:
                await patience.wait(str(error) or type(error).__name__)

    # ----------------------------------------------------------------------------------------------------------------

    async def _answered(self, method: str, path: str, what: str, body: bytes, headers: dict[str, str]) -> bytes:
        """Send, again where need be, until there is an answer to return or an error to raise."""
        self._must_be_open(what)
        patience = _Patience(self._config.unreachable_s, what, self._config.url)
        refused_until = time.monotonic() + self._config.busy_s
        headers = {**headers, **outgoing()}
        while True:
            try:
                response = await self._http.request(method, path, content=body, headers=headers)
            except httpx2.TransportError as error:
                await patience.wait(str(error) or type(error).__name__)
                continue
            patience.renew()
            if response.status_code == UNDER_WAY:
                continue
            if response.is_success:
                return response.content
            error = error_of(response.content, self._config.url)
            if not isinstance(error, ServerError) or error.retry_after_s is None:
                raise error
            if time.monotonic() + error.retry_after_s > refused_until:
                raise error
            await asyncio.sleep(error.retry_after_s * random.uniform(1.0, 1.5))

    def _must_be_open(self, what: str) -> None:
        if self._http.is_closed:
            raise SandboxError(f"{what}: the backend at {self._config.url} is closed")

    async def _cancel(self, key: str) -> None:
        try:
            await self._http.delete(f"/requests/{key}", timeout=_CANCEL_S)
        except httpx2.TransportError:
            return  # unreachable: the sandbox's time to live is what is left


class _Patience:
    """How long a server has not been reached, and when to try again."""

    def __init__(self, unreachable_s: float, what: str, url: str) -> None:
        self._limit_s, self._what, self._url = unreachable_s, what, url
        self.renew()

    def renew(self) -> None:
        self._since, self._pause_s = time.monotonic(), 0.05

    async def wait(self, why: str) -> None:
        """Raises DeadlineExceeded when it has been too long."""
        if time.monotonic() - self._since + self._pause_s > self._limit_s:
            raise DeadlineExceeded(f"{self._url} to answer ({self._what})", self._limit_s, why)
        await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(self._pause_s * 2, 2.0)
