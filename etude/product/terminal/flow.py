"""The model's words on the screen as they come: wrapped at words, with what Markdown marks set off.

Owns `Flow`. Nothing that was written is written again: a word is held back until it is whole, a line of code too, a
code span or a bold stretch until it is closed or cannot be one, and that is all the delay there is. Headings, bullets,
quotes, code spans, bold and fenced blocks are known; everything else stands as the model wrote it. Lines of a block
are not set in, so that they can be copied; what colours them is `code`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len, chop_cells

from etude.plain import plain
from etude.product.terminal.code import PLAIN, Code

_UNIT = re.compile(r"\n| +|\*\*(?=[^ \n*])[^\n*]*?[^ \n*]\*\*|`[^`\n]+`|[^ \n`*]+|[`*]+")
_FENCED = re.compile(r"\n|[^\n]+")
_HELD = 240
"""Characters of a span that is not closed yet; a longer one is none."""
_NARROWEST = 8
_BULLET = re.compile(r"[-*+•]|\d{1,3}[.)]")
_HEADING = re.compile(r"#{1,6}")
_OPENED, _CLOSED, _FENCE = "╭ ", "╰", "```"


class Flow:
    """One message. `write(text, style)` is given pieces without a newline, or a newline alone; `width()` is asked for
    each line, since a terminal may be resized."""

    def __init__(self, write: Callable[[str, str], None], width: Callable[[], int], marks: bool = False) -> None:
        """`marks` keeps the marks of code and bold, where no colour shows them; code is not coloured then."""
        self._write, self._marks = write, marks
        self._width = lambda: max(width(), _NARROWEST)
        self._buffer = ""
        self._word: list[tuple[str, str]] = []
        self._spaces = ""
        self._column = 0
        self._hanging = 0
        self._line_style = ""
        self._fenced = False
        self._fence_line = ""
        self._code: Code | None = None
        """Of the block that is open, where it is coloured."""
        self._began = False

    def feed(self, text: str) -> None:
        """More of the message."""
        self._buffer += plain(text.replace("\r\n", "\n"))
        self._take(final=False)

    def finish(self) -> None:
        """The message is over: what is held back is written, and the line is ended."""
        self._take(final=True)
        self._emit()
        if self._column:
            self._write("\n", "")
        self._column, self._fenced, self._line_style, self._code = 0, False, "", None

    def _take(self, final: bool) -> None:
        at = 0
        while at < len(self._buffer):
            unit = _FENCED.match(self._buffer, at) if self._fenced else _UNIT.match(self._buffer, at)
            assert unit is not None, "every character is part of a unit"
            if not final and self._may_grow(unit):
                break
            self._unit(unit[0])
            at = unit.end()
        self._buffer = self._buffer[at:]

    def _may_grow(self, unit: re.Match[str]) -> bool:
        """Whether what comes next could make another unit of it."""
        text, rest = unit[0], self._buffer[unit.start() :]
        if text == "\n":
            return False
        if unit.end() == len(self._buffer):
            return self._code is not None or not self._fenced
        if self._fenced:
            return False
        opens = text == "`" or (text == "**" and not rest[2].isspace())
        return opens and "\n" not in rest and len(rest) < _HELD

    def _unit(self, text: str) -> None:
        if text == "\n":
            self._newline()
        elif self._fenced:
            self._fence_line += text
            self._put_code(text)
        elif text[0] == " ":
            self._emit()
            self._spaces = text
        else:
            self._styled(text)

    def _styled(self, text: str) -> None:
        """Part of a word, or a span, which is words."""
        if len(text) > 2 and text[0] == text[-1] == "`" and text.strip("`"):
            style, text = "cyan", text if self._marks else text[1:-1]
        elif len(text) > 4 and text.startswith("**") and text.endswith("**"):
            style, text = "bold", text if self._marks else text[2:-2]
        else:
            style = ""
        for number, part in enumerate(re.split(r"( +)", text)):
            if number % 2:
                self._emit()
                self._spaces = part
            elif part:
                self._word.append((part, style))

    def _emit(self) -> None:
        """Write the word that is whole, on this line or the next."""
        if not self._word:
            return
        if not self._began:
            self._begin_line("".join(text for text, _ in self._word))
        size = sum(cell_len(text) for text, _ in self._word)
        if self._column and self._column + len(self._spaces) + size > self._width():
            self._break()
        elif self._spaces:
            self._put(self._spaces, "")
        self._spaces = ""
        for text, style in self._word:
            self._put(text, style or self._line_style)
        self._word.clear()

    def _begin_line(self, word: str) -> None:
        """The first word of a line says what the line is."""
        self._began = True
        indent = len(self._spaces)
        self._hanging = min(indent, self._width() // 2)
        if _HEADING.fullmatch(word):
            self._line_style = "bold"
        elif word == ">":
            self._line_style, self._hanging = "dim", self._hanging + 2
        elif _BULLET.fullmatch(word):
            self._hanging += len(word) + 1
        elif word.startswith(_FENCE) and "`" not in word[3:]:
            self._line_style, self._fenced = "dim", True
            if not self._marks:
                self._code = Code(word[3:])
                self._word = [((_OPENED + word[3:]).rstrip(), "")]

    def _put_code(self, text: str) -> None:
        """What stands behind the opening mark, a line of the block, or its end."""
        if self._line_style or self._code is None:
            self._put(text, self._line_style or PLAIN)
        elif text.strip().startswith(_FENCE):
            self._put(text.replace(text.strip(), _CLOSED), "dim")
        else:
            for piece, style in self._code.line(text):
                self._put(piece, style)

    def _break(self) -> None:
        self._write("\n", "")
        self._column = 0
        if self._hanging:
            self._put(" " * self._hanging, "")

    def _put(self, text: str, style: str) -> None:
        """On this line as far as it goes; a word longer than a line is broken where the line ends."""
        room = self._width()
        while self._column + cell_len(text) > room:
            head = chop_cells(text, max(room - self._column, 1))[0] if self._column < room else ""
            if head:
                self._write(head, style)
            self._write("\n", "")
            text, self._column = text[len(head) :], 0
        if text:
            self._write(text, style)
            self._column += cell_len(text)

    def _newline(self) -> None:
        self._emit()
        if self._fenced and self._fence_line.strip().startswith(_FENCE):
            self._fenced, self._code = False, None
        self._fence_line, self._spaces = "", ""
        self._write("\n", "")
        self._column, self._hanging, self._line_style, self._began = 0, 0, "", False
