"""A repository that somebody else may have written: found without git, and lent to git without its config.

Owns `find`, which looks for the repository of a directory as git does and believes no more than it must: a `.git` file
leads elsewhere only where that place names the file in return, and nothing above counts that belongs to another user.
Owns `PrivateGitDir`: a git directory of Etude's own with the objects and refs of the user's. Whatever is done through
it is done to the user's repository, and git reads none of its config, hooks, attributes or worktree files. From the
config come the few values that say how files are stored, each a plain word; none of them can name a program or a path.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from etude.errors import ConfigError
from etude.host import beneath
from etude.host.git import read_config, users_excludes
from etude.host.scratch import Scratch

_STORED = {
    "core.filemode", "core.symlinks", "core.ignorecase", "core.precomposeunicode", "core.autocrlf", "core.eol",
    "core.sharedrepository", "extensions.objectformat", "extensions.refstorage",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9]{1,16}")
_HEAD = re.compile(rb"ref:\s*refs/|[0-9a-f]{40}")
_PATH_BYTES, _CONFIG_BYTES, _INDEX_BYTES, _NAMES, _ENTRIES = 1 << 14, 1 << 20, 1 << 30, 80_000, 2_000_000
_DIRECTORIES, _FILES = ("objects", "refs", "reftable"), ("packed-refs", "shallow")
"""What is shared by all worktrees, and lent."""


@dataclass(frozen=True)
class GitRepository:
    """A repository: the top of the working tree, or None for a bare one; this worktree's git directory, and the one
    that all worktrees share."""

    top: Path | None
    git_dir: Path
    common: Path


def find(directory: Path, *, bare: bool = False) -> GitRepository | None:
    """The repository that a directory lies in, or with `bare` is. None where there is none that can be believed."""
    directory = directory.resolve()
    owners = {os.geteuid(), directory.stat().st_uid}
    if bare and beneath.lstat(directory, ".git") is None and _is_git(directory):
        return GitRepository(None, directory, directory)
    for at in (directory, *directory.parents):
        if (link := beneath.lstat(at, ".git")) is not None:
            own = at / ".git" if stat.S_ISDIR(link.st_mode) else None
            found = GitRepository(at, own, own) if own is not None else _elsewhere(at)
            mine = {link.st_uid, at.stat().st_uid} <= owners
            return found if mine and found is not None and _is_git(found.common) else None
    return None


class LinkedWorktree(NamedTuple):
    """The git directories of a worktree: its own, and the one it shares with the whole repository."""

    git_dir: Path
    common: Path


def linked_worktree(top: Path) -> LinkedWorktree | None:
    """Those of a worktree that `git worktree add` made; else None. A `.git` file is data like any other: it is believed
    only where git itself would have written it, and the directory it names must name `top` in return."""
    own = _named(top / ".git", "gitdir: ")
    if own is None or _named(own / "gitdir", "") != top.resolve() / ".git":
        return None
    common = _named(own / "commondir", "") or own
    # a directory of worktrees lies in the common one; anything else was not made by git
    return LinkedWorktree(own, common) if own.parent == common / "worktrees" else None


class PrivateGitDir:
    """A git directory of our own beside the user's, for as long as this object lives."""

    def __init__(self, found: GitRepository) -> None:
        self.found, self.excludes = found, excludes(found, found.top or found.common)
        self._held = Scratch("etude-gitdir-")
        self._path = self._held.path
        for name in _DIRECTORIES:
            if _is(found.common, name, stat.S_ISDIR):
                (self._path / name).symlink_to(found.common / name)
        for name in _FILES:
            if (there := beneath.lstat(found.common, name)) is None or stat.S_ISREG(there.st_mode):
                (self._path / name).symlink_to(found.common / name)
        (self._path / "config").write_text(_config(found))
        (self._path / "info").mkdir()
        (self._path / "info" / "exclude").write_bytes(self.excludes)

    @property
    def git_dir(self) -> Path:
        """With the user's HEAD as it is now. Raises ConfigError where that is no plain file, or says nothing to git."""
        self._bring("HEAD", _PATH_BYTES)
        if not _HEAD.match((self._path / "HEAD").read_bytes()):
            raise ConfigError(f"{self.found.git_dir / 'HEAD'}: names no branch or commit; is the repository whole?")
        return self._path

    @property
    def index(self) -> Path:
        """A copy of the user's index as it is now; no file where there is none. Raises ConfigError like `git_dir`."""
        if beneath.lstat(self.found.git_dir, "index") is not None:
            for _, names in beneath.walk(self.found.git_dir, depth=0, most_entries=_NAMES, enter=lambda _: False):
                for name in names:
                    if name == "index" or name.startswith("sharedindex."):  # which a split index is the rest of
                        self._bring(name, _INDEX_BYTES)
        return self._path / "index"

    def _bring(self, name: str, most_bytes: int) -> None:
        """Whole or not at all: another git may be reading it."""
        fresh = self._path / f"{name}-{secrets.token_hex(4)}"
        try:
            beneath.copy(self.found.git_dir, name, fresh, most_bytes)
        except OSError as error:
            raise ConfigError(f"{self.found.git_dir / name}: {error.strerror}; is the repository whole?") from None
        fresh.replace(self._path / name)


