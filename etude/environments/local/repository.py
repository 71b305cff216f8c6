"""Where git keeps a workspace's history, when that is not in the workspace: a worktree's, say.

A `.git` file is data like any other, and names a directory that commands may then write. It is believed only where git
itself would have written it: the directory it names must name this workspace in return.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etude.host.repository import linked


@dataclass(frozen=True)
class History:
    """A worktree's own directory, and the one it shares with the whole repository."""

    own: Path
    common: Path


def history_of(workspace: Path) -> History | None:
    """The directories outside the workspace that git writes for it; None for a plain clone."""
    places = linked(workspace)
    return History(*places) if places is not None else None
