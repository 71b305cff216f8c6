"""Streams a message that may hold tool calls, while it is written.

Owns what is certain at any moment: words outside a call at once, a call's name when its tool is known, its arguments as
a growing JSON object, line by line. Reading is `harness.protocol`'s, one parser for product, rollouts and this; here is
only the JSON. A call that turns out malformed is sent as text, verbatim, unless part of it was already sent.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from etude.engine.server.tool_schemas import completed
from etude.harness.protocol import CallParser, Draft, Item, Text
from etude.harness.schema import ToolCall, ToolSchema, read_value


@dataclass(frozen=True)
class Words:
    """Text outside any call."""

    text: str


@dataclass(frozen=True)
class CallPiece:
    """More of a call's arguments. The first piece of each call names it; the last is `complete`."""

    index: int
    id: str
    name: str
    arguments: str
    first: bool
    complete: bool


Event: TypeAlias = Words | CallPiece


class CallStream:
    """One assistant message. Feed its text as it comes, then `finish`. Without tools all of it is words."""

    def __init__(self, tools: Mapping[str, ToolSchema], eager: bool) -> None:
        """`eager` tells calls as they grow; otherwise each is told when it is whole, or as words if it is malformed."""
        self._tools, self._eager = tools, eager
        self._parser = CallParser(tools, eager=True)
        self._id = ""
        self._next = _Told()
        self.calls = 0
        self.malformed = 0
        self.told_in_part = False
        """A malformed call was told before it was known to be one."""

    def feed(self, text: str) -> list[Event]:
        """Take a piece of the message of any size."""
        if not self._tools:
            return [Words(text)] if text else []
        events = self._all(self._parser.feed(text))
        if self._eager and "\n" in text and (draft := self._parser.draft) is not None:
            events += self._grown(draft)
        return events

    def finish(self, cut: bool) -> list[Event]:
        """The message is over; `cut` if a limit ended it."""
        if not self._tools:
            return []
        return self._all(self._parser.finish(cut))

    def _all(self, items: list[Item]) -> list[Event]:
        return [event for item in items for event in self._of(item)]

    def _of(self, item: Item) -> list[Event]:
        if isinstance(item, Text):
            return [Words(item.text)]
        if isinstance(item, ToolCall):
            whole = json.dumps(completed(self._tools[item.name], item.arguments), ensure_ascii=False)
            return [self._piece(item.name, whole[self._next.length :], complete=True)]
        self.malformed += 1
        if self._next.length:
            self.told_in_part = True  # what was told stays told; the arguments remain a JSON object that never ends
            self._next_call()
            return []
        return [Words(item.raw)]

    def _grown(self, draft: Draft) -> list[Event]:
        tool = self._tools.get(draft.name)
        more = self._next.more(tool, draft) if tool is not None else ""
        return [self._piece(draft.name, more, complete=False)] if more else []

    def _piece(self, name: str, more: str, complete: bool) -> CallPiece:
        first = not self._next.length
        if first:
            self._id = f"call_{secrets.token_hex(12)}"
        self._next.length += len(more)
        piece = CallPiece(self.calls, self._id, name, more, first, complete)
        if complete:
            self._next_call()
        return piece

    def _next_call(self) -> None:
        self.calls += 1
        self._next = _Told()


class _Told:
    """How much of a growing call's JSON was told. Each value, and each line of the open one, is looked at once."""

    def __init__(self) -> None:
        self.length = 0
        self._values = 0
        """How many values were told to their end."""
        self._lines, self._open = 0, 0
        """How many lines of the open value were told, and their length with its key."""
        self._stuck = False
        """At a value that does not fit."""

    def more(self, tool: ToolSchema, draft: Draft) -> str:
        """As much of the arguments' JSON as no later line can change; it stops at the first value that does not fit."""
        parts = [] if self.length else ["{"]
        while self._values < len(draft.values) and not self._stuck:
            key, value = draft.values[self._values]
            try:
                written = json.dumps(read_value(tool.types[key], value), ensure_ascii=False)
            except (KeyError, ValueError):
                self._stuck = True
                break
            parts.append(f"{self._before(key)}{written}"[self._open :])
            self._values, self._lines, self._open = self._values + 1, 0, 0
        if not self._stuck and draft.key is not None and tool.types.get(draft.key) == "string":
            parts += self._opened(draft.key, draft.lines)
        return "".join(parts)

    def _opened(self, key: str, lines: Sequence[str]) -> list[str]:
        """The last line is held back: its newline may be the closing tag's, and a forgotten tag may hide in it."""
        parts = [] if self._open else [f'{self._before(key)}"']
        parts += [_quoted(line)[1:-1] for line in lines[self._lines : -1]]
        self._lines = max(self._lines, len(lines) - 1)
        self._open += sum(map(len, parts))
        return parts

    def _before(self, key: str) -> str:
        return f"{', ' if self._values else ''}{_quoted(key)}: "


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
