"""One JSON-RPC message a line, on the stdin and stdout that this process was started with.

Owns `Stdio`, which implements the `Transport` of the protocol's package. Both streams are taken away from the rest of
the process: what a library prints goes to stderr, and no child can read what the client says. A line that is no message
is answered with an error, and reading goes on. Knows no method.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from typing import Any

from etude.errors import ConfigError

PARSE_ERROR, INVALID_REQUEST = -32700, -32600
_LONGEST = 64 << 20
"""Of a message: a prompt may hold whole files."""
_NO_EDITOR = "stdin and stdout are to be pipes: an editor is at their other end, not a file"


class Stdio:
    """Use on one event loop. A client that no longer reads is one that has left: `receive` says so."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._one_at_a_time = asyncio.Lock()

    @classmethod
    async def take_over(cls) -> Stdio:
        """From here on the process's own stdin is empty, and its stdout is its stderr."""
        mode = os.fstat(0).st_mode  # asyncio would take /dev/null for a terminal, and fail where nobody sees to it
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(0)):
            raise ConfigError(_NO_EDITOR)
        given, taken = os.dup(0), os.dup(1)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        os.dup2(2, 1)
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=_LONGEST)
        try:
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(given, "rb", 0))
            transport, protocol = await loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(taken, "wb", 0)
            )
        except ValueError:
            raise ConfigError(_NO_EDITOR) from None
        return cls(reader, asyncio.StreamWriter(transport, protocol, None, loop))

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None when the client has left."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                await self._refuse(INVALID_REQUEST, f"a message is longer than {_LONGEST >> 20} MiB")
                continue
            except ConnectionError:
                return None
            if not line:
                return None
            if line.strip() and (message := await self._understood(line)) is not None:
                return message

    async def send(self, message: dict[str, Any]) -> None:
        """A lone surrogate, which is no text and which strict readers refuse, becomes `?`."""
        line = json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=str)
        async with self._one_at_a_time:
            try:
                self._writer.write(line.encode("utf-8", "replace") + b"\n")
                await self._writer.drain()
            except ConnectionError:
                self._reader.feed_eof()

    async def close(self) -> None:
        self._writer.close()

    async def _understood(self, line: bytes) -> dict[str, Any] | None:
        """The message in a line. None for one that was answered here, or that asks for nothing."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            await self._refuse(PARSE_ERROR, "a line is one message in JSON; this one is not JSON")
            return None
        if not isinstance(message, dict):
            await self._refuse(INVALID_REQUEST, "a message is one JSON object; batches are not part of the protocol")
            return None
        id, method = message.get("id"), message.get("method")
        if not isinstance(id, int | str | None) or not isinstance(method, str | None):
            await self._refuse(INVALID_REQUEST, "the id of a message is a number or a string, its method a string")
            return None
        if isinstance(method, str) and method.startswith("$/") and "id" not in message:
            return None  # what may be ignored by whoever does not know it
        return message

    async def _refuse(self, code: int, why: str) -> None:
        await self.send({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": why}})
