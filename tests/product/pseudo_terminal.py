"""A real pseudo-terminal with a real command in it, and the screen that a person would see.

`Terminal(argv)` starts a process on a pty and renders what it writes with pyte. `see` waits for text to stand on the
screen or in what has scrolled away, with a deadline that shows the screen; `type` sends keys. Questions that a terminal
answers (where the cursor is) are answered. Everything that was written, byte for byte, is in `written`.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte
from pyte.screens import Char

ENTER, CTRL_C, CTRL_D, TAB, ALT_ENTER = "\r", "\x03", "\x04", "\t", "\x1b\r"
_DEADLINE_S = 120.0


class _Screen(pyte.HistoryScreen):
    """Knows faint text too, which pyte does not: it is shown in grey."""

    def select_graphic_rendition(self, *attributes: int, **given: bool) -> None:
        super().select_graphic_rendition(*(90 if each == 2 else each for each in attributes), **given)


def _said(row: Sequence[Char]) -> str:
    return "".join(cell.data for cell in row).rstrip()


class Terminal:
    """Use as a context manager: its end ends the process."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], columns: int = 80, rows: int = 30) -> None:
        self.written = bytearray()
        self._screen = _Screen(columns, rows, history=5000)
        self._stream = pyte.ByteStream(self._screen)
        self._seen = 0
        ours, theirs = pty.openpty()
        self._file = ours
        self._screen.write_process_input = lambda data: os.write(ours, data.encode())
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {"TERM": "xterm-256color", **env}
        try:
            self.process = subprocess.Popen(
                argv, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )  # fmt: skip
        finally:
            os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        os.close(self._file)

    def rows(self) -> list[list[Char]]:
        """Everything there is to see, from the first line that scrolled away to the last that is not empty."""
        shown = [self._screen.buffer[number] for number in range(self._screen.lines)]
        rows = [[row[at] for at in range(self._screen.columns)] for row in (*self._screen.history.top, *shown)]
        while rows and not _said(rows[-1]):
            rows.pop()
        return rows

    @property
    def lines(self) -> list[str]:
        return [_said(row) for row in self.rows()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def echoes(self) -> bool:
        """Whether keys are shown as they are typed, and taken line by line: as a shell finds and wants it."""
        flags = termios.tcgetattr(self._file)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def type(self, keys: str) -> None:
        os.write(self._file, keys.encode())

    def interrupt(self) -> None:
        """Ctrl-C once the process sleeps until a key comes. Python notices a signal before it reads a line or while
        it does; one that falls between the two is noticed with the next key, which here never comes."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        self.wait(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", "the process to wait for a key")
        self.type(CTRL_C)

    def say(self, line: str) -> None:
        """A line at the prompt."""
        self.see(r"› *$")
        self.type(line + ENTER)

    def see(self, pattern: str, deadline_s: float = _DEADLINE_S) -> str:
        """Wait until a line matches that has not been waited for yet; the lines up to it are done with."""
        until = time.monotonic() + deadline_s
        while True:
            lines = self.lines
            for number in range(self._seen, len(lines)):
                if re.search(pattern, lines[number]):
                    self._seen = number + 1
                    return lines[number]
            if not self._read(until - time.monotonic()):
                raise AssertionError(f"no line {pattern!r} within {deadline_s:g} s; on the screen:\n{self.text}")

    def wait(self, until: Callable[[], bool], what: str, deadline_s: float = _DEADLINE_S) -> None:
        """Wait for something that stands elsewhere, while the screen goes on."""
        end = time.monotonic() + deadline_s
        while not until():
            assert time.monotonic() < end, f"waited {deadline_s:g} s for {what}; on the screen:\n{self.text}"
            self._read(0.05)

    def end(self, deadline_s: float = _DEADLINE_S) -> int:
        """Wait for the process to end; its exit code."""
        until = time.monotonic() + deadline_s
        while self._read(until - time.monotonic()):
            pass
        return self.process.wait(max(until - time.monotonic(), 1))

    def _read(self, wait_s: float) -> bool:
        """Take in what comes next; False where nothing does any more."""
        if wait_s <= 0 or not select.select([self._file], [], [], wait_s)[0]:
            return False
        try:
            data = os.read(self._file, 65536)
        except OSError:  # the process has closed it
            return False
        self.written += data
        self._stream.feed(data)
        return bool(data)
