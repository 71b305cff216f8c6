"""A background command as its guest agent tells of it: output as it comes, and its end.

Owns the reading of an agent's answer to a command. Filled by `channel`, which routes the agent's frames here; asks the
channel to kill, and to wait by its clock. Keeps at most the output cap the command was started with.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections.abc import AsyncIterator
from typing import Any, Protocol

from etude.environments.base import ExecResult
from etude.errors import SandboxError

_EXEC_ANSWER = struct.Struct("<iBBIQ")
CUT_NOTE_BYTES = 100
Answer = tuple[int, bytes]


class ProcessChannel(Protocol):
    """What a process asks of its channel."""

    def kill(self, request: int) -> None: ...

    async def answer(self, future: asyncio.Future[Answer], what: str, timeout_s: float) -> Answer: ...


class BroadcastOutput:
    """What a command prints, as it comes, for any number of readers."""

    def __init__(self) -> None:
        self._printed = bytearray()
        self._news = asyncio.Event()

    async def _pieces(self, ended: asyncio.Future[Any]) -> AsyncIterator[bytes]:
        at = 0
        while True:
            if at < len(self._printed):
                piece = bytes(self._printed[at:])
                at += len(piece)
                yield piece
            elif ended.done():
                return
            else:
                await self._news.wait()

    def _tell(self) -> None:
        """Wake every reader; those that come later wait for the next news."""
        self._news.set()
        self._news = asyncio.Event()


class GuestProcess(BroadcastOutput):
    """See base.Process. `what` names it in errors."""

    def __init__(self, agent: ProcessChannel, number: int, what: str) -> None:
        super().__init__()
        self._agent = agent
        self._id = number
        self._what = what
        self._begun: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    @property
    def id(self) -> int:
        return self._id

    async def output(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces(self._ended):
            yield piece
        exec_result(*self._ended.result(), self._id, self._what)  # raises where the sandbox has failed

    async def wait(self, timeout_s: float) -> ExecResult:
        status, body = await self._agent.answer(self._ended, f"{self._what} to end", timeout_s)
        return exec_result(status, body, self._id, self._what)

    async def kill(self) -> None:
        if not self._ended.done():
            self._agent.kill(self._id)

    # for the channel ----------------------------------------------------------------------------------------------

    async def begun(self, timeout_s: float) -> None:
        """Wait for the agent's first word of it. Raises what it says where it does not run."""
        status, _ = await self._agent.answer(self._begun, f"{self._what} to be running", timeout_s)
        if status == errno.ESRCH:
            raise ProcessLookupError(status, f"no background command has this id, or it ended long ago: {self._id}")
        if status:
            raise SandboxError(f"{self._what} could not be started within its limits: {os.strerror(status)}")

    def feed(self, printed: bytes) -> None:
        self._printed += printed
        if not self._begun.done():
            self._begun.set_result((0, b""))
        self._tell()

    def end(self, status: int, body: bytes) -> None:
        for future in (self._begun, self._ended):
            if not future.done():
                future.set_result((status, body))
        self._tell()

    def fail(self, error: SandboxError) -> None:
        for future in (self._begun, self._ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting; asyncio would log it as never retrieved
        self._tell()


def exec_result(status: int, body: bytes, request: int, what: str) -> ExecResult:
    """What the agent's answer to a command means. `request` is the id under which it was started."""
    if status:
        raise SandboxError(f"{what} could not be started within its limits: {os.strerror(status)}")
    code, timed_out, logged, first, total = _EXEC_ANSWER.unpack_from(body)
    output = body[_EXEC_ANSWER.size :]
    log_path = f"/tmp/exec-{request}.log" if logged else None
    if total > len(output):
        whole = f"whole output in {log_path}" if log_path else "the rest is lost: /tmp is full"
        note = f"\n[... {total - len(output)} bytes cut, {whole} ...]\n".encode()
        output = output[:first] + note + output[first:]
    return ExecResult(code, output, bool(timed_out), log_path)
