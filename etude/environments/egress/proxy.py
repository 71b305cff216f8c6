"""The one way out of a sandbox: an HTTP and CONNECT proxy that knows which hosts may be reached, and refuses the rest.

Owns the decision, its log (one event a request, refused or not) and the relaying of bytes. A host is matched by name,
resolved here, and reached at the very address that was judged, so a name whose answer changes gains nothing; addresses
inside private networks, of this machine and of clouds' metadata services are refused whatever name led there. Plain
HTTP is parsed and written anew, one request a connection; of a CONNECT tunnel only the host is known.

Never opens a route: a sandbox has no network, and reaches a proxy only through the socket it was given (see `gate`).
What it may cost us is bounded: so many connections, so many new ones a second, each gone when nothing moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import h11
import structlog

from etude.environments.egress.policy import EgressConfig, Refused, judge, reachable, target_of

Resolver = Callable[[str, int], Awaitable[list[str]]]
_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host"}
_PIECE = 64 << 10
_LINGER_S = 1.0
_AGAIN_S = 1.0
_REMEMBERED = 4
_LOOKUPS = ThreadPoolExecutor(4, thread_name_prefix="etude-names")
"""Slow name servers keep these waiting, and nothing else of this process."""
_STATUS = {"unreachable": 502, "malformed": 400}


@dataclass
class _Exchange:
    """What the log says of one request."""

    who: str
    method: str = ""
    host: str = ""
    port: int = 0
    address: str = ""
    sent: int = 0
    received: int = 0
    began: float = field(default_factory=time.monotonic)


class EgressProxy:
    """Answers at the sockets it is given, on behalf of whoever it is told. Use on one event loop; the caller closes it.

    `outcomes` counts its requests by what came of them: "allowed", or the reason of a refusal.
    """

    def __init__(
        self, config: EgressConfig, resolve: Resolver | None = None, outcomes: Counter[str] | None = None
    ) -> None:
        self.config = config
        self.outcomes: Counter[str] = Counter() if outcomes is None else outcomes
        self.refused: deque[str] = deque(maxlen=_REMEMBERED)
        """The last refusals, in words."""
        self._resolve = resolve or _resolve
        self._log = structlog.get_logger("egress")
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, listener: socket.socket, who: str) -> None:
        """Answer at a listening socket, which is ours from now on; `who` names the sandbox behind it in the log."""
        listener.setblocking(False)
        self._listeners.append(listener)
        self._begin(self._accept(listener, who))

    async def close(self) -> None:
        """Stop listening and cut what is being relayed."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    # ----------------------------------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket, who: str) -> None:
        """Take connections while there is room for them. The kernel keeps a few more waiting, which cost us nothing."""
        slots = asyncio.Semaphore(self.config.max_connections)
        while True:
            await slots.acquire()
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:  # this process has no descriptor left, say; that passes
                self._log.warning("egress", who=who, outcome=f"not accepted: {error}")
                slots.release()
                await asyncio.sleep(_AGAIN_S)
                continue
            self._begin(self._serve(_Exchange(who), connection)).add_done_callback(lambda _: slots.release())
            await asyncio.sleep(1 / self.config.connections_per_s)

    async def _serve(self, exchange: _Exchange, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=_PIECE)
        outcome = "allowed"
        try:
            await self._exchange(exchange, reader, writer)
        except Refused as refusal:
            outcome = refusal.reason
            self.outcomes[outcome] += 1
            self.refused.append(str(refusal))
            with contextlib.suppress(OSError, TimeoutError):
                await _say(writer, _STATUS.get(outcome, 403), f"egress refused: {refusal}\n".encode())
                await _linger(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, h11.RemoteProtocolError) as error:
            outcome = f"cut: {error or type(error).__name__}"
        except asyncio.CancelledError:
            outcome = "cut: the sandbox has ended"
            raise
        finally:
            self._tell(exchange, outcome)
            await self._hang_up(writer, at_once=outcome.startswith("cut"))

    def _tell(self, exchange: _Exchange, outcome: str) -> None:
        self._log.info(
            "egress",
            who=exchange.who,
            outcome=outcome,
            method=exchange.method,
            host=exchange.host,
            port=exchange.port,
            address=exchange.address,
            sent=exchange.sent,
            received=exchange.received,
            seconds=round(time.monotonic() - exchange.began, 3),
        )

    async def _hang_up(self, writer: asyncio.StreamWriter, at_once: bool) -> None:
        """Give what is still to be sent its time, and no more: who does not read it must not keep our descriptors."""
        try:
            if not at_once:
                writer.close()
                async with asyncio.timeout(self.config.idle_timeout_s):
                    await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # the exchange is over; how its connection ended is of no interest
        finally:
            writer.transport.abort()

    async def _exchange(self, exchange: _Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=32 << 10)
        request = await self._head(http, reader)
        exchange.method = request.method.decode()
        exchange.host, exchange.port, path = target_of(request)
        host_reader, host_writer = await self._reach(exchange)
        self.outcomes["allowed"] += 1
        try:
            if request.method == b"CONNECT":
                await _say(writer, 200, b"")
                rest, _ = http.trailing_data
                up = _pieces(reader, rest)
            else:
                up = self._rewritten(http, request, path, exchange, reader)
            await self._relay(exchange, up, host_writer, host_reader, writer)
        finally:
            host_writer.transport.abort()

    async def _head(self, http: h11.Connection, reader: asyncio.StreamReader) -> h11.Request:
        try:
            async with asyncio.timeout(self.config.head_timeout_s):
                while (event := http.next_event()) is h11.NEED_DATA:
                    http.receive_data(await reader.read(_PIECE))
        except (h11.RemoteProtocolError, TimeoutError) as error:
            raise Refused("malformed", f"no HTTP request: {error or 'nothing came'}") from None
        if not isinstance(event, h11.Request):
            raise Refused("malformed", "no HTTP request")
        return event

    async def _reach(self, exchange: _Exchange) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Judge the host, resolve it once, and connect to an address that was judged."""
        host, port = exchange.host, exchange.port
        judge(self.config, host, port)
        try:
            async with asyncio.timeout(self.config.connect_timeout_s):
                good = reachable(self.config, host, await self._resolve(host, port))
                return await _connect(good, port, exchange)
        except (OSError, TimeoutError) as error:
            raise Refused("unreachable", f"{host} cannot be reached: {error or 'no answer in time'}") from None

    async def _rewritten(
        self, http: h11.Connection, request: h11.Request, path: str, exchange: _Exchange, reader: asyncio.StreamReader
    ) -> AsyncIterator[bytes]:
        """The request as the host sees it: its own Host, no dropped header, exactly one body, then no more."""
        dropped = {name.lower().encode() for name in self.config.drop_headers} | _HOP
        host = exchange.host if exchange.port == 80 else f"{exchange.host}:{exchange.port}"
        headers: list[tuple[bytes, bytes]] = [(b"host", host.encode()), (b"connection", b"close")]
        headers += [pair for pair in request.headers if pair[0] not in dropped and not pair[0].startswith(b"proxy-")]
        if any(name == b"transfer-encoding" for name, _ in request.headers):
            headers = [pair for pair in headers if pair[0] != b"content-length"]
            headers.append((b"transfer-encoding", b"chunked"))
        out = h11.Connection(h11.CLIENT)
        yield out.send(h11.Request(method=request.method, target=path, headers=headers)) or b""
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(_PIECE))
            elif isinstance(event, h11.Data):
                yield out.send(h11.Data(data=bytes(event.data))) or b""
            else:
                raise h11.RemoteProtocolError("the request ended before its body did")
        yield out.send(h11.EndOfMessage()) or b""

    async def _relay(
        self,
        exchange: _Exchange,
        up: AsyncIterator[bytes],
        host_writer: asyncio.StreamWriter,
        host_reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Both directions at once, until the host has closed its own, or nothing has moved for `idle_timeout_s`."""
        alive = asyncio.Event()

        async def upwards() -> None:
            async for piece in up:
                exchange.sent += len(piece)
                host_writer.write(piece)
                await host_writer.drain()
                alive.set()
            if exchange.method == "CONNECT":
                host_writer.write_eof()

        async def downwards() -> None:
            async for piece in _pieces(host_reader):
                exchange.received += len(piece)
                writer.write(piece)
                await writer.drain()
                alive.set()

        sending, receiving = asyncio.ensure_future(upwards()), asyncio.ensure_future(downwards())
        try:
            while not receiving.done():
                alive.clear()
                waiting = {receiving} if sending.done() else {receiving, sending}
                done, _ = await asyncio.wait(
                    waiting, timeout=self.config.idle_timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                if sending in done:
                    sending.result()
                elif not done and not alive.is_set():
                    raise TimeoutError(f"nothing moved for {self.config.idle_timeout_s} s")
            receiving.result()
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)


async def _resolve(host: str, port: int) -> list[str]:
    lookup = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, lookup)
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


async def _connect(
    addresses: list[str], port: int, exchange: _Exchange
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    failed: OSError = OSError(errno.EHOSTUNREACH, "it has no address")
    for address in addresses:
        try:
            exchange.address = address
            return await asyncio.open_connection(address, port, limit=_PIECE)
        except OSError as error:
            failed = error
    raise failed


async def _pieces(reader: asyncio.StreamReader, first: bytes = b"") -> AsyncIterator[bytes]:
    if first:
        yield first
    while piece := await reader.read(_PIECE):
        yield piece


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take what was still being sent: closing over unread bytes makes the other end lose our answer."""
    writer.write_eof()
    async with asyncio.timeout(_LINGER_S):
        async for _ in _pieces(reader):
            pass


async def _say(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    """Answer for ourselves; 200 opens a tunnel and has neither headers nor body."""
    reason = {200: "Connection established", 400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}.get(status, "")
    head = f"HTTP/1.1 {status} {reason}\r\n"
    if status != 200:
        head += f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()
