"""What a tool is, and the rules all of them share: paths, errors, and the size of an answer.

Owns `Tool`, `ToolConfig`, `ToolResult` and `ToolError`. A tool is data: a schema, what it touches, and a function over
the `Sandbox` seam. Knows no particular tool, and keeps no state between calls.
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from pydantic import Field

from etude.config import Config
from etude.environments.base import WORKSPACE, Sandbox
from etude.harness.edits import Tolerance
from etude.harness.schema import ToolSchema

ON_OUTPUT: ContextVar[Callable[[bytes], None] | None] = ContextVar("on_output", default=None)
"""Who watches the call that runs now: told of a command's output as it comes. Set by `execute`, for each call."""


OVERDUE: ContextVar[list[None] | None] = ContextVar("overdue", default=None)
"""Of the call that runs now: whether it has met a deadline."""


def overdue() -> None:
    """Say that the call that runs now has met a deadline. What it answers is the model's to read; this is counted."""
    if (marks := OVERDUE.get()) is not None:
        marks.append(None)


class Baseline(Protocol):
    """The workspace's files as they were when the session began. Both raise CheckpointError or DeadlineExceeded."""

    async def changed(self) -> list[str]:
        """The files that are not what they were, without those that are gone; relative to the workspace."""
        ...

    async def read(self, path: str) -> bytes | None:
        """A file as it was; None where there was none, or it is not kept."""
        ...


BASELINE: ContextVar[Baseline | None] = ContextVar("beginning", default=None)
"""Of the session whose call runs now; None where it keeps no snapshots. Set by `turns`, for each turn."""


class ToolConfig(Config):
    """Bounds on what one call may cost, and how strict the tools are; training varies both."""

    max_observation_bytes: int = Field(16_000, ge=200)
    """Longest answer of one call; what is beyond is cut, with a note saying so."""
    max_file_bytes: ClassVar[int] = 2_000_000
    """Largest file the tools read or edit: no source is larger, and a call must not fill our memory."""
    command_timeout_s: float = Field(120.0, gt=0)
    """How long a command is waited for."""
    overlong: Literal["background", "stop"] = "background"
    """What becomes of a command that takes longer. The agent's tools only: of the small set's it is stopped."""
    call_timeout_s: float | None = Field(None, gt=0)
    """How long a whole call may take, of whatever tool; past it the call is stopped and the model told so. None: only
    what it is made of has deadlines."""
    edit_tolerance: Tolerance = "context"
    """How much of an edit's old text may differ from the file. The agent's tools only."""
    lint_base: str = ""
    """The git revision whose findings are not the agent's: read_lints leaves them out. Empty: the session's beginning
    where that is known, else HEAD."""


class ToolError(Exception):
    """What a call did wrong, for the model: becomes the observation `error: <message>`. Never leaves the package."""


@dataclass(frozen=True)
class ToolResult:
    """The answer to one call; `error` is true where the call could not be done (a failing command is not an error)."""

    text: str
    error: bool = False
    overdue: bool = False
    """Whether it, or a command it ran, took longer than it may."""


@dataclass(frozen=True)
class Tool(ToolSchema):
    """A schema that can be run: `run` gets arguments that fit it, and raises ToolError or OSError for what the model
    did wrong.
    """

    reads_only: bool
    """Neither changes files nor runs commands, so it may run beside others of its kind."""
    run: Callable[[Sandbox, ToolConfig, Mapping[str, Any]], Awaitable[str]]
    file: str | None = None
    """The parameter that names the only file it touches; None: it may touch any."""


def absolute(path: str) -> str:
    """A path as the sandbox wants it; relative ones start in the workspace."""
    return posixpath.normpath(posixpath.join(WORKSPACE, path))


def relative(path: str) -> str:
    """A path as a model reads it: relative if it is in the workspace."""
    full = absolute(path)
    return full[len(WORKSPACE) + 1 :] or "." if f"{full}/".startswith(f"{WORKSPACE}/") else full


def cut_middle(text: str, max_bytes: int) -> str:
    """Text that surely encodes, and fits; the middle goes first, since heads and tails tell most."""
    if len(text) <= max_bytes and text.isascii():
        return text
    data = text.encode("utf-8", "replace")  # a lone surrogate, from a file that is not UTF-8, becomes `?`
    if len(data) <= max_bytes:
        return data.decode()
    half = max(max_bytes - 40, 0) // 2
    note = f"\n[... {len(data) - 2 * half} bytes cut ...]\n"
    return data[:half].decode(errors="ignore") + note + data[len(data) - half :].decode(errors="ignore")


def cut_lines(lines: list[str], max_bytes: int) -> int:
    """How many of the first lines fit into `max_bytes`, with a newline each and a note after them."""
    room = max_bytes - 60
    for count, line in enumerate(lines):
        room -= len(line.encode("utf-8", "replace")) + 1
        if room < 0:
            return count
    return len(lines)
