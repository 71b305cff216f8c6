"""A server as a process: where it listens and who may use it, when it is ready, and its order of stopping.

Owns what every server of ours does alike, whatever it serves: it listens on this machine alone unless it is told its
own names, says its URL once requests are answered, and at SIGTERM lets what is under way end before it hangs up. Knows
no route. Each server adds what it serves to the config here; how long connections may take is `connections`.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import ssl
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import uvicorn
from pydantic import Field
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from etude.config import Config
from etude.errors import ConfigError
from etude.serving.connections import HttpLimits, protocol
from etude.serving.guard import Guard
from etude.serving.wire import Answer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
Port = Annotated[int, Field(ge=0, le=65535)]
_HANG_UP_S = 2
_QUEUED = 1024


class ListenConfig(Config):
    """Where a server listens, and who may use it."""

    host: str = "127.0.0.1"
    """The address it listens on; the default is for this machine alone."""
    port: Port
    """0: a free one, which is printed."""
    hosts: tuple[str, ...] = LOOPBACK
    """The names a request may give as its Host, without port. Name this machine's own when `host` is not loopback."""
    token_file: Path | None = None
    """Made when it is not there. None: `token` where this server keeps what is its own."""
    http: HttpLimits = HttpLimits()

    @property
    @abstractmethod
    def token_path(self) -> Path:
        """Where the token is, `token_file` or not."""


class ApiConfig(ListenConfig):
    """Of a server that takes bodies, and lets what was asked of it come to its end."""

    origins: tuple[str, ...] = ()
    """The web pages that may use it, such as https://studio.example.com; programs send no Origin."""
    max_body_mb: int = Field(8, ge=1)
    """The longest request."""
    drain_s: float = Field(30.0, gt=0)
    """After SIGTERM: how long requests under way may take to end."""

    def guard(
        self,
        token: str,
        refusal: Callable[[Exception], Answer],
        opened: Callable[[str, str], bool] | None = None,
    ) -> Middleware:
        """What stands before the routes; `refusal` puts an error into the form that the server's clients know, and
        `opened` says which methods and paths need no token."""
        return Middleware(Guard, token, self.hosts, self.origins, self.max_body_mb << 20, refusal, opened)


class Server(uvicorn.Server):
    """uvicorn, with our order of stopping: `drain` while connections are still answered; a second signal hurries."""

    def __init__(
        self,
        app: ASGIApp,
        drain: Callable[[], Awaitable[None]],
        ready: Callable[[str], None],
        limits: HttpLimits | None = None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        """`ready` is called with the URL once requests are answered; `tls` are a certificate's file and its key's.
        Raises ConfigError where these two are no certificate and its key."""
        limits = limits or HttpLimits()
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol(limits),  # ty: ignore[invalid-argument-type]  # what makes one serves as well as its class
                ws="none",  # else whatever library is installed takes connections over, past the guard and the clocks
                backlog=max(limits.most_connections() // 4, 1),  # so many are taken before one can be turned away
                lifespan="off",
                log_config=None,
                log_level="error",  # its warnings are about what strangers send, and would let them fill a log
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=3 * _HANG_UP_S,
                ssl_certfile=tls and tls[0],
                ssl_keyfile=tls and tls[1],
            )
        )
        if tls:
            self._load(*tls)
        self._scheme = "https" if tls else "http"
        self._drain, self._ready = drain, ready
        self._hurry = asyncio.Event()

    def _load(self, certificate: Path, key: Path) -> None:
        """uvicorn would read both as it starts, and say neither which file it is about nor what to do."""
        for name, path in (("tls_certificate", certificate), ("tls_key", key)):
            if not path.is_file():
                raise ConfigError(f"{name}: {path}: no such file")
        try:
            self.config.load()
        except ssl.SSLError as error:
            raise ConfigError(
                f"tls_certificate, tls_key: {certificate} and {key} are not a certificate and its private key, each as "
                f"PEM ({error.reason or error})"
            ) from None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_QUEUED)  # those not taken yet wait in the kernel
            self._ready(_url_of(sock, self._scheme))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        draining = asyncio.ensure_future(self._drain())
        hurried = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if draining.done():
            draining.result()
        draining.cancel()
        hang_up = asyncio.get_running_loop().call_later(_HANG_UP_S, self._hang_up)
        try:
            await super().shutdown(sockets)
        finally:
            hang_up.cancel()

    def _hang_up(self) -> None:
        """On whoever has not taken its answer by now; else each would be told of as an error of ours."""
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """As uvicorn's, but the process goes on afterwards, and ends in its own way."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        if self.should_exit:
            self._hurry.set()
        self.should_exit = True


def listening(host: str, port: int, hosts: Sequence[str]) -> socket.socket:
    """A bound socket; port 0 is a free one. Raises ConfigError, also where `hosts` names nobody who comes by `host`."""
    if host not in LOOPBACK and tuple(hosts) == LOOPBACK:
        raise ConfigError(f"hosts: name what this machine is called by those who reach it at {host}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once where the protocol is named; else an answer's body waits 40 ms for the ack of its head
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        elsewhere = "; give another port, or 0 for a free one" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"port: cannot listen at {host}:{port}: {error.strerror}{elsewhere}") from None
    return sock


def _url_of(sock: socket.socket, scheme: str) -> str:
    """Where a listening socket is reached."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
