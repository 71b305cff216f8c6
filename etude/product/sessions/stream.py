"""A session as server-sent events: its log, from any line on, and what goes on beside it.

Owns `followed`. Each line of the log is an event of its own whose id is its number, from 1; a client that was cut off
sends the last id it has, and goes on after it, whichever process serves it then. Events that are in no log come
between, with a name and without an id: first the current state, after all past events, and then what changes. The log
is read from its file, so a session that another process plays can be watched too, a little later.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

from etude.harness.journal import whole_lines
from etude.product.sessions.channel import LINE, Channel, Listener
from etude.serving.wire import dump

_LOOK_S = 1.0
"""How often the file is looked at for what another process writes."""
_RETRY_MS = 1000


async def followed(log: Path, channel: Channel, listener: Listener, after: int) -> AsyncGenerator[bytes]:
    """Every line after the first so many, and then as they come, until the channel lets its listeners go.

    `listener` listens to the channel already, so that nothing is missed."""
    tail = Tail(log, after)
    yield b"retry: %d\n\n" % _RETRY_MS
    for line in tail:
        yield line
    listener.forget()  # from here to the snapshot nothing is awaited: what it was told of is in one of the two
    rest, now = list(tail), channel.snapshot()
    for line in rest:
        yield line
    yield named("now", now)
    while not listener.over:
        told = await listener.next(_LOOK_S)
        if told is None:
            for line in tail:
                yield line
        elif told is LINE:
            for line in tail.one():
                yield line
        else:
            yield named(told.name, told.data)


def line_count(log: Path) -> int:
    """How many whole lines there are."""
    return sum(1 for _ in whole_lines(log))


def named(name: str, data: object) -> bytes:
    """An event that is in no log."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), dump(data))


class Tail:
    """The lines of a growing log that have not been read yet, as server-sent events; whole lines alone."""

    def __init__(self, log: Path, after: int) -> None:
        self._log, self._read, self._at = log, 0, 0
        self._after = after

    def __iter__(self) -> Iterator[bytes]:
        """All there are by now."""
        with self._log.open("rb") as file:
            file.seek(self._at)
            while (line := file.readline()).endswith(b"\n"):
                event = _parsed(line)
                if event is None:
                    return  # what a power cut left; the next process to open the log takes it away
                self._read, self._at = self._read + 1, self._at + len(line)
                if self._read > self._after:
                    event.pop("record", None)
                    yield b"id: %d\ndata: %s\n\n" % (self._read, dump(event))

    def one(self) -> Iterator[bytes]:
        """The next, if it is there."""
        for line in self:
            yield line
            return


def _parsed(line: bytes) -> dict[str, object] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
