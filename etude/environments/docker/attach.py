"""The streams of an attached container, as the byte stream an agent's channel speaks over.

Owns the request that turns an HTTP connection into a raw one, and the engine's framing of what comes back: one byte
that says which stream, three of zeros, four of length, then as many of output. Standard output is the agent's answers;
standard error is what goes wrong before the agent runs, kept to be quoted.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import h11

from etude.environments.channel import Channel, Loss
from etude.errors import DeadlineExceeded, SandboxError

_HEAD = struct.Struct(">BxxxI")
_STDOUT, _STDERR = 1, 2
_SAID_MAX = 2000


class Attachment(asyncio.Protocol):
    """One container's streams, handed to `channel` once the engine has agreed. `stderr` is its standard error. When
    they end and nobody here has ended them, `why` is asked for the reason that the channel then gives, and its kind."""

    def __init__(self, target: str, channel: Channel, why: Callable[[], Awaitable[Loss]]) -> None:
        self._target = target
        self._why = why
        self._asking: asyncio.Task[None] | None = None
        self._channel = channel
        self._http: h11.Connection | None = h11.Connection(h11.CLIENT)
        self._inbox = bytearray()
        self._transport: asyncio.Transport | None = None
        self.attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stderr = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        assert self._http is not None
        self._transport = transport
        headers = [("Host", "engine"), ("Connection", "Upgrade"), ("Upgrade", "tcp"), ("Content-Length", "0")]
        sent = self._http.send(h11.Request(method="POST", target=self._target, headers=headers))
        transport.write((sent or b"") + (self._http.send(h11.EndOfMessage()) or b""))

    def data_received(self, data: bytes) -> None:
        if self._http is None:
            self._take(data)
            return
        try:
            self._http.receive_data(data)
            answer = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._refused(f"it answers no HTTP ({error})")
            return
        if answer is h11.NEED_DATA:
            return
        if not isinstance(answer, h11.InformationalResponse | h11.Response) or answer.status_code not in (101, 200):
            self._refused(f"it answers {getattr(answer, 'status_code', answer)}")
            return
        rest, self._http = self._http.trailing_data[0], None
        if not self.attached.done():
            self.attached.set_result(None)
        assert self._transport is not None
        self._channel.connection_made(self._transport)
        self._take(rest)

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    def eof_received(self) -> None:
        """The agent has ended. An engine keeps the rest open, and what we were sending would be waited for for ever."""
        assert self._transport is not None
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.attached.done():
            self._refused("it hangs up")
        elif self._channel.failure is None:
            self._asking = asyncio.get_running_loop().create_task(self._lost())

    async def _lost(self) -> None:
        self._channel.close(*await self._why())

    def _take(self, data: bytes) -> None:
        self._inbox += data
        at = 0
        while len(self._inbox) - at >= _HEAD.size:
            stream, size = _HEAD.unpack_from(self._inbox, at)
            if len(self._inbox) - at < _HEAD.size + size:
                break
            body = bytes(memoryview(self._inbox)[at + _HEAD.size : at + _HEAD.size + size])
            at += _HEAD.size + size
            if stream == _STDOUT:
                self._channel.data_received(body)
            elif stream == _STDERR:
                self.stderr = (self.stderr + body)[-_SAID_MAX:]
        if at:
            del self._inbox[:at]

    def _refused(self, why: str) -> None:
        if not self.attached.done():
            self.attached.set_exception(SandboxError(f"the container engine does not attach to a container: {why}"))
        if self._transport is not None:
            self._transport.abort()


async def attach(
    socket: Path, version: str, container: str, channel: Channel, why: Callable[[], Awaitable[Loss]], wait_s: float
) -> Attachment:
    """Connect `channel` to a container that has not started: nothing it says is missed. `why`: see Attachment."""
    target = f"/v{version}/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
    try:
        async with asyncio.timeout(wait_s):
            loop = asyncio.get_running_loop()
            transport, attachment = await loop.create_unix_connection(
                lambda: Attachment(target, channel, why), str(socket)
            )
            try:
                await attachment.attached
            except BaseException:
                transport.abort()
                raise
            return attachment
    except TimeoutError:
        raise DeadlineExceeded("the container engine to attach to a container", wait_s) from None
    except OSError as error:
        raise SandboxError(f"the container engine at {socket} is gone: {error.strerror}") from None
