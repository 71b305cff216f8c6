"""Where git keeps a workspace's history, when that is not in the workspace: a worktree's, say.

A `.git` file is data like any other, and names a directory that commands may then write. It is believed only where git
itself would have written it: the directory it names must name this workspace in return.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etude.host import beneath

_MOST_BYTES = 1 << 16
"""Of a path, and far more than any has."""


@dataclass(frozen=True)
class History:
    """A worktree's own directory, and the one it shares with the whole repository."""

    own: Path
    common: Path


def history_of(workspace: Path) -> History | None:
    """The directories outside the workspace that git writes for it; None for a plain clone."""
    link = workspace / ".git"
    own = _named(link, "gitdir: ")
    if own is None or _named(own / "gitdir", "") != link.resolve():
        return None
    common = _named(own / "commondir", "") or own
    # a directory of worktrees lies in the common one; anything else was not made by git
    return History(own, common) if own.parent == common / "worktrees" else None


def _named(file: Path, prefix: str) -> Path | None:
    """The path that a file of git's holds, relative ones being meant from the file's own directory."""
    try:
        text = beneath.read(file.parent, file.name, _MOST_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return (file.parent / text.removeprefix(prefix)).resolve() if text.startswith(prefix) and text != prefix else None
