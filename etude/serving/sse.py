"""Streams of server-sent events that say that they are alive.

Owns the silence: a comment is sent after a while without events, so that who listens, and what stands between, knows we
are there; and the end: whatever a stream holds is let go with it, however that came about. Knows nothing of what the
events say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

SILENCE_S = 15.0
"""After so long without an event a comment is sent."""


async def with_keepalives(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same events, with comments in long pauses. Closing it closes `events` first, whatever they wait for."""
    following = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({following}, timeout=SILENCE_S)
            if not done:
                yield b": still here\n\n"
                continue
            if (event := following.result()) is None:
                return
            yield event
            following = asyncio.ensure_future(anext(events, None))
    finally:
        following.cancel()
        await asyncio.wait({following})
        await events.aclose()


class EventStream(StreamingResponse):
    """Server-sent events. What is `held` is let go when the last was sent, or nobody listens any more."""

    def __init__(
        self, events: AsyncGenerator[bytes], held: ExitStack | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self._events, self._held = with_keepalives(events), held or ExitStack()
        told = {"Cache-Control": "no-store", **(headers or {})}
        super().__init__(self._events, media_type="text/event-stream", headers=told)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] == "HEAD":  # what is streamed may have no end, and none of it would be sent
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body"})
            else:
                await super().__call__(scope, receive, send)
        finally:
            try:
                await self._events.aclose()
            finally:
                self._held.close()
