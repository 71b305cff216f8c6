"""How long a connection may take, and how many there may be: what a slow or hostile client cannot hold for ever.

Owns `HttpLimits` and the protocol that keeps them, uvicorn's with clocks: one for a request's head, one for its body,
one for an answer that nobody reads. Where there are as many connections as there may be, the one that has waited
longest without asking anything makes room, so that half-open ones never keep a real client out. What is no HTTP is
answered here too. Knows no route; what goes on between a request's end and its answer has no deadline here.
"""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Callable
from typing import Any

import h11
from pydantic import Field
from uvicorn.protocols.http.h11_impl import H11Protocol

from etude.config import Config


def _refusal(status: str, kind: str, message: str, retryable: bool = True) -> bytes:
    """A whole answer, for whoever no application answers: an error with the members that all our servers' have."""
    error = {"message": message, "kind": kind, "retryable": retryable, "param": None, "code": kind}
    body = json.dumps({"error": {**error, "type": "server_error" if retryable else "invalid_request_error"}}).encode()
    again = "Retry-After: 1\r\n" if retryable else ""
    head = f"HTTP/1.1 {status}\r\n{again}Connection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


_BUSY = _refusal("503 Service Unavailable", "busy", "every connection of this server is busy; come again soon")
_LATE = _refusal("408 Request Timeout", "late", "the request did not come to its end in time; send it again")
_MALFORMED = _refusal(
    "400 Bad Request", "malformed", "this is not an HTTP request; speak HTTP/1.1, without TLS", retryable=False
)


class HttpLimits(Config):
    """Of one server's connections."""

    connections: int | None = Field(None, ge=1)
    """At once. None: half of what this process may have open, so that the other half is there for its work."""
    header_s: float = Field(20.0, gt=0)
    """From a request's first byte, or a connection's begin, to the end of the head; 408 after that."""
    body_s: float = Field(30.0, gt=0)
    """For a body, and one second more for every `body_rate` bytes of it that came before its answer; 408 after that."""
    body_rate: int = Field(16_384, ge=1)
    """Bytes a second that a body must come with."""
    unread_s: float = Field(60.0, gt=0)
    """How long a client may take none of its answer before it is hung up on."""

    def most_connections(self) -> int:
        """How many there may be in this process, as it stands."""
        if self.connections is not None:
            return self.connections
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(soft // 2, 8) if soft != resource.RLIM_INFINITY else 10_000


def protocol(limits: HttpLimits) -> Callable[..., _Bounded]:
    """What uvicorn makes of each connection."""
    most = limits.most_connections()

    def connection(*arguments: Any, **named: Any) -> _Bounded:
        return _Bounded(limits, most, *arguments, **named)

    return connection


class _Bounded(H11Protocol):
    """One connection. At any time at most one clock runs for what it sends, and one for what it reads."""

    def __init__(self, limits: HttpLimits, most: int, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits, self._most = limits, most
        self._waiting: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._body_began, self._body_bytes = 0.0, 0
        self._rests_since = self.loop.time()

    @property
    def at_rest(self) -> bool:
        """Whether nothing that was asked here is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most and not self._make_room():
            transport.write(_BUSY)
            transport.close()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("_waiting")
        self._stop("_unread")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        reading_body = self.conn.their_state is h11.SEND_BODY
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY:
            self._expect_body(len(data) if reading_body else 0, begins=not reading_body)
        elif self.conn.their_state is h11.IDLE:
            if self._waiting is None:  # the first bytes of a head; it must end in time, however often bytes come
                self._expect_head()
        else:
            self._stop("_waiting")

    def on_response_complete(self) -> None:
        self._rests_since = self.loop.time()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # this request's, unread, or one's that was sent behind it
            self._expect_body(0, begins=self._waiting is None)
        else:
            self._stop("_waiting")  # between requests uvicorn's keep-alive decides

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. Whoever works on what came before it is told that the client is gone."""
        cycle, at_rest = self.cycle, self.at_rest
        if not at_rest:
            cycle.disconnected = True
            cycle.message_event.set()
        if at_rest or not cycle.response_started:
            self.transport.write(_MALFORMED)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self._limits.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("_unread")
        super().resume_writing()

    # ----------------------------------------------------------------------------------------------------------------

    def _expect_head(self) -> None:
        self._stop("_waiting")
        self._waiting = self.loop.call_later(self._limits.header_s, self._late)

    def _expect_body(self, more: int, begins: bool) -> None:
        self._stop("_waiting")
        if begins:
            self._body_began, self._body_bytes = self.loop.time(), 0
        self._body_bytes += more
        earned_s = 0.0 if self.at_rest else self._body_bytes / self._limits.body_rate
        allowed_s = self._limits.body_s + earned_s
        self._waiting = self.loop.call_at(self._body_began + allowed_s, self._late)

    def _late(self) -> None:
        self._waiting = None
        if self.transport.is_closing():
            return
        in_body = self.conn.their_state is h11.SEND_BODY
        if in_body and self.flow.read_paused:  # the application has not taken what came: not the client is late
            self._expect_body(0, begins=True)
            return
        if not (in_body and self.cycle.response_started):
            self.transport.write(_LATE)
        self.transport.close()

    def _make_room(self) -> bool:
        """Hang up on the connection that has been at rest longest, if one is."""
        resting = [
            each for each in self.connections if isinstance(each, _Bounded) and each is not self and each.at_rest
        ]
        if not resting:
            return False
        oldest = min(resting, key=lambda each: each._rests_since)
        oldest.transport.abort()
        self.connections.discard(oldest)
        return True

    def _stop(self, clock: str) -> None:
        if (handle := getattr(self, clock)) is not None:
            handle.cancel()
            setattr(self, clock, None)
