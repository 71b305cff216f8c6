"""The log of a session: events appended as they happen, and their form on disk.

Owns `EventLog`, and one JSON object a line for `write_events` and `read_events`. A log is only ever appended to; the
terminal, the HTTP API, traces and exports are views of it. With a journal (`harness.journal`) behind it, so is the
session itself: its state is computed from its log (`harness.state`). An event may have a `record`, which restores what
the event added to the context, with token ids; only a journal stores records, listeners do not get them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from etude.durable import append_whole
from etude.errors import CheckpointError
from etude.harness.journal import Journal, whole_lines
from etude.records import Event, EventKind

Record: TypeAlias = Mapping[str, Any]
"""What JSON can hold, made and understood by a `Dialogue`."""


class EventLog:
    """Collects a session's events and tells `listener` of each; a listener must be quick, the session waits for it.

    With a journal an event is on disk before anything else learns of it, and is not kept in memory. A log that goes on
    where another process stopped takes up its clock too.
    """

    def __init__(self, listener: Callable[[Event], None] | None = None, journal: Journal | None = None) -> None:
        past = [event.at for event, _ in decoded(journal.path)] if journal else []
        self._started = time.perf_counter() - max(past, default=0.0)
        self._events: list[Event] = []
        self.length = len(past)
        """How many events there are."""
        self._listener = listener
        self.journal = journal

    def add(self, kind: EventKind, /, *, record: Record | None = None, **data: Any) -> Event:
        event = Event(kind, round(self.now, 6), data)
        if self.journal is None:
            self._events.append(event)
        else:
            self.journal.append(_encode(event, record))
        self.length += 1
        if self._listener is not None:
            self._listener(event)
        return event

    @property
    def now(self) -> float:
        """Seconds since the session started, as events have them."""
        return time.perf_counter() - self._started

    async def sync(self) -> None:
        """Return when all events so far would outlive the machine's power. They outlive this process anyway."""
        if self.journal is not None:
            await self.journal.sync()

    def __iter__(self) -> Iterator[Event]:
        """Every event so far; from a journal they are read one by one."""
        return iter(self._events) if self.journal is None else (event for event, _ in decoded(self.journal.path))

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self)


def encode_event(event: Event) -> str:
    """One line, without its newline."""
    return json.dumps({"kind": event.kind, "at": event.at, **event.data}, ensure_ascii=False)


def _encode(event: Event, record: Record | None) -> bytes:
    data = event.data if record is None else {**event.data, "record": record}
    return _bytes(encode_event(Event(event.kind, event.at, data)))


def _bytes(line: str) -> bytes:
    return line.encode("utf-8", "backslashreplace")  # a lone surrogate becomes \\udcXX, which is JSON for just that


def decoded(journal: Path) -> Iterator[tuple[Event, Record]]:
    """The events of a journal, each with its record ({} where it has none). Another process may be writing it."""
    for number, line in enumerate(whole_lines(journal), 1):
        yield _decode(line, f"{journal}, line {number}")


def _decode(line: bytes, where: str) -> tuple[Event, Record]:
    try:
        data = dict(json.loads(line))
        kind, at, record = data.pop("kind"), data.pop("at"), data.pop("record", {})
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: not an event ({error}); restore it from a copy") from None
    return Event(kind, at, data), record


def write_events(path: Path, events: Iterable[Event]) -> None:
    """Append to a log, making it if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        append_whole(file.fileno(), b"".join(_bytes(encode_event(event)) + b"\n" for event in events), path)


def read_events(path: Path) -> list[Event]:
    """The events of a log. A last line without its newline was being written when its process died, and is left out."""
    *lines, _ = path.read_bytes().split(b"\n")
    return [_decode(line, f"{path}, line {number}")[0] for number, line in enumerate(lines, 1)]
