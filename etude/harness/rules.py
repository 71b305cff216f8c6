"""A project's rules for agents, word by word: its AGENTS.md files.

Owns `read_rules`. They are looked for from the top of the repository down to the workspace, and below the workspace;
who asks again gets them as they are then. Rules stand in the system prompt, so that no summary can lose them. Reads
files of the user's machine, and nothing but files of that name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

NAME = "AGENTS.md"
_DEPTH = 4
_DIRECTORIES = 5_000
_MAX_BYTES = 64_000
_SKIPPED = {"node_modules", "target", "build", "dist", "vendor", "venv", "__pycache__"}
_HEAD = (
    "Rules of this project, from its AGENTS.md files. They hold for every file beside or below theirs; where two "
    "disagree, the one that is nearer to the file counts."
)


def read_rules(workspace: Path) -> str:
    """All rules as one text; empty where there are none. What is too long is left out, and its file is named."""
    blocks, left_out, room = [], [], _MAX_BYTES
    for path in (*_above(workspace), *_below(workspace)):
        text = _read(path)
        if len(text.encode()) > room:
            left_out.append(_name(path, workspace))
        elif text:
            room -= len(text.encode())
            blocks.append(f"## {_name(path, workspace)}\n{text}")
    if left_out:
        blocks.append(f"Read these too before you work below them: {', '.join(left_out)}")
    return "\n\n".join([_HEAD, *blocks]) if blocks else ""


def _above(workspace: Path) -> list[Path]:
    """In the directories from the repository's top down to the workspace; in the workspace alone where it has none."""
    directories = [workspace, *workspace.parents]
    top = next((at for at, directory in enumerate(directories) if (directory / ".git").exists()), 0)
    return [directory / NAME for directory in reversed(directories[: top + 1])]


def _below(workspace: Path) -> Iterator[Path]:
    """Not below a symlink, nor where dependencies and builds lie; so far down, and among so many directories."""
    for seen, (directory, names, files) in enumerate(os.walk(workspace)):
        depth = len(Path(directory).relative_to(workspace).parts)
        deeper = depth < _DEPTH and seen < _DIRECTORIES
        names[:] = sorted(each for each in names if not each.startswith(".") and each not in _SKIPPED) if deeper else []
        if depth and NAME in files:
            yield Path(directory) / NAME


def _name(path: Path, workspace: Path) -> str:
    return os.path.relpath(path, workspace)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
