"""The controller's end of a guest agent: requests out, replies in, many at once over one byte stream.

Owns the framing described in `guest/serve.c` and the matching of replies to requests; `guest_verbs` has what is in
them. Knows nothing of how the stream
came to be, so any backend whose guest runs that agent can use it. Never blocks; every request has a deadline.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from etude.environments.base import ExecResult
from etude.environments.guest_verbs import ASKED, check, nul_terminated
from etude.environments.guest_verbs import command as command_body
from etude.environments.process import Answer, GuestProcess, exec_result
from etude.errors import DeadlineExceeded, SandboxError, SandboxSpoiled

_REQUEST = struct.Struct("<IIc")
_REPLY = struct.Struct("<IIi")
_GUARDED = struct.Struct("<QQ")
_NUMBER = struct.Struct("<I")
_ENTROPY_BYTES = 64
_RESUME = struct.Struct(f"<QI{_ENTROPY_BYTES}s")
_MORE_FOLLOWS = -1
_PIECE = 64 << 10  # of a transport's buffer, by which asyncio stops and calls `resume_writing` later
KILL_GRACE_S = 10.0
"""How long after a command's own timeout its answer may take, before the sandbox itself is held to be at fault."""


Loss = tuple[str, type[SandboxError]]
"""Why a sandbox is lost, in words, and the error that says so: SandboxSpoiled where its commands did it."""


