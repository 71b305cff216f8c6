"""The one way out of a sandbox: an HTTP and CONNECT proxy that knows which hosts may be reached, and refuses the rest.

Owns the decision, its log (one event a request, refused or not) and the relaying of bytes. A host is matched by name,
resolved here, and reached at the very address that was judged, so a name whose answer changes gains nothing; addresses
inside private networks, of this machine and of clouds' metadata services are refused whatever name led there. Plain
HTTP is parsed and written anew, one request a connection; of a CONNECT tunnel only the host is known.

Never opens a route: a sandbox has no network, and reaches a proxy only through a socket somebody binds into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import h11
import structlog

from etude.environments.egress.policy import EgressConfig, Refused, judge, reachable, target_of

Resolver = Callable[[str, int], Awaitable[list[str]]]
_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host"}
_PIECE = 64 << 10
_LINGER_S = 1.0
_STATUS = {"busy": 503, "unreachable": 502, "malformed": 400}


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
    """Listens where it is told to, on behalf of whoever it is told. Use on one event loop; the caller closes it."""

    def __init__(self, config: EgressConfig, resolve: Resolver | None = None) -> None:
        self.config = config
        self._resolve = resolve or _resolve
        self._log = structlog.get_logger("egress")
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.allowed = 0
        self.refusals: Counter[str] = Counter()
        """How many requests were refused, by reason."""

    async def listen(self, where: Path | tuple[str, int], who: str) -> asyncio.Server:
        """Accept connections at a unix socket or a local port; `who` names the sandbox behind it in the log."""
        slots = asyncio.Semaphore(self.config.max_connections)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(_Exchange(who), slots, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        if isinstance(where, Path):
            server = await asyncio.start_unix_server(accept, where, limit=_PIECE)
        else:
            server = await asyncio.start_server(accept, *where, limit=_PIECE)
        self._servers.append(server)
        return server

    async def close(self) -> None:
        """Stop listening and cut what is being relayed."""
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ----------------------------------------------------------------------------------------------------------------

    async def _serve(
        self,
        exchange: _Exchange,
        slots: asyncio.Semaphore,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        outcome = "allowed"
        try:
            if slots.locked():
                raise Refused("busy", f"more than {self.config.max_connections} connections at once")
            async with slots:
                await self._exchange(exchange, reader, writer)
        except Refused as refusal:
            outcome = refusal.reason
            self.refusals[outcome] += 1
            with contextlib.suppress(OSError, TimeoutError):
                await _say(writer, _STATUS.get(outcome, 403), f"egress refused: {refusal}\n".encode())
                await _linger(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, h11.RemoteProtocolError) as error:
            outcome = f"cut: {error or type(error).__name__}"
        finally:
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
            writer.transport.abort() if outcome.startswith("cut") else writer.close()

    async def _exchange(self, exchange: _Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=32 << 10)
        request = await self._head(http, reader)
        exchange.method = request.method.decode()
        exchange.host, exchange.port, path = target_of(request)
        host_reader, host_writer = await self._reach(exchange)
        self.allowed += 1
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
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
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
