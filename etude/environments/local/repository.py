"""Where git keeps a workspace's history, when that is not in the workspace: a worktree's, say; what its config names.

A `.git` file is data like any other, and names a directory that commands may then write. It is believed only where git
itself would have written it: the directory it names must name this workspace in return.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from etude.host.git import listed_config
from etude.host.repository import linked

_NO_FILES = ("branch.", "remote.", "user.", "alias.")
"""Keys that name no file, or one that is obeyed only when somebody asks for it by name."""


@dataclass(frozen=True)
class History:
    """A worktree's own directory, and the one it shares with the whole repository."""

    own: Path
    common: Path


def history_of(workspace: Path) -> History | None:
    """The directories outside the workspace that git writes for it; None for a plain clone."""
    places = linked(workspace)
    return History(*places) if places is not None else None


def named_by_config(workspace: Path) -> list[str]:
    """Paths below the workspace that git's config names: files it includes, hooks, filters and other programs.

    Git obeys them as it obeys the config, and they need not be there yet."""
    found: dict[str, None] = {}
    for origin, key, value in listed_config(workspace):
        file = workspace / origin
        for path in (file, *_files_of(workspace, file, key, value)):
            with suppress(OSError, ValueError, RuntimeError):
                for each in {Path(os.path.normpath(path)), path.resolve()}:
                    if each != workspace and each.is_relative_to(workspace):
                        found[str(each.relative_to(workspace))] = None
    return list(found)


def _files_of(workspace: Path, file: Path, key: str, value: str) -> Iterator[Path]:
    if key.startswith(("include.", "includeif.")):
        yield file.parent / os.path.expanduser(value)
    elif not key.startswith(_NO_FILES):
        try:
            words = [value, *shlex.split(value.removeprefix("!"))]
        except ValueError:
            words = [value]
        for word in dict.fromkeys(words):
            path = workspace / os.path.expanduser(word)
            if word and ("/" in word or path.is_file() or key == "core.hookspath"):
                yield path
