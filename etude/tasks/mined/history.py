"""Reads a git repository: its commits, what each changed, and the files of a tree.

Owns `History`. Only plumbing commands, on git's objects: nothing is checked out, and no hook, filter or external diff
that the repository names is run. The repository is never written to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etude.errors import ConfigError
from etude.host.git import GitContext
from etude.host.repository import PrivateGitDir, find
from etude.tasks.git import run_git

_FIELDS = "%H%x00%P%x00%ct%x00%B%x00"


@dataclass(frozen=True)
class Commit:
    """A commit with one parent. `when` is the committer's time, seconds since 1970."""

    id: str
    parent: str
    when: int
    message: str


@dataclass(frozen=True)
class Change:
    """What a commit did to one file. `lines` is added plus removed; None for a binary file."""

    path: str
    status: str
    """git's letter: A added, M modified, D deleted, T changed type. A rename is a deletion and an addition."""
    lines: int | None


@dataclass(frozen=True)
class Tree:
    """The plain files of a commit. `left_out`: symbolic links and submodules, which a task cannot hold."""

    files: dict[str, bytes]
    executable: tuple[str, ...]
    left_out: tuple[str, ...]


class History:
    """One repository. Raises ConfigError where `path` is none, MissingDependency without git, DeadlineExceeded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            raise ConfigError(f"{path}: no such directory; name a git repository")
        found = find(path, bare=True)
        if found is None:
            raise ConfigError(f"{path}: is in no git repository; name one, or the directory of a bare one")
        self._aside = PrivateGitDir(found)
        if self._git("rev-parse", "--is-shallow-repository").strip() == b"true":
            raise ConfigError(f"{path}: a shallow clone has no history to mine; run git fetch --unshallow in it")

    def head(self, revision: str) -> str:
        """The commit that a revision names. Raises ConfigError when it names none."""
        return self._git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").decode().strip()

    def commits(self, revision: str, most: int) -> list[Commit]:
        """The newest `most` commits with exactly one parent, newest first."""
        told = self._git(
            "log", "--no-merges", "--min-parents=1", f"--max-count={most}", f"--format={_FIELDS}", self.head(revision),
            "--",
        ).decode("utf-8", "replace")  # fmt: skip
        parts = told.split("\0")
        records = zip(parts[0::4], parts[1::4], parts[2::4], parts[3::4], strict=False)
        return [Commit(name.strip(), parent, int(when), message) for name, parent, when, message in records]

    def changes(self, commit: Commit) -> list[Change]:
        """Every file that differs from the commit's parent, by path."""
        words = ("diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv")
        pair = (commit.parent, commit.id, "--")
        states = self._git(*words, "--name-status", *pair).decode("utf-8", "surrogateescape").split("\0")[:-1]
        counts: dict[str, int | None] = {}
        for line in self._git(*words, "--numstat", *pair).decode("utf-8", "surrogateescape").split("\0")[:-1]:
            added, removed, path = line.split("\t", 2)
            counts[path] = None if added == "-" else int(added) + int(removed)
        return [
            Change(path, status[0], counts.get(path)) for status, path in zip(states[::2], states[1::2], strict=True)
        ]

    def file(self, commit: str, path: str) -> bytes | None:
        """One file of a commit; None where it has none of that path."""
        told = self._git("ls-tree", "-z", "--full-tree", commit, "--", f":(literal,top){path}").split(b"\t")[0].split()
        return self._git("cat-file", "blob", told[2].decode()) if told[1:2] == [b"blob"] else None

    def tree(self, commit: str, most_bytes: int) -> Tree | None:
        """All files of a commit; None when they are more than `most_bytes` together."""
        files: dict[str, str] = {}
        executable, left_out, size = [], [], 0
        for line in self._git("ls-tree", "-r", "-z", "-l", "--full-tree", commit).split(b"\0")[:-1]:
            about, _, name = line.partition(b"\t")
            mode, _, object_id, length = about.decode().split()
            path = name.decode("utf-8", "surrogateescape")
            if mode not in ("100644", "100755") or not _is_utf8(path):
                left_out.append(path.encode("utf-8", "replace").decode())
                continue
            files[path] = object_id
            size += int(length)
            if mode == "100755":
                executable.append(path)
        if size > most_bytes:
            return None
        return Tree(self._read(files), tuple(executable), tuple(left_out))

    def _read(self, files: dict[str, str]) -> dict[str, bytes]:
        wanted = "\n".join(files.values())
        told = self._git("cat-file", "--batch", stdin=f"{wanted}\n".encode() if files else b"")
        found, at = {}, 0
        for path in files:
            end = told.index(b"\n", at)
            size = int(told[at:end].split()[2])
            found[path] = told[end + 1 : end + 1 + size]
            at = end + 2 + size
        return found

    def _git(self, *words: str, stdin: bytes = b"") -> bytes:
        return run_git(*words, at=GitContext(self._aside.git_dir, workspace=self._aside.found.top), given=stdin)


def _is_utf8(path: str) -> bool:
    return not any("\udc80" <= letter <= "\udcff" for letter in path)
