"""The log of a session: events appended as they happen, and their form on disk.

Owns `EventLog`, and one JSON object a line for `write_events` and `read_events`. A log is only ever appended to;
terminal, web page, traces and exports are projections of it. It holds text for people; token ids are in the segments.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from etude.errors import CheckpointError
from etude.records import Event

Kind: TypeAlias = Literal["session", "prompt", "completion", "tool_call", "tool_result", "segment_sealed", "end"]


class EventLog:
    """Collects a session's events and tells `listener` of each; a listener must be quick, the session waits for it."""

    def __init__(self, listener: Callable[[Event], None] | None = None) -> None:
        self._started = time.perf_counter()
        self._events: list[Event] = []
        self._listener = listener

    def add(self, kind: Kind, /, **data: Any) -> None:
        event = Event(kind, time.perf_counter() - self._started, data)
        self._events.append(event)
        if self._listener is not None:
            self._listener(event)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self._events)


def encode_event(event: Event) -> str:
    """One line, without its newline."""
    return json.dumps({"kind": event.kind, "at": round(event.at, 6), **event.data}, ensure_ascii=False)


def write_events(path: Path, events: Iterable[Event]) -> None:
    """Append to a log, making it if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # a lone surrogate becomes \\udcXX, which is JSON for just that
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(encode_event(event) + "\n" for event in events)


def read_events(path: Path) -> list[Event]:
    """The events of a log. A last line without its newline was being written when its process died, and is left out."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    events = []
    for number, line in enumerate(lines, 1):
        try:
            data = dict(json.loads(line))
            events.append(Event(data.pop("kind"), data.pop("at"), data))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}, line {number}: not an event ({error}); restore it from a copy") from None
    return events
