"""QEMU's own control channel (QMP): one question at a time, each with a deadline.

Owns the framing, one JSON object a line, and what QEMU's refusals become. Events are read and dropped. Knows nothing of
what is asked.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from etude.errors import DeadlineExceeded, SandboxError


class Monitor:
    """One emulator, at the other end of `ours`; first listened to at the first `ask`. `name` appears in errors."""

    def __init__(self, ours: socket.socket, name: str, wait_s: float) -> None:
        ours.setblocking(False)
        self._socket = ours
        self._name = name
        self._wait_s = wait_s
        self._turn = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, command: str, **arguments: object) -> Any:
        async with self._turn:
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
                await self._within("the first words", self._next("QMP"))
                await self._ask("qmp_capabilities", {})
            return await self._ask(command, arguments)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()

    # ----------------------------------------------------------------------------------------------------------------

    async def _ask(self, command: str, arguments: dict[str, object]) -> Any:
        assert self._writer is not None
        if self._writer.is_closing():
            raise SandboxError(f"machine {self._name}: its control channel is closed")
        self._writer.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        answer = await self._within(f"an answer to {command}", self._next("return", "error"))
        if "error" in answer:
            raise SandboxError(f"machine {self._name} refuses {command}: {answer['error'].get('desc')}")
        return answer["return"]

    async def _next(self, *keys: str) -> dict[str, Any]:
        """The next object with one of these keys."""
        assert self._reader is not None
        while True:
            try:
                line = await self._reader.readline()
            except OSError:
                line = b""
            if not line:
                raise SandboxError(f"machine {self._name} has ended")
            said = json.loads(line)
            if any(key in said for key in keys):
                return said

    async def _within(self, what: str, asked: Any) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._wait_s):
                return await asked
        except TimeoutError:
            self.close()  # an answer that comes late would be taken for the next one's
            raise DeadlineExceeded(f"{what} from machine {self._name}", self._wait_s) from None
