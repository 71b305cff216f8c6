"""Where git keeps a workspace's history, when that is not in the workspace: a worktree's, say.

A `.git` file is data like any other, and names a directory that commands may then write. It is believed only where git
itself would have written it: the directory it names must name this workspace in return.
"""

from __future__ import annotations

from pathlib import Path


def git_directories(workspace: Path) -> list[Path]:
    """The directories outside the workspace that git has to write for it; none for a plain clone."""
    link = workspace / ".git"
    if not link.is_file() or link.is_symlink():
        return []
    private = _named(link, "gitdir: ")
    if private is None or _named(private / "gitdir", "") != link.resolve():
        return []
    common = _named(private / "commondir", "") or private
    # a directory of worktrees lies in the common one; anything else was not made by git
    return [common] if private.parent == common / "worktrees" else []


def _named(file: Path, prefix: str) -> Path | None:
    """The path that a file of git's holds, relative ones being meant from the file's own directory."""
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return (file.parent / text.removeprefix(prefix)).resolve() if text.startswith(prefix) and text != prefix else None
