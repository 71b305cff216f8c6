"""The live events of a session that are not in its log, and their listeners.

Owns `Channel`: the message that is being written, what commands print, questions that wait for an answer, and whether
the session is at work; none of it outlives the process, and all of it is a help to the eye: what counts is in the log.
A listener gets lines of the log and all other events in one order, so that a piece comes before the message that it
became part of. A late listener first gets the current state, and misses nothing. One event loop.
"""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from etude.harness.endpoint import Delta, Retry, TextDelta
from etude.records import Event

Json: TypeAlias = dict[str, Any]
PRINTED_MAX = 64_000
"""Characters that a latecomer is told of what a command has printed."""
_WAITING_MAX = 20_000
_MESSAGE_ENDS = {"completion", "summary", "segment_sealed", "end", "undo", "redo"}


@dataclass(frozen=True)
class UnloggedEvent:
    """Something that is in no log."""

    name: str
    data: Mapping[str, Any]


LINE = UnloggedEvent("line", {})
"""The log has one line more."""


class Listener:
    """What one listener has not been told yet, in order."""

    def __init__(self) -> None:
        self._waiting: deque[UnloggedEvent] = deque()
        self._any = asyncio.Event()
        self.over = False
        """Whether nothing more will come: the server stops, or this listener has fallen too far behind."""

    def put(self, item: UnloggedEvent) -> None:
        if len(self._waiting) >= _WAITING_MAX:
            self.end()
        if not self.over:
            self._waiting.append(item)
            self._any.set()

    def end(self) -> None:
        self.over = True
        self._any.set()

    def forget(self) -> None:
        """Drop what waits: the listener knows it from elsewhere."""
        self._waiting.clear()

    def taken(self) -> UnloggedEvent | None:
        """What waits longest; None where nothing does."""
        return self._waiting.popleft() if self._waiting else None

    async def next(self, longest_s: float) -> UnloggedEvent | None:
        """None where nothing came for so long, or nothing will."""
        if not self._waiting and not self.over:
            self._any.clear()
            try:
                async with asyncio.timeout(longest_s):
                    await self._any.wait()
            except TimeoutError:
                return None
        return self._waiting.popleft() if self._waiting else None


class Channel:
    """Of one session, whether it is open or not."""

    def __init__(self) -> None:
        self.listeners: set[Listener] = set()
        self.state: Json = {"state": "resting", "error": None, "ended": None}
        self.questions: dict[str, Json] = {}
        self._clear_message()
        self._printed: dict[int, str] = {}
        self._decoders: dict[int, codecs.IncrementalDecoder] = {}

    def listen(self) -> Listener:
        listener = Listener()
        self.listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self.listeners.discard(listener)

    def snapshot(self) -> Json:
        """How things stand."""
        message = {"text": self._text, "reasoning": self._reasoning, "calls": list(self._calls.values())}
        printed = {str(index): text for index, text in self._printed.items()}
        return {**self.state, "questions": list(self.questions.values()), "message": message, "printed": printed}

    # --- what happens -------------------------------------------------------------------------------------------------

    def logged(self, event: Event) -> None:
        """The log has one line more, which holds `event`."""
        if event.kind in _MESSAGE_ENDS:
            self._clear_message()
        if event.kind == "tool_result":
            self._printed.pop(event.data["index"], None)
            self._decoders.pop(event.data["index"], None)
        for listener in self.listeners:
            listener.put(LINE)

    def on_text(self, delta: Delta) -> None:
        """The model writes."""
        if isinstance(delta, Retry):
            self._clear_message()
            self.tell("again", {"why": delta.why, "after_s": delta.after_s})
        elif isinstance(delta, TextDelta):
            if delta.kind == "text":
                self._text += delta.text
            else:
                self._reasoning += delta.text
            self.tell("words", {"kind": delta.kind, "text": delta.text})
        else:
            call = self._calls.setdefault(delta.index, {"name": "", "arguments": ""})
            call["name"], call["arguments"] = delta.name or call["name"], call["arguments"] + delta.arguments
            self.tell("call", {"index": delta.index, "name": delta.name, "arguments": delta.arguments})

    def printed(self, index: int, piece: bytes) -> None:
        """A command prints, by its place in the turn."""
        decoder = self._decoders.setdefault(index, codecs.getincrementaldecoder("utf-8")("replace"))
        if text := decoder.decode(piece):
            self._printed[index] = (self._printed.get(index, "") + text)[-PRINTED_MAX:]
            self.tell("printed", {"index": index, "text": text})

    def asked(self, request: str, questions: Json) -> None:
        """A turn waits for a yes or a no."""
        self.questions[request] = questions
        self.tell("asked", questions)

    def answered(self, request: str) -> None:
        self.questions.pop(request, None)
        self.tell("answered", {"request": request})

    def set_status(self, state: str, *, error: str | None = None, ended: str | None = None) -> None:
        """The session rests, works, or has stopped to."""
        self.state = {"state": state, "error": error, "ended": ended}
        if state != "working":
            self._clear_message()
            self._printed.clear()
            self._decoders.clear()
        self.tell("state", self.state)

    def tell(self, name: str, data: Mapping[str, Any]) -> None:
        for listener in self.listeners:
            listener.put(UnloggedEvent(name, data))

    def _clear_message(self) -> None:
        self._text, self._reasoning = "", ""
        self._calls: dict[int, Json] = {}
