"""The output of a running command, on its way to an editor.

Owns `Screen`, one a command. An editor that can show an agent's own terminal (it says `terminal_output` of itself) gets
every piece as it comes; to any other the end of the output is told a few times a second, as the call's content, each
time in place of the last. Starts nothing, and keeps nothing once the command has ended.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from pathlib import Path
from typing import Any

from acp.schema import TerminalToolCallContent, ToolCallProgress

from etude.product.acp.calls import Content, clean, exit_code_of, output

_PAUSE_S = 0.25
_TAIL = 8000
"""Characters of the output that are shown while a command runs."""


class Screen:
    """`add` tells the client. `id` is the call's, and the terminal's."""

    def __init__(self, id: str, directory: Path, terminals: bool, add: Callable[[ToolCallProgress], None]) -> None:
        self.id, self._directory, self._terminals, self._add = id, directory, terminals, add
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tail = ""
        self._told = False
        self._later: asyncio.TimerHandle | None = None

    def opening(self) -> tuple[list[Content], dict[str, Any] | None]:
        """What the call shows before anything is printed, and what stands beside it."""
        if not self._terminals:
            return [], None
        shown: list[Content] = [TerminalToolCallContent(type="terminal", terminal_id=self.id)]
        return shown, {"terminal_info": {"terminal_id": self.id, "cwd": str(self._directory)}}

    def printed(self, piece: bytes) -> None:
        text = self._decoder.decode(piece)
        if self._terminals:
            self._terminal(text)
            return
        self._tail = (self._tail + text)[-_TAIL:]
        if self._later is None:
            self._show()

    def ended(self, result: str) -> tuple[list[Content] | None, dict[str, Any] | None]:
        """The call's last content, and what stands beside it. None leaves what is shown as it is."""
        self.close()
        if not self._terminals:
            return output(result), None
        if not self._told:
            self._terminal(result)
        code = exit_code_of(result)
        exit = {"terminal_id": self.id, "exit_code": code, "signal": None}
        return None, None if code is None else {"terminal_exit": exit}

    def close(self) -> None:
        """Show nothing more."""
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _terminal(self, text: str) -> None:
        self._told = True
        meta = {"terminal_output": {"terminal_id": self.id, "data": clean(text)}}
        self._add(ToolCallProgress(session_update="tool_call_update", tool_call_id=self.id, field_meta=meta))

    def _show(self) -> None:
        """Now, and once more after a pause if there is more by then."""
        self._later, shown = None, self._tail
        self._add(ToolCallProgress(session_update="tool_call_update", tool_call_id=self.id, content=output(self._tail)))
        self._later = asyncio.get_running_loop().call_later(_PAUSE_S, lambda: self._again(shown))

    def _again(self, shown: str) -> None:
        self._later = None
        if self._tail != shown:
            self._show()
