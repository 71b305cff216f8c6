"""Reads tool calls from what a model writes: incremental, tolerant, never raising.

Owns the grammar of Qwen3-Coder's calls,

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

and everything models do to it: several calls, several functions in one block, a missing opener or closer, tags on one
line. A value is raw text: one newline at each end is taken off, all else is kept, indentation above all. Since
nothing in it is escaped, its closing tag counts only at the start of a line; `x = "</parameter>"` inside a file is
safe. The exception is a value that begins on its opening tag's own line: `<parameter=path>a.py</parameter>` ends at
the first closing tag.

The parser consumes whole lines, so that how the text was cut into pieces cannot matter: feeding it token by token
equals feeding it at once. A call is delivered as soon as its function is closed, before the message ends. Its time is
linear in the text, however the text is made and cut: no step looks again at what an earlier one has passed. One
implementation serves product, rollouts and evaluation; it reads text only, and never sees or makes a token id. What a
call means is checked against the schemas (`harness.schema`); rendering is the other direction (`harness.prompt`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from etude.harness.coerce import check_named_call, read_leniently
from etude.harness.schema import MalformedCall, ToolCall, ToolSchema, check_call


@dataclass(frozen=True)
class Text:
    """Words outside any call, verbatim."""

    text: str


@dataclass(frozen=True)
class Draft:
    """A call that is still being written: the values it has, and the whole lines of the one that is not yet closed.
    Both go on growing as the parser is fed."""

    name: str
    values: Sequence[tuple[str, str]]
    key: str | None
    lines: Sequence[str]


Item: TypeAlias = Text | ToolCall | MalformedCall

_BLOCK = re.compile(r"<tool_call>(?=\s*(?:$|<function=))|^\s*<tool_call>|^\s*(?=<function=)")
_FUNCTION = re.compile(r"\s*<function=([^>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>")
_END_FUNCTION = re.compile(r"\s*</function>")
_END_BLOCK = re.compile(r"\s*</tool_call>")
_BLANK = re.compile(r"\s*$")
_OBJECT = re.compile(r"\s*\{")
_BLOCK_OPENER, _BLOCK_CLOSER = "<tool_call>", "</tool_call>"
_CLOSER = "</parameter>"
_LOST_CLOSER = re.compile(r"<parameter=[\w-]+>|(?:(?:</function>|</?tool_call>|<function=[\w-]+>)\s*)+$")
"""A line that can only mean that a value's closing tag was forgotten: structure, from the line's start to its end."""

_FORM = "write <tool_call>, <function=NAME>, <parameter=KEY>, each on its own line"
_NO_FUNCTION = f"a call without a function; {_FORM}"


class CallParser:
    """One assistant message. Feed pieces as they come, then `finish`; each returns the items completed by it.

    An `eager` parser tells words outside any call as they come, as several `Text` a line; otherwise they come line by
    line. A `lenient` one takes values that are not quite of their type (`harness.coerce`), and values in lines that end
    as Windows ends them, if their tag's line did, and a call whose block holds JSON with its name and arguments, the
    other form that models are trained with. `raw` is the whole text so far. After `finish` the parser is spent.
    """

    def __init__(self, tools: Mapping[str, ToolSchema], *, eager: bool = False, lenient: bool = False) -> None:
        self._tools = tools
        self._eager = eager
        self._lenient = lenient
        self._pieces: list[str] = []
        self._rest: list[str] = []
        """The last line, while it is incomplete."""
        self._emitted, self._held, self._open = 0, 0, True
        """Of that line: the characters told as words already, the blank ones held back since they may precede a call,
        and whether what comes next can only be words."""
        self._items: list[Item] = []
        self._state: Callable[[str, int], int] = self._in_text
        self._call: list[str] = []
        """The raw text of the open call, up to the current line, of which it has what begins at `_call_at`."""
        self._call_at = 0
        self._name = ""
        self._values: list[tuple[str, str]] = []
        self._key = ""
        self._lines: list[str] = []
        self._returns = False
        """Whether the open value's lines end in a carriage return that is no part of it."""
        self._fault = ""

    @property
    def raw(self) -> str:
        return "".join(self._pieces)

    @property
    def draft(self) -> Draft | None:
        """The call that is being written, once its tool is named and while nothing is wrong with it."""
        if self._fault or self._state not in (self._in_function, self._in_value):
            return None
        open_value = self._state == self._in_value
        return Draft(self._name, self._values, self._key if open_value else None, self._lines if open_value else ())

    def feed(self, piece: str) -> list[Item]:
        """Take a piece of text of any size."""
        self._pieces.append(piece)
        lines, newline, rest = piece.rpartition("\n")
        if newline:
            for line in ("".join(self._rest) + lines).split("\n"):
                self._take_line(line + "\n")
            self._rest = []
        if rest:
            self._rest.append(rest)
            if self._eager and self._open and self._state == self._in_text:
                self._emit(rest)
        return self._take_items()

    def finish(self, cut: bool = False) -> list[Item]:
        """The message is over. A call still open is completed, unless the message was `cut` by a limit: then half a
        file must not be written, and the call is malformed."""
        if self._rest:
            self._take_line("".join(self._rest))
            self._rest = []
        if self._in_call:
            if self._state == self._in_value:
                self._end_value(lost_closer=True)
            if cut:
                self._fault = "the message was cut off inside this call; write less at once"
            elif self._state == self._before_function:
                self._fault = _NO_FUNCTION
            self._end_call("", 0)
        self._state = self._in_text
        return self._take_items()

    @property
    def _in_call(self) -> bool:
        return self._state not in (self._in_text, self._after_function)

    def _emit(self, rest: str) -> None:
        """Of more of an incomplete line: what is words outside any call, whatever follows."""
        words, opener, _ = rest.partition("<")
        self._open = not opener
        if words.strip() or (words and self._emitted):
            self._items.append(Text("".join(self._rest)[: self._held] + words if self._held else words))
            self._emitted += self._held + len(words)
            self._held = 0
        elif not self._emitted:
            self._held += len(words)

    # --- one line at a time; each state consumes from `at` and returns where the next one goes on -----------------

    def _take_line(self, line: str) -> None:
        at = 0
        while at < len(line):
            at = self._state(line, at)
        if self._in_call:
            self._call.append(line[self._call_at :])
            self._call_at = 0
        self._emitted, self._held, self._open = 0, 0, True

    def _take_items(self) -> list[Item]:
        items, self._items = self._items, []
        return items

    def _in_text(self, line: str, at: int) -> int:
        found = _BLOCK.search(line, at) if line.find("<", at) >= 0 else None
        words = line[max(at, self._emitted) : found.start() if found else len(line)]
        if words:
            self._items.append(Text(words))
        if found is None:
            return len(line)
        self._begin_call(found.start())
        return found.end()

    def _begin_call(self, at: int) -> None:
        self._call, self._call_at = [], at
        self._state = self._before_function

    def _before_function(self, line: str, at: int) -> int:
        found = _FUNCTION.match(line, at)
        if found:
            self._name, self._state = _bare(found.group(1)), self._in_function
            return found.end()
        if _BLANK.match(line, at):
            return len(line)
        if self._lenient and not self._fault and _OBJECT.match(line, at):
            self._lines, self._state = [], self._in_object
            return at
        self._fault = _NO_FUNCTION
        closed = line.find(_BLOCK_CLOSER, at)
        if closed < 0:
            return len(line)
        end = closed + len(_BLOCK_CLOSER)
        self._end_call(line, end)
        self._state = self._in_text
        return _skip_newline(line, end)

    def _in_object(self, line: str, at: int) -> int:
        if at == 0 and line.startswith(_BLOCK_OPENER):  # the closing tag was forgotten
            self._end_call(line, 0)
            self._state = self._in_text
            return 0
        closed = line.find(_BLOCK_CLOSER, at)
        if closed < 0:
            self._lines.append(line[at:])
            return len(line)
        self._lines.append(line[at:closed])
        end = closed + len(_BLOCK_CLOSER)
        self._end_call(line, end)
        self._state = self._in_text
        return _skip_newline(line, end)

    def _in_function(self, line: str, at: int) -> int:
        if found := _PARAMETER.match(line, at):
            self._key, self._lines = _bare(found.group(1)), []
            return self._begin_value(line, found.end())
        if found := _END_FUNCTION.match(line, at):
            self._end_call(line, found.end())
            self._state = self._after_function
            return found.end()
        if _END_BLOCK.match(line, at) or _BLOCK.match(line, at):  # the function's closing tag was forgotten
            self._end_call(line, at)
            self._state = self._after_function
            return at
        if not _BLANK.match(line, at):
            self._fault = f"text outside a parameter; {_FORM}"
        return len(line)

    def _begin_value(self, line: str, at: int) -> int:
        if _BLANK.match(line, at):
            self._state = self._in_value
            self._returns = self._lenient and line.endswith("\r\n")
            return len(line)
        self._returns = False
        end = line.find(_CLOSER, at)
        if end >= 0:
            self._values.append((self._key, line[at:end]))
            return end + len(_CLOSER)
        self._lines.append(line[at:])
        self._state = self._in_value
        return len(line)

    def _in_value(self, line: str, at: int) -> int:
        if at == 0 and line[0] == "<":
            if line.startswith(_CLOSER):
                self._end_value(lost_closer=False)
                return len(_CLOSER)
            if _LOST_CLOSER.match(line):
                self._end_value(lost_closer=True)
                return 0
        self._lines.append(line[at:])
        return len(line)

    def _after_function(self, line: str, at: int) -> int:
        """Between a function's end and the block's: another function may follow, or the block's closing tag be
        missing."""
        if _FUNCTION.match(line, at):
            self._begin_call(at)
            return at
        if found := _END_BLOCK.match(line, at):
            self._state = self._in_text
            return _skip_newline(line, found.end())
        if _BLANK.match(line, at):
            return len(line)
        self._state = self._in_text
        return at

    # --- completing -----------------------------------------------------------------------------------------------

    def _end_value(self, lost_closer: bool) -> None:
        value = "".join(self._lines).removesuffix("\n")
        if self._returns:
            value = value.replace("\r\n", "\n").removesuffix("\r")
        if lost_closer:
            value = value.removesuffix(_CLOSER)
        self._values.append((self._key, value))
        self._state = self._in_function

    def _end_call(self, line: str, at: int) -> None:
        read = read_leniently if self._lenient else None
        raw = ("".join(self._call) + line[self._call_at : at]).strip()
        if self._fault:
            self._items.append(MalformedCall(self._fault, raw))
        elif self._state == self._in_object:
            self._items.append(check_named_call(self._tools, "".join(self._lines), raw))
        else:
            self._items.append(check_call(self._tools, self._name, self._values, raw, read))
        self._name, self._values, self._fault = "", [], ""


def parse_message(
    text: str, tools: Mapping[str, ToolSchema], cut: bool = False, *, lenient: bool = False
) -> list[Item]:
    """A whole message at once."""
    parser = CallParser(tools, lenient=lenient)
    return [*parser.feed(text), *parser.finish(cut)]


def calls_of(items: Iterable[Item]) -> list[ToolCall | MalformedCall]:
    """The calls among a message's items, in order."""
    return [item for item in items if not isinstance(item, Text)]


def _bare(name: str) -> str:
    return name.strip().strip("\"'")


def _skip_newline(line: str, at: int) -> int:
    """The newline after a block separates it from the next; it is not text."""
    return at + 1 if line[at : at + 1] == "\n" else at
