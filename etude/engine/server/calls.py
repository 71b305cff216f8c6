"""A message that may hold tool calls, told as it is written.

Owns what is certain at any moment: words outside a call at once, a call's name when its tool is known, its arguments
as a growing JSON object, line by line. Reading is `harness.protocol`'s, one parser for product, rollouts and this; here
is only the JSON. A call that turns out malformed is words, verbatim, unless part of it had been told by then.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

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
        self._told = ""
        """Of the open call's JSON."""
        self._id = ""
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
            return [self._piece(item.name, json.dumps(dict(item.arguments), ensure_ascii=False), complete=True)]
        self.malformed += 1
        if self._told:
            self.told_in_part = True  # what was told stays told; the arguments remain a JSON object that never ends
            self._next_call()
            return []
        return [Words(item.raw)]

    def _grown(self, draft: Draft) -> list[Event]:
        tool = self._tools.get(draft.name)
        if tool is None:
            return []
        told = _json_so_far(tool, draft)
        return [self._piece(draft.name, told, complete=False)] if len(told) > len(self._told) else []

    def _piece(self, name: str, told: str, complete: bool) -> CallPiece:
        first = not self._told
        if first:
            self._id = f"call_{secrets.token_hex(12)}"
        piece = CallPiece(self.calls, self._id, name, told[len(self._told) :], first, complete)
        self._told = told
        if complete:
            self._next_call()
        return piece

    def _next_call(self) -> None:
        self.calls += 1
        self._told = ""


def _json_so_far(tool: ToolSchema, draft: Draft) -> str:
    """As much of the arguments' JSON as no later line can change; it stops at the first value that does not fit."""
    parts: list[str] = []
    for key, value in draft.values:
        kind = tool.types.get(key)
        if kind is None:
            break
        try:
            parts.append(f"{_quoted(key)}: {json.dumps(read_value(kind, value), ensure_ascii=False)}")
        except ValueError:
            break
    told = "{" + ", ".join(parts)
    if len(parts) < len(draft.values) or draft.key is None or tool.types.get(draft.key) != "string":
        return told
    # the last line is held back: its newline may be the closing tag's, and a forgotten tag may hide in it
    open_value = f'{_quoted(draft.key)}: "{_quoted("".join(draft.lines[:-1]))[1:-1]}'
    return f"{told}, {open_value}" if parts else told + open_value


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
