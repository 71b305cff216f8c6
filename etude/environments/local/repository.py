"""Where git keeps a workspace's history, when that is not in the workspace: a worktree's, say; what its config names.

A `.git` file is data like any other, and names a directory that commands may then write. It is believed only where git
itself would have written it: the directory it names must name this workspace in return.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_READ_DEADLINE_S = 20.0
_NO_FILES = ("branch.", "remote.", "user.", "alias.")
"""Keys that name no file, or one that is obeyed only when somebody asks for it by name."""


@dataclass(frozen=True)
class History:
    """A worktree's own directory, and the one it shares with the whole repository."""

    own: Path
    common: Path


def history_of(workspace: Path) -> History | None:
    """The directories outside the workspace that git writes for it; None for a plain clone."""
    link = workspace / ".git"
    if not link.is_file() or link.is_symlink():
        return None
    own = _named(link, "gitdir: ")
    if own is None or _named(own / "gitdir", "") != link.resolve():
        return None
    common = _named(own / "commondir", "") or own
    # a directory of worktrees lies in the common one; anything else was not made by git
    return History(own, common) if own.parent == common / "worktrees" else None


def _named(file: Path, prefix: str) -> Path | None:
    """The path that a file of git's holds, relative ones being meant from the file's own directory."""
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return (file.parent / text.removeprefix(prefix)).resolve() if text.startswith(prefix) and text != prefix else None


def named_by_config(workspace: Path) -> list[str]:
    """Paths below the workspace that git's config names: files it includes, hooks, filters and other programs.

    Git obeys them as it obeys the config, and they need not be there yet. Reading a config starts nothing."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "config", "--list", "--show-origin", "--null"]
    try:
        done = subprocess.run(command, cwd=workspace, env=env, capture_output=True, timeout=_READ_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):  # no git, or an included file that does not end: then git ends neither
        return []
    fields = os.fsdecode(done.stdout).split("\0")
    found: dict[str, None] = {}
    for origin, setting in zip(fields[::2], fields[1::2], strict=False):
        file = workspace / origin.removeprefix("file:")
        for path in (file, *_files_of(workspace, file, *setting.partition("\n")[::2])):
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
