"""A project's rules for agents, word by word: its AGENTS.md and CLAUDE.md files.

Owns `read_rules`. They are looked for from the top of the repository down to the workspace, and below the workspace;
who asks again gets them as they are then. Rules stand in the system prompt, so that no summary can lose them.

This is read on the host and goes to a model's endpoint before anybody was asked, so it is read as an enemy's: plain
files of that name, none that is a link or has a second name, none that a rule forbids to read. A link to a file of the
workspace, as many projects have it, is named instead: the model reads that by its tools, which are held by the sandbox
and by the rules. What is above the workspace is read only where the repository's top belongs to the user or to the
workspace's owner: on a shared machine anybody can put a `.git` into /tmp.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from etude.host import beneath
from etude.host.repository import find

NAMES = ("AGENTS.md", "CLAUDE.md")
"""Where both lie in a directory they are read in this order, and what says the same, or leads to the other, once."""
_DEPTH = 4
_ENTRIES = 100_000
_MAX_BYTES = 64_000
_SKIPPED = {"node_modules", "target", "build", "dist", "vendor", "venv", "__pycache__"}
_TOLD_OF = (errno.EFBIG, errno.ELOOP, errno.EMLINK)
"""Why a file is not read and the model is told that it is there."""
_HEAD = (
    "Rules of this project, from its AGENTS.md and CLAUDE.md files. They hold for every file beside or below theirs; "
    "where two disagree, the one that is nearer to the file counts."
)


def read_rules(workspace: Path, forbidden: Sequence[str] = ()) -> str:
    """All rules as one text; empty where there are none. What is too long is left out, and its file is named.
    `forbidden` are files and directories of the workspace that no rule lets be read."""
    workspace = workspace.resolve()
    top = _top(workspace)
    blocks, left_out, room = [], [], _MAX_BYTES
    for directory in (*_above(top, workspace), *_below(workspace)):
        said: set[str] = set()
        for path in (directory / each for each in NAMES):
            name = os.path.relpath(path, workspace)
            if any(name == each or name.startswith(f"{each}/") for each in forbidden):
                continue
            try:
                data = beneath.read(top, str(path.relative_to(top)), room, alone=True)
            except OSError as error:
                if error.errno in _TOLD_OF and _leads_on(path, workspace):
                    left_out.append(name)
                continue
            text = data.decode("utf-8", "replace").strip()
            if text and text not in said:
                said |= {text, *(f"@{each}" for each in NAMES)}  # the whole of a file that includes the other
                room -= len(data)
                blocks.append(f"## {name}\n{text}")
    if left_out:
        blocks.append(f"Read these too before you work below them: {', '.join(left_out)}")
    return "\n\n".join([_HEAD, *blocks]) if blocks else ""


def _leads_on(path: Path, workspace: Path) -> bool:
    """To a file of the workspace that is not read anyway."""
    real = path.resolve()
    beside = real.parent == path.parent.resolve() and real.name in NAMES and real.name != path.name
    return real.is_relative_to(workspace) and not (beside and real.is_file())


def _top(workspace: Path) -> Path:
    """Of the repository that the workspace lies in; the workspace where there is none, or it is somebody else's."""
    found = find(workspace)
    return found.top if found is not None and found.top is not None else workspace


def _above(top: Path, workspace: Path) -> list[Path]:
    """The directories from the repository's top down to the one above the workspace."""
    return [each for each in reversed(workspace.parents) if each.is_relative_to(top)]


def _below(workspace: Path) -> Iterator[Path]:
    """The workspace and what is in it, but for where dependencies and builds lie."""
    for directory, _ in beneath.walk(workspace, depth=_DEPTH, most_entries=_ENTRIES, enter=_holds_rules):
        yield workspace / directory


def _holds_rules(name: str) -> bool:
    return not name.startswith(".") and name not in _SKIPPED