class Channel(asyncio.Protocol):
    """One guest agent. `name` appears in errors. Use as the protocol of a stream transport.

    `next_id` continues where another channel to the same agent (a copy of its memory, say) ended: the agent knows its
    background commands, and names their logs, by the ids of their requests.
    """

    def __init__(self, name: str, next_id: int = 1) -> None:
        self._name = name
        self._transport: asyncio.Transport | None = None
        self._inbox = bytearray()
        self.next_id = next_id
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Answer] = loop.create_future()
        self._waiting: dict[int, asyncio.Future[Answer]] = {0: self._ready}
        # weak: who lets go of a background command wants no more of its output
        self._streams: weakref.WeakValueDictionary[int, GuestProcess] = weakref.WeakValueDictionary()
        self._processes: weakref.WeakValueDictionary[int, GuestProcess] = weakref.WeakValueDictionary()
        self._frozen_at: float | None = None
        self._frozen_s = 0.0
        self._held: list[bytes] | None = None
        self._unsent: list[bytes | memoryview] = []
        self._between_calls = False
        """From `hang_up` until `resume` has been answered: a lost connection is no failure."""
        self._resumed: asyncio.Future[Answer] | None = None
        self.failure: str | None = None
        """Why the channel no longer works, in words; None while it does."""
        self._kind: type[SandboxError] = SandboxError
        self.starving: Callable[[], Awaitable[str]] | None = None
        """Asked when an answer is late: what the sandbox's own commands do that keeps its agent from it, in words."""

    @property
    def connected(self) -> bool:
        return self._transport is not None

    # asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inbox.clear()
        self._unsent.clear()

    def resume_writing(self) -> None:
        """Send on as far as the line takes it. What is large waits where it is: a transport would copy it whole."""
        while self._unsent and self._transport and self._transport.get_write_buffer_size() <= _PIECE:
            piece = memoryview(self._unsent.pop(0))
            self._unsent[:0] = [piece[_PIECE:]] if len(piece) > _PIECE else []
            self._transport.write(piece[:_PIECE])

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        at = 0
        while len(self._inbox) - at >= _REPLY.size:
            size, request, status = _REPLY.unpack_from(self._inbox, at)
            if len(self._inbox) - at < size + 4:
                break
            body = bytes(memoryview(self._inbox)[at + _REPLY.size : at + size + 4])
            at += size + 4
            self._dispatch(request, status, body)
        del self._inbox[:at]

    def eof_received(self) -> None:
        """Whoever says no more has ended, though it may keep the line open and take nothing of what is to be sent."""
        assert self._transport is not None
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._between_calls:
            self.give_up()
        elif self._resumed is not None and not self._resumed.done():
            self._resumed.set_exception(self._cut())
            self._resumed.exception()  # as in _fail

    def _dispatch(self, request: int, status: int, body: bytes) -> None:
        process = self._streams.get(request)
        if process is not None and status == _MORE_FOLLOWS:
            process.feed(body)
        elif process is not None:
            process.end(status, body)
        else:
            future = self._waiting.pop(request, None)
            if future is not None and not future.done():
                future.set_result((status, body))

    # requests -----------------------------------------------------------------------------------------------------

    async def ready(self, timeout_s: float) -> None:
        """Wait until the agent has said that it is up."""
        await self.answer(self._ready, f"sandbox {self._name} to start", timeout_s)

    async def called(self, timeout_s: float) -> None:
        """The same of an agent that may have said so before anybody listened: it is asked, and answers."""
        await self.answer(self._send(b"c", b"")[1], f"sandbox {self._name} to start", timeout_s)

    async def call(self, verb: str, wait_s: float, **arguments: Any) -> Any:
        """Have the agent carry out a verb; `wait_s` is for one that has no deadline of its own."""
        match verb:
            case "exec":
                return await self._exec(**arguments)
            case "start":
                return await self._start(wait_s, **arguments)
            case "connect":
                return await self._connect(wait_s, **arguments)
        asked = ASKED[verb]
        return asked.value(await self._ask(asked.letter, asked.body(**arguments), wait_s, **arguments))

    async def _exec(self, command: str, timeout_s: float, **how: Any) -> ExecResult:
        try:
            body = command_body(command=command, timeout_s=timeout_s, **how)
        except OSError as error:
            return ExecResult(126, f"cannot run this command: {error.strerror}\n".encode())
        request, future = self._send(b"x", body)
        what = f"the command {command[:60]!r} in sandbox {self._name}"
        try:
            async with self._whose_fault():
                status, answer = await self.answer(future, what, timeout_s + KILL_GRACE_S)
        except asyncio.CancelledError:
            self.kill(request)
            if self._frozen_at is None:  # else it does nothing any more, though it may be there until the thaw
                await asyncio.wait({future}, timeout=KILL_GRACE_S)  # the caller goes on only once the command is gone
            raise
        except (DeadlineExceeded, SandboxSpoiled):
            self.kill(request)
            raise
        return exec_result(status, answer, request, what)

    async def _start(self, wait_s: float, command: str, **how: Any) -> GuestProcess:
        """Returns when the command runs. Raises OSError(EINVAL) for a command that no shell can be given."""
        request = self._post(b"s", command_body(command=command, **how))
        process = GuestProcess(self, request, f"the command {command[:60]!r} in sandbox {self._name}")
        self._streams[request] = self._processes[request] = process
        try:
            async with self._whose_fault():
                await process.begun(wait_s)
        except BaseException:
            self.kill(request)
            raise
        return process

    async def _connect(self, wait_s: float, process: int) -> GuestProcess:
        """A background command to which nobody listens any more, or the object of who still does."""
        known = self._processes.get(process)
        if known is None:
            request = self._post(b"a", _NUMBER.pack(process))
            known = GuestProcess(self, process, f"process {process} in sandbox {self._name}")
            self._streams[request] = self._processes[process] = known
        async with self._whose_fault():
            await known.begun(wait_s)
        return known

    def kill(self, request: int) -> None:
        """Kill the session of a command by the id of its request; nothing happens when it has ended."""
        if self.failure is None:
            self._post(b"k", _NUMBER.pack(request))

    async def guard(self, rules: bytes, timeout_s: float) -> tuple[int, int]:
        """Begin to guard the workspace's names by these rules; without any, only say how many calls were made under
        the guard so far, and how many refused. Raises OSError where the kernel cannot."""
        return _GUARDED.unpack(await self._ask("g", rules, timeout_s))

    async def freeze(self, timeout_s: float, clock_only: bool = False, hold: bool = False) -> None:
        """Stop every process but the agent; the time-outs of commands stand still.

        With `clock_only` nothing but the time-outs: the caller has a better way to stop the processes. With `hold`,
        what is sent from now on is kept until `resume`: a machine will stand still, and be copied."""
        _, stopped = self._send(b"f", b"\1" if clock_only else b"")
        if hold and self._held is None:
            self._held = []
        async with self._whose_fault():
            status, _ = await self.answer(stopped, f"everyone in sandbox {self._name} to be stopped", timeout_s)
        self._frozen_at = self._frozen_at or time.monotonic()
        if status:
            raise SandboxSpoiled(f"sandbox {self._name}: its processes do not stand still, but wake each other")

    async def thaw(self, timeout_s: float) -> None:
        """Let them go on."""
        await self._ask("t", b"", timeout_s)
        if self._frozen_at is not None:
            self._frozen_s += time.monotonic() - self._frozen_at
        self._frozen_at = None

    def give_up(self) -> None:
        """Expect no further answer: who waits for one is told that there is nobody left to give it."""
        self._fail("its processes have ended")

    async def resume(self, processes: int, name: str, env: Mapping[str, str], timeout_s: float) -> None:
        """Tell the agent of a machine which sandbox it is from now on, and what time; give it entropy of its own.

        Must come first after a start from a copied memory. Nothing else runs before the agent has answered: its
        processes were stopped when the copy was made. Raises ConnectionResetError when the connection made after
        `hang_up` is lost before the answer: a machine that has just been started may cut it, once."""
        texts = nul_terminated(iter((name, *(f"{key}={value}" for key, value in env.items()))))
        head = _RESUME.pack(time.time_ns(), processes, os.urandom(_ENTROPY_BYTES))
        if self._between_calls and (self._transport is None or self._transport.is_closing()):
            raise self._cut()
        held, self._held = self._held or [], None
        _, resumed = self._send(b"e", head + texts)
        self._held = held
        self._resumed = resumed if self._between_calls else None
        status, _ = await self.answer(resumed, f"machine {self._name} to resume", timeout_s)
        self._between_calls, self._held = False, None
        self._write(*held)
        if status:
            raise SandboxError(f"machine {self._name} could not be resumed: {os.strerror(status)}")

    def hang_up(self) -> None:
        """End this connection, but not the sandbox: its agent, all of whose answers are here, waits for another one.

        Only after `freeze(hold=True)`, or before the first connection to an agent that was copied in that state."""
        self._between_calls, self._resumed = True, None
        if self._transport is not None:
            self._transport.close()

    def close(self, reason: str = "it has been destroyed", kind: type[SandboxError] = SandboxError) -> None:
        """Hang up, which ends the agent and so the sandbox. From now on everything asked of it raises `kind`."""
        self._fail(reason, kind)
        if self._transport is not None:
            self._transport.abort()

    async def answer(
        self, future: asyncio.Future[Answer], what: str, timeout_s: float, clock: Callable[[], float] | None = None
    ) -> Answer:
        """What `future` brings, within a deadline; by the sandbox's clock, which stands still while it is frozen, or
        by another: whoever asks while it is frozen knows that the agent answers."""
        clock = clock or self._clock
        left_s, end = timeout_s, clock() + timeout_s
        while not (await asyncio.wait({future}, timeout=left_s))[0]:  # unlike wait_for, leaves the future alive
            left_s = end - clock()
            if left_s <= 0:
                raise DeadlineExceeded(what, timeout_s)
            left_s = max(left_s, 0.1)
        return future.result()

    # ----------------------------------------------------------------------------------------------------------------

    def _send(self, kind: bytes, *body: bytes) -> tuple[int, asyncio.Future[Answer]]:
        request = self._post(kind, *body)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request] = future
        return request, future

    def _post(self, kind: bytes, *body: bytes) -> int:
        if self.failure is not None or (self._transport is None and self._held is None):
            raise self._kind(f"sandbox {self._name}: {self.failure or 'not started'}")
        request, self.next_id = self.next_id, self.next_id % 0xFFFFFFF0 + 1
        self._write(_REQUEST.pack(sum(map(len, body)) + 5, request, kind) + body[0], *body[1:])
        return request

    def _write(self, *frames: bytes) -> None:
        (self._unsent if self._held is None else self._held).extend(frames)
        self.resume_writing()

    async def _ask(self, kind: str, body: bytes | tuple[bytes, ...], timeout_s: float, **arguments: Any) -> bytes:
        _, future = self._send(kind.encode(), *(body if isinstance(body, tuple) else (body,)))
        clock = self._clock if self._frozen_at is None else time.monotonic
        async with self._whose_fault():
            status, answer = await self.answer(future, f"request {kind!r} in sandbox {self._name}", timeout_s, clock)
        check(status, answer, **arguments)
        return answer

    @asynccontextmanager
    async def _whose_fault(self) -> AsyncGenerator[None]:
        """Around a wait for the agent: where commands are why it does not answer, the sandbox is spoiled."""
        try:
            yield
        except DeadlineExceeded as error:
            if self.starving is not None and (why := await self.starving()):
                raise SandboxSpoiled(f"{error}: {why}") from None
            raise

    def _clock(self) -> float:
        """Stands still while the sandbox is frozen, and so does every deadline."""
        return (self._frozen_at or time.monotonic()) - self._frozen_s

    def _cut(self) -> ConnectionResetError:
        return ConnectionResetError(f"machine {self._name} has cut the line to its agent")

    def _fail(self, reason: str, kind: type[SandboxError] = SandboxError) -> None:
        if self.failure is not None:
            return
        self.failure, self._kind = reason, kind
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(kind(f"sandbox {self._name}: {reason}"))
                future.exception()  # nobody may be waiting any more; asyncio would log it as never retrieved
        for process in list(self._streams.values()):
            process.fail(kind(f"sandbox {self._name}: {reason}"))
