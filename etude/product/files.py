"""The files that a session's calls name, as they lie on this machine: for a face that shows what an edit changed.

Owns `on_this_machine` and `text_of`. Reads and never writes, and follows no link.
"""

from __future__ import annotations

from pathlib import Path

from etude.environments.base import WORKSPACE
from etude.harness.tools.base import absolute
from etude.host import beneath


def on_this_machine(directory: Path, path: str) -> Path:
    """Where a path of the tools' lies for the user, whose workspace is `directory`."""
    full = absolute(path)
    return directory / full[len(WORKSPACE) + 1 :] if f"{full}/".startswith(f"{WORKSPACE}/") else Path(full)


def text_of(directory: Path, path: Path, most_bytes: int) -> str | None:
    """A file of the workspace, if it is text and no larger; else None."""
    try:
        return beneath.read(directory, str(path.relative_to(directory)), most_bytes).decode()
    except (OSError, ValueError):
        return None
