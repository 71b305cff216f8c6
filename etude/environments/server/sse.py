"""Streams of server-sent events that say that they are alive.

Owns the silence: a comment is sent after a while without events, so that who listens, and what stands between, knows we
are there. Knows nothing of what the events say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

SILENCE_S = 15.0
"""After so long without an event a comment is sent."""


async def never_silent(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
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