def excludes(found: GitRepository | None, workspace: Path) -> bytes:
    """What the user ignores beside `.gitignore` files: everywhere, and in this repository."""
    own = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "git", "ignore")
    everywhere, here = Path(users_excludes(workspace) or own), b""
    if found is not None:
        with contextlib.suppress(OSError):
            here = beneath.read(found.common, "info/exclude", _CONFIG_BYTES)
    return b"\n".join([everywhere.read_bytes() if everywhere.is_file() else b"", here])


def _elsewhere(top: Path) -> GitRepository | None:
    """Of a `.git` file: a worktree's, or a submodule's, whose config names the working tree."""
    if (places := linked_worktree(top)) is not None:
        return GitRepository(top, *places)
    own = _named(top / ".git", "gitdir: ")
    named = _values(own, top).get("core.worktree") if own is not None and _is_git(own) else None
    if own is None or named is None or Path(os.path.realpath(own / named)) != top:
        return None
    return GitRepository(top, own, own)


def _named(file: Path, prefix: str) -> Path | None:
    """The path that a file of git's holds, relative ones being meant from the file's own directory."""
    try:
        text = beneath.read(file.parent, file.name, _PATH_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not text.startswith(prefix) or text == prefix or "\0" in text:
        return None
    # `Path.resolve` raises RuntimeError for a link that leads to itself, and this text is anybody's
    return Path(os.path.realpath(file.parent / text.removeprefix(prefix)))


def _is_git(directory: Path) -> bool:
    """Whether it has a git directory's parts, all of them its own: a link could lend us the history of another."""
    own = all(_is(directory, name, stat.S_ISDIR) for name in ("objects", "refs"))
    return own and _is(directory, "HEAD", stat.S_ISREG) and not _leads_away(directory)


def _leads_away(directory: Path) -> bool:
    """Whether a link lies in what would be lent: git goes through it, to read another's branch and to write there. So
    many entries that this cannot be told count as one. A loose object is named by its content, and lends nothing."""
    waiting, left = [name for name in _DIRECTORIES if _is(directory, name, stat.S_ISDIR)], _ENTRIES
    while waiting:
        here = waiting.pop()
        try:
            with beneath.opened(directory, here) as handle, os.scandir(handle) as entries:
                for entry in entries:
                    left -= 1
                    if entry.is_symlink() or left < 0:
                        return True
                    inside = here != "objects" or entry.name in ("pack", "info")
                    if inside and entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{here}/{entry.name}")
        except FileNotFoundError:  # another git has removed an empty one
            continue
        except OSError:
            return True
    return False


def _is(directory: Path, name: str, kind: Callable[[int], bool]) -> bool:
    found = beneath.lstat(directory, name)
    return found is not None and kind(found.st_mode)


def _values(git_dir: Path, workspace: Path) -> dict[str, str]:
    """The plain values of a repository's config, read by git and without what it includes. The last of a key counts."""
    try:
        text = beneath.read(git_dir, "config", _CONFIG_BYTES)
    except OSError:
        return {}
    return dict(read_config(text, workspace) or ())


def _config(found: GitRepository) -> str:
    values = _values(found.common, found.top or found.common)
    kept = {key: value for key, value in values.items() if key in _STORED and _WORD.fullmatch(value)}
    version = 1 if any(key.startswith("extensions.") for key in kept) else 0
    lines = ["[core]", f"repositoryformatversion = {version}", "bare = false", "logAllRefUpdates = false"]
    lines += [f"[{section}]\n{name} = {value}" for key, value in kept.items() for section, name in [key.split(".")]]
    return "\n".join(lines) + "\n"
