"""The terminal as something that is only written to at its end.

Owns `Screen`: lines, words that come piece by piece, and one line of status at the very bottom, with what is typed
meanwhile, which is taken away before anything else is written. Whatever is written goes through `plain` here, so that
no caller can forget it. Nothing else is ever moved, cleared or drawn again, so what has scrolled up stays as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeAlias

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from etude.plain import plain, plain_line

Part: TypeAlias = str | tuple[str, str]
"""Text, or text and its style."""
_ERASE = "\r\x1b[2K"
_BELOW, _BACK = "\x1bD\x1b[A\x1b7\x1b[B\r\x1b[2K", "\x1b8"
"""To the start of an empty line below the one that is being written, and back to where that goes on."""
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_NARROWEST = 8


class Screen:
    """Over one console. Not for several threads."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, markup=False, emoji=False)
        self._mid_line = False
        self._shown = self._shown_below = False
        self._frame = 0
        self._blank = True

    @property
    def width(self) -> int:
        return self.console.width

    @property
    def coloured(self) -> bool:
        """Whether styles can tell things apart."""
        return self.console.color_system is not None and not self.console.no_color

    def piece(self, text: str, style: str = "") -> None:
        """More of a line, or its end; as wide as it is, for who has measured it."""
        self._clear_status()
        self.console.print(Text(plain(text), style=style), end="", soft_wrap=True)
        self.console.file.flush()
        self._blank = text == "\n" and not self._mid_line
        self._mid_line = not text.endswith("\n")

    def line(self, *parts: Part, indent: int = 0, hang: int = 2, cut: bool = False) -> None:
        """One line, wrapped with its further lines set in by `hang`; or, `cut` off at the width."""
        self._clear_status()
        if self._mid_line:
            self._write_text(Text(""))
        text = _text(parts)
        if cut:
            text.truncate(max(self.width - indent, 1), overflow="ellipsis")
            self._write_text(Text(" " * indent).append_text(text))
            return
        first, rest = self._split(text, self.width - indent)
        self._write_text(Text(" " * indent).append_text(first))
        if rest is not None:
            for row in rest.wrap(self.console, max(self.width - indent - hang, _NARROWEST)):
                self._write_text(Text(" " * (indent + hang)).append_text(row))

    def _split(self, text: Text, width: int) -> tuple[Text, Text | None]:
        """What stands on the first line, and what is left; None if nothing is."""
        first, *more = text.wrap(self.console, max(width, _NARROWEST)) or [Text("")]
        if not more:
            return first, None
        rest = text[len(first) :]
        first.rstrip()
        rest = rest[len(rest.plain) - len(rest.plain.lstrip(" ")) :]
        return first, rest[rest.plain.startswith("\n") :]

    def rows(self, rows: Iterable[tuple[str, str]], indent: int = 0) -> None:
        """Lines that are code or output: each broken where the terminal ends, never at words."""
        width = max(self.width - indent, _NARROWEST)
        for text, style in rows:
            for part in chop_cells(plain(text), width) or [""]:
                self.line((part, style), indent=indent, cut=True)

    def typed(self) -> None:
        """Somebody else has written a line: a prompt, and what was typed after it."""
        self._mid_line = self._blank = False

    def gap(self) -> None:
        """An empty line, unless there is one."""
        if not self._blank or self._mid_line:
            self.line("")

    def status(self, text: str, typed: str = "") -> None:
        """What is going on, at the bottom, until the next line, and the end of what was `typed` meanwhile; the empty
        text takes it away. Call it several times a second, so that it is seen to move. While a line is being written
        there is one only if something was typed, below that line."""
        self._clear_status()
        if not text or (self._mid_line and not typed) or self.console.is_dumb_terminal:
            return
        self._frame = (self._frame + 1) % len(_FRAMES)
        row = Text(f"{_FRAMES[self._frame]} {plain_line(text)}", style="dim")
        width = max(self.width - 1, 1)
        row.truncate(width // 2 if typed else width, overflow="ellipsis")
        if typed:
            row.append(_end_of(f" › {plain_line(typed)}", width - row.cell_len), style="not dim")
        self._shown, self._shown_below = True, self._mid_line
        self.console.file.write(_BELOW if self._shown_below else "")
        self.console.print(row, end="", soft_wrap=True)
        self.console.file.write(_BACK if self._shown_below else "")
        self.console.file.flush()

    def _clear_status(self) -> None:
        if self._shown:
            self.console.file.write(f"{_BELOW}{_BACK}" if self._shown_below else _ERASE)
            self._shown = False

    def _write_text(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)
        self.console.file.flush()
        self._mid_line, self._blank = False, not text.plain.strip()


def _end_of(text: str, width: int) -> str:
    """As much of its end as there is room for."""
    text = text[-max(width, 1) :]
    while cell_len(text) > width:
        text = text[1:]
    return text


def usable(file: object) -> bool:
    """Whether a stream is a terminal on which lines can be typed and coloured."""
    isatty = getattr(file, "isatty", None)
    return isatty is not None and bool(isatty()) and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _text(parts: Iterable[Part]) -> Text:
    pairs = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((plain(text), style) for text, style in pairs))
