"""The streams of a pod's container, as the byte stream an agent's channel speaks over.

Owns Kubernetes' remote-command protocol (v5.channel.k8s.io, or the v4 of older clusters) on an open WebSocket: every
binary message begins with a byte that says which stream the rest belongs to. Standard output is the agent's answers;
standard error is what goes wrong before the agent runs; the status stream says how the attachment itself ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

import aiohttp

from etude.environments.channel import Channel, Loss

_STDIN, _STDOUT, _STDERR, _STATUS = 0, 1, 2, 3
"""Of further streams, and of 255, by which version 5 says that one has ended, we need nothing."""
_PIECE = 128 << 10
"""What one message carries: a server takes them whole, and some refuse large ones."""
_SAID_MAX = 2000


class Attachment(asyncio.Transport):
    """The transport of `channel`, from its making on. When the streams end and nobody here has ended them, `why` is
    asked for the reason that the channel then gives, and its kind."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, channel: Channel, why: Callable[[], Awaitable[Loss]]
    ) -> None:
        super().__init__()
        self._socket = socket
        self._channel = channel
        self._why = why
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._closing = False
        self._status = b""
        self._stderr = b""
        loop = asyncio.get_running_loop()
        self._sending = loop.create_task(self._send())
        self._receiving = loop.create_task(self._receive())
        self._ending: asyncio.Task[None] | None = None
        channel.connection_made(self)

    @property
    def said(self) -> str:
        """What the program said on standard error, or else the API of the attachment; "" where neither did."""
        return self._stderr.decode(errors="replace").strip() or _message(self._status)

    # asyncio.Transport ----------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._outbox.put_nowait(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Hang up, without what has not been sent. `closed` waits until that has happened."""
        if self._ending is None:
            self._closing = True
            self._ending = asyncio.get_running_loop().create_task(self._end())

    # ----------------------------------------------------------------------------------------------------------------

    async def closed(self) -> None:
        """Wait until the streams are cut; only after `abort`."""
        assert self._ending is not None
        await asyncio.shield(self._ending)

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionError):  # the receiving end says that the streams have ended
            while True:
                data = await self._outbox.get()
                for at in range(0, len(data), _PIECE):
                    await self._socket.send_bytes(bytes([_STDIN]) + data[at : at + _PIECE])

    async def _receive(self) -> None:
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY and message.data:
                self._take(message.data[0], message.data[1:])
        if not self._closing:
            self._channel.close(*await self._why())

    def _take(self, stream: int, body: bytes) -> None:
        if stream == _STDOUT:
            self._channel.data_received(body)
        elif stream == _STDERR:
            self._stderr = (self._stderr + body)[-_SAID_MAX:]
        elif stream == _STATUS:
            self._status = (self._status + body)[-_SAID_MAX:]

    async def _end(self) -> None:
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        await self._socket.close()
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)


def _message(status: bytes) -> str:
    """Of a `Status` object; in success there is nothing to say."""
    try:
        told = json.loads(status)
        return "" if told.get("status") == "Success" else str(told.get("message") or "").strip()
    except (ValueError, AttributeError):
        return status.decode(errors="replace").strip()
