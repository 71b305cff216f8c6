"""Where programs of the user's machine are looked for when a workspace is at hand that may be hostile.

Owns `find_program`. A PATH with `./bin`, with an empty entry or with the project's virtual environment is usual, and
whoever writes the workspace writes what lies there: `.venv/bin/git` would be run outside the sandbox.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path


def find_program(name: str, workspaces: Collection[Path]) -> tuple[str | None, str]:
    """A program's path, None where there is none, and the PATH it was found by: without the directories that lie in a
    workspace, and those that depend on where one stands."""
    roots = [workspace.resolve() for workspace in workspaces]
    places = [place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(place)]
    path = os.pathsep.join(place for place in places if not any(map(Path(place).resolve().is_relative_to, roots)))
    return shutil.which(name, path=path), path
