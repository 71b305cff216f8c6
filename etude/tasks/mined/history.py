"""Reads a git repository: its commits, what each changed, and the files of a tree.

Owns `History`. Only plumbing commands, on git's objects: nothing is checked out, and no hook, filter or external diff
that the repository names is run. The repository is never written to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from etude.errors import ConfigError
from etude.host.git import GitContext
from etude.host.repository import PrivateGitDir, find
from etude.tasks.git import run_git, size_of

_FIELDS = "%H%x00%P%x00%ct%x00%B%x00"
_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_LATEST = 253_402_300_799
"""The last second that has a date here; git takes later ones."""
_AT_ONCE = 100
"""Commits whose patches one git prints."""


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
class Edited:
    """A file that a commit changed, as it was before: its content, by git's name, and the lines, from 1, that were
    changed or removed, or that a new one was put between."""

    path: str
    object_id: str
    lines: frozenset[int]


@dataclass(frozen=True)
class Tree:
    """The plain files of a commit. `left_out`: what a task cannot hold, such as links, submodules, and names that lead
    out of the tree, as `..` does: git takes them from a stranger unasked."""

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
        try:
            return self._git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").decode().strip()
        except ConfigError:
            what = "it has no commits yet" if revision == "HEAD" else f"no revision {revision!r} is in it"
            raise ConfigError(f"{self.path}: {what}; name one with --revision") from None

    def commits(self, revision: str, most: int) -> list[Commit]:
        """The newest `most` commits with exactly one parent, newest first."""
        told = self._git(
            "log", "--no-merges", "--min-parents=1", f"--max-count={most}", f"--format={_FIELDS}", self.head(revision),
            "--",
        ).decode("utf-8", "replace")  # fmt: skip
        parts = told.split("\0")
        records = zip(parts[0::4], parts[1::4], parts[2::4], parts[3::4], strict=False)
        return [
            Commit(name.strip(), parent, min(int(when), _LATEST), message) for name, parent, when, message in records
        ]

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

    def edited(self, commits: Sequence[Commit], glob: str) -> Iterator[tuple[Commit, list[Edited]]]:
        """Of each commit that changed some, the files that fit `glob` and that it did not make, in order."""
        words = ("diff-tree", "--stdin", "-r", "-p", "-U0", "--full-index", "--no-color", "--no-renames",
                 "--no-ext-diff", "--no-textconv", "--diff-filter=M", "--", glob)  # fmt: skip
        for at in range(0, len(commits), _AT_ONCE):
            part = {commit.id: commit for commit in commits[at : at + _AT_ONCE]}
            told = self._git(*words, stdin="".join(f"{name}\n" for name in part).encode())
            yield from ((part[name], files) for name, files in _patches(told, part.keys()) if files)

    def blobs(self, object_ids: Sequence[str]) -> list[bytes]:
        """Contents by git's names, in order."""
        found = self._read({str(at): name for at, name in enumerate(object_ids)})
        return [found[str(at)] for at in range(len(object_ids))]

    def paths(self, commit: str) -> list[str]:
        """Of all that a commit has."""
        told = self._git("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
        return told.decode("utf-8", "replace").split("\0")[:-1]

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
            if mode not in ("100644", "100755") or not _is_utf8(path) or not is_inside(path):
                left_out.append(path.encode("utf-8", "replace").decode())
                continue
            files[path] = object_id
            size += size_of(length, self.path)
            if mode == "100755":
                executable.append(path)
        if size > most_bytes:
            return None
        for path in [path for path in files if any(str(above) in files for above in PurePosixPath(path).parents)]:
            left_out.append(path)  # git may hold a file and a directory of one name
            del files[path]
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


def is_inside(path: str) -> bool:
    """Whether a path of a stranger's is that of a file below the directory it is put in, however it is written."""
    parts = path.split("/")
    return "\0" not in path and not {"", ".", ".."} & set(parts) and max(map(len, map(os.fsencode, parts))) < 256


def _is_utf8(path: str) -> bool:
    return not any("\udc80" <= letter <= "\udcff" for letter in path)


def _patches(told: bytes, commits: Collection[str]) -> Iterator[tuple[str, list[Edited]]]:
    """What `diff-tree --stdin -p -U0` prints. Lines of hunks are counted, so that none is taken for a header."""
    rows = iter(told.split(b"\n"))
    commit, files, path, object_id, lines = "", [], "", "", set[int]()

    def file_ends() -> None:
        if path and lines:
            files.append(Edited(path, object_id, frozenset(lines)))
        lines.clear()

    for row in rows:
        if (hunk := _HUNK.match(row)) is not None:
            first, old, new = int(hunk[1]), *(1 if count is None else int(count) for count in hunk.groups()[1:])
            lines.update(range(first, first + old) if old else (first, first + 1))
            for _ in range(old + new):
                next(rows, None)
        elif row.startswith(b"diff --git "):
            file_ends()
            path = object_id = ""
        elif row.startswith(b"index "):
            object_id = row.removeprefix(b"index ").partition(b"..")[0].decode()
        elif row.startswith(b"--- a/"):
            path = row.removeprefix(b"--- a/").rstrip(b"\t").decode("utf-8", "replace")
        elif (name := row.decode("ascii", "replace")) in commits:
            file_ends()
            if commit:
                yield commit, files
            commit, files, path = name, [], ""
    file_ends()
    if commit:
        yield commit, files
