"""What a session has to tell its client, in order.

Owns `Outbox`. A session must never wait for its listener, and a client may be slow: updates queue here, and words that
follow each other meanwhile become one. Knows nothing of what they mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AvailableCommandsUpdate,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    SessionInfoUpdate,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
    UsageUpdate,
    UserMessageChunk,
)

from etude.errors import DeadlineExceeded

if TYPE_CHECKING:
    from acp.interfaces import Client

Update: TypeAlias = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCallStart
    | ToolCallProgress
    | AgentPlanUpdate
    | AvailableCommandsUpdate
    | CurrentModeUpdate
    | ConfigOptionUpdate
    | SessionInfoUpdate
    | UsageUpdate
)
_FLUSH_S = 60.0


class Outbox:
    """Of one session. Made and used on one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.session_id = ""
        """Known once the session is open, and not needed before."""
        self._waiting: deque[Update] = deque()
        self._some, self._none = asyncio.Event(), asyncio.Event()
        self._none.set()
        self._pumping = asyncio.create_task(self._pump(), name="updates of an ACP session")

    def add(self, update: Update) -> None:
        """Returns at once."""
        if not (self._waiting and self._joined(self._waiting[-1], update)):
            self._waiting.append(update)
        self._none.clear()
        self._some.set()

    async def flush(self) -> None:
        """Return when the client has been told everything so far."""
        told = asyncio.ensure_future(self._none.wait())
        done, _ = await asyncio.wait([told, self._pumping], timeout=_FLUSH_S, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not done:
            raise DeadlineExceeded("the client to read what it is told", _FLUSH_S)
        if self._pumping in done and not self._pumping.cancelled():
            self._pumping.result()  # what ended it is a fault of ours, and is raised

    async def close(self) -> None:
        """What is still waiting is not told."""
        self._pumping.cancel()
        await asyncio.wait([self._pumping])

    async def _pump(self) -> None:
        while True:
            await self._some.wait()
            while self._waiting:
                with contextlib.suppress(ConnectionError):  # a client that has left is told nothing more
                    await self._client.session_update(self.session_id, self._waiting.popleft())
            self._some.clear()
            self._none.set()

    @staticmethod
    def _joined(last: Update, update: Update) -> bool:
        """Whether these words went to the end of the last ones."""
        if not isinstance(last, AgentMessageChunk | AgentThoughtChunk) or type(last) is not type(update):
            return False
        before, more = last.content, update.content
        if not isinstance(before, TextContentBlock) or not isinstance(more, TextContentBlock):
            return False
        if last.message_id != update.message_id:
            return False
        before.text += more.text
        return True
