"""Requests to an endpoint, and answers as they stream: retries with pauses, and deadlines that say what they were for.

Owns one HTTP client. Asking for a message changes nothing at the server, so one that broke off is asked for anew, from
its beginning: half a message is never used. Knows no dialect: a `Reader` takes the events.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, EndpointError
from etude.harness.endpoint.completion import BadAnswer, Completion, OnDelta, Reader, Retry
from etude.harness.endpoint.config import EndpointConfig
from etude.harness.endpoint.refusals import RetryableError, error_of_fault, refusal, unkeyed
from etude.serving.trust import trust

REQUEST_ID = "X-ACP-Model-Request-ID"
"""The header by which a trainer that listens on the endpoint tells which request became what in a session."""
_FIRST_PAUSE_S = 0.5
_MODELS_S = 5.0
_MODELS_MAX = 8 << 20
_REFUSAL_MAX = 64 << 10
_ANSWER_MAX = 64 << 20
"""Bytes of a message, in events or whole: a server that never ends must not fill our memory."""
_DONE = "[DONE]"
_LONGEST_PAUSE_S = 20.0
"""Between two attempts, unless the server itself names a longer one."""


@dataclass(frozen=True)
class Timeouts:
    """How long an endpoint may take, before `[deadlines] scale`."""

    connect_s: float = 10.0
    """To be reached at all."""
    silence_s: float = 180.0
    """Longest silence of a server that has been asked, before its first word or between two: some think that long."""
    message_s: float = 900.0
    """For all attempts at a message, counted anew from each event: an answer may take as long as it will."""


TIMEOUTS = Timeouts()


class Wire:
    """To one endpoint. Use on one event loop; the caller closes it."""

    def __init__(self, config: EndpointConfig, patience: Timeouts = TIMEOUTS) -> None:
        self._config = config
        self._connect_s, self._silence_s = scaled(patience.connect_s), scaled(patience.silence_s)
        self._message_s = scaled(patience.message_s)
        self.retries = 0
        self._reached = False
        key = config.read_key()
        self._http = httpx2.AsyncClient(
            headers={**({"Authorization": f"Bearer {key}"} if key else {}), **config.headers},
            timeout=httpx2.Timeout(self._silence_s, connect=self._connect_s, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=16, keepalive_expiry=30.0),
            trust_env=not config.is_local,
            verify=trust(config.url, by_environment=not config.is_local),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self, path: str, body: bytes, reader: Callable[[], Reader], tell: OnDelta, request_id: str
    ) -> Completion:
        """One message. Raises EndpointError, ContextOverflow or DeadlineExceeded."""
        what, last, started = f"{self._config.url}{path} to write a message", "no answer yet", time.monotonic()
        deadline = asyncio.timeout(self._message_s)
        try:
            async with deadline:
                attempt = 0
                while True:
                    attempt += 1
                    try:
                        return await self._attempt(path, body, reader(), request_id, deadline)
                    except RetryableError as failed:
                        last = str(failed)
                        if attempt == self._attempts:
                            raise self._given_up(failed, attempt, what, started) from None
                        await self._pause(failed, attempt, what, started, tell)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise DeadlineExceeded(what, self._message_s, last) from None

    async def models(self) -> list[str]:
        """The names of the models that the server says it has; none where it does not say."""
        try:
            async with asyncio.timeout(_MODELS_S):
                return [str(model["id"]) for model in await list_models(self._http, self._config.url)]
        except (TimeoutError, NoModels):
            return []

    # --- one attempt --------------------------------------------------------------------------------------------------

    async def _attempt(
        self, path: str, body: bytes, reader: Reader, request_id: str, deadline: asyncio.Timeout
    ) -> Completion:
        """Raises RetryableError where another may help."""
        try:
            async with self._http.stream(
                "POST",
                f"{self._config.url}{path}",
                content=body,
                headers={
                    "Content-Type": "application/json",
                    "Accept": "text/event-stream, application/json",
                    REQUEST_ID: request_id,
                },
            ) as response:
                self._reached = True
                if not response.is_success:
                    await self._refused(path, response)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    await self._read_events(response, reader, deadline)
                else:
                    self._read_whole(await read_bounded(response, _ANSWER_MAX), reader, path)
            return reader.completion()
        except BadAnswer as fault:
            raise error_of_fault(self._config, path, fault) from None
        except httpx2.TimeoutException as error:
            dead = isinstance(error, httpx2.ConnectTimeout)
            said = f"silence for {self._connect_s if dead else self._silence_s:g} s"
            raise RetryableError(said, silent=not dead, unreached=dead) from None
        except httpx2.TransportError as error:
            dead = isinstance(error, httpx2.ConnectError) or not self._reached
            raise RetryableError(f"{type(error).__name__}: {error}", unreached=dead) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:  # what no other attempt would change
            raise EndpointError(f"{self._config.url}{path}: {error}; is endpoint.url right?") from None

    async def _read_events(self, response: httpx2.Response, reader: Reader, deadline: asyncio.Timeout) -> None:
        count, size, now = 0, 0, asyncio.get_running_loop().time
        try:
            async for event in httpx2.EventSource(response, _ANSWER_MAX):
                if event.data.strip() == _DONE:
                    break
                if event.data:
                    count, size = count + 1, size + len(event.data)
                    if size > _ANSWER_MAX:
                        raise _too_long(response, _ANSWER_MAX)
                    deadline.reschedule(now() + self._message_s)
                    reader.event(self._object(event.data))
        except httpx2.TransportError:
            if not reader.complete:  # else all that is missing is the farewell
                raise
        if not reader.complete:
            raise RetryableError(f"the stream broke off after {count} events")

    def _read_whole(self, body: bytes, reader: Reader, path: str) -> None:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            said = unkeyed(self._config, body)[:80]
            raise EndpointError(
                f"{self._config.url}{path} answers what is no JSON object ({said!r}); is endpoint.url right?"
            )
        reader.whole(answer)

    def _object(self, data: str) -> dict[str, object]:
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            said = unkeyed(self._config, data.encode()).decode()[:80]
            raise RetryableError(f"an event that is no JSON object: {said!r}")
        return event

    async def _refused(self, path: str, response: httpx2.Response) -> None:
        body, status = await read_bounded(response, _REFUSAL_MAX, cut=True), response.status_code
        models = ", ".join((await self.models())[:12]) if status == 404 else ""
        raise refusal(self._config, path, status, response.headers, body, models)

    # --- between attempts ---------------------------------------------------------------------------------------------

    @property
    def _attempts(self) -> int:
        """A server that was never reached is more likely absent than busy."""
        return self._config.attempts if self._reached else min(2, self._config.attempts)

    async def _pause(self, failed: RetryableError, attempt: int, what: str, started: float, tell: OnDelta) -> None:
        pause = min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
        if failed.after_s is not None:
            pause = failed.after_s + random.uniform(0.0, 0.1)
            left = self._message_s - (time.monotonic() - started)
            if pause > left:
                asks = f"it asks for a pause of {failed.after_s:.0f} s, and deadlines.scale leaves {left:.0f}"
                raise DeadlineExceeded(what, time.monotonic() - started, f"{failed}; {asks}")
        self.retries += 1
        tell(Retry(str(failed), pause))
        await asyncio.sleep(pause)

    def _given_up(self, failed: RetryableError, attempts: int, what: str, started: float) -> Exception:
        if failed.silent:
            return DeadlineExceeded(what, time.monotonic() - started, f"{failed}, after {attempts} attempts")
        if failed.unreached:
            return EndpointError(
                f"{self._config.url} cannot be reached ({failed}); is it running, and endpoint.url right?"
            )
        return EndpointError(f"waited for {what}, and it failed {attempts} times, at last with {failed}")


class NoModels(Exception):
    """The server does not say which models it has."""


async def list_models(http: httpx2.AsyncClient, url: str) -> list[dict[str, Any]]:
    """What a server says of the models it has, each with an `id`. Raises NoModels where it says nothing of the kind."""
    try:
        async with http.stream("GET", f"{url}/models") as response:
            said = json.loads(await read_bounded(response, _MODELS_MAX))
        return [dict(model) for model in said["data"] if model["id"]]
    except (EndpointError, httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError, RecursionError):
        raise NoModels from None


async def read_bounded(response: httpx2.Response, most: int, cut: bool = False) -> bytes:
    """An answer's body, unpacked. Of one above `most` bytes its beginning with `cut`; otherwise EndpointError."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > most:
            if cut:
                break
            raise _too_long(response, most)
    return bytes(body[:most])


def _too_long(response: httpx2.Response, most: int) -> EndpointError:
    return EndpointError(f"{response.url} answers with more than {most >> 20} MiB; is endpoint.url right?")
