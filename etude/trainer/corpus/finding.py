"""Finds the files of a corpus: what git tracks in every repository below a directory, and all files of directories
that are in none.

Owns `Repository` and `find_repositories`, and the split by repository or time, which is made here, before anybody has
looked into a file. A repository is read from its objects, as a commit has it: what lies uncommitted, ignored or behind
a link in its working tree is not seen, and the same commit is the same corpus. Never runs what a repository names
(`host.git`), and follows no link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal

from etude.errors import ConfigError
from etude.host import beneath
from etude.host.git import GitContext
from etude.host.repository import GitRepository, PrivateGitDir, find
from etude.tasks.git import run_git, size_of
from etude.trainer.corpus.config import CorpusConfig, HeldOutConfig

Split = Literal["held_out", "train"]
_NOT_ENTERED = frozenset((".git", "node_modules", "__pycache__", ".venv", "venv", ".tox"))
_DEPTH, _ENTRIES = 60, 2_000_000
_AT_ONCE = 64
"""Files that one git reads."""
MOST_BYTES = 1 << 20
"""Of a file: what is longer is hardly ever written by a person, and is not read."""


@dataclass(frozen=True)
class File:
    """A file of a tree. `object_id` is git's; "" in a directory without git."""

    path: str
    bytes: int
    object_id: str = ""


@dataclass
class Repository:
    """Where files come from: a repository at a commit, or, with `commit` = "", a directory."""

    name: str
    root: Path
    commit: str = ""
    files: dict[Split, list[File]] = field(default_factory=dict)
    beside: dict[str, File] = field(default_factory=dict)
    """All there is, by path: also what lies outside the directory that was named, as a LICENSE does."""
    _git: PrivateGitDir | None = None

    def read(self, files: Sequence[File]) -> Iterator[tuple[File, bytes | None]]:
        """Their contents, in order; None for what cannot be read any more, or is too large."""
        if self._git is None:
            yield from ((file, _read(self.root, file.path)) for file in files)
            return
        small = [file for file in files if file.bytes <= MOST_BYTES]
        for at in range(0, len(small), _AT_ONCE):
            part = small[at : at + _AT_ONCE]
            told = self.git("cat-file", "--batch", given="".join(f"{file.object_id}\n" for file in part).encode())
            place = 0
            for file in part:
                end = told.index(b"\n", place)
                size = int(told[place:end].split()[2])
                yield file, told[end + 1 : end + 1 + size]
                place = end + 2 + size

    def git(self, *words: str, given: bytes = b"") -> bytes:
        assert self._git is not None
        return run_git(*words, at=GitContext(self._git.git_dir, workspace=self._git.found.top), given=given)

    def tree(self, commit: str) -> list[File]:
        """The plain files of a commit, by path: no link and no submodule."""
        told = self.git("ls-tree", "-r", "-z", "-l", "--full-tree", commit)
        files = []
        for line in told.split(b"\0")[:-1]:
            about, _, name = line.partition(b"\t")
            mode, _, object_id, length = about.decode().split()
            if mode in ("100644", "100755"):
                files.append(File(os.fsdecode(name), size_of(length, self.root), object_id))
        return sorted(files, key=lambda file: file.path)


def find_repositories(config: CorpusConfig) -> list[Repository]:
    """All that there is, split, in an order that depends on their names and places alone. Raises ConfigError."""
    found: dict[Path, Repository] = {}
    for directory in config.directories:
        root = directory.expanduser().resolve()
        if not root.is_dir():
            raise ConfigError(f"{directory}: no such directory; name one with files in it")
        for each in _below(root, config.held_out):
            if (known := found.get(each.root)) is None:
                found[each.root] = each
            else:  # two directories of one repository
                for split, files in each.files.items():
                    known.files[split] = sorted({*known.files.get(split, ()), *files}, key=lambda file: file.path)
    repositories = sorted(found.values(), key=lambda each: (each.name, each.root))
    names = {each.name for each in repositories}
    if lost := sorted(set(config.held_out.repositories) - names):
        raise ConfigError(
            f"held_out.repositories: there is no repository {lost[0]} below the directories; "
            f"there are {', '.join(sorted(names)) or 'none'}"
        )
    return repositories


def _below(root: Path, held_out: HeldOutConfig) -> Iterator[Repository]:
    around = find(root)
    if around is not None and around.top is not None:
        prefix = root.relative_to(around.top).as_posix().removeprefix(".")
        repository = _of_git(around, prefix, held_out)
        if prefix and not any(repository.files.values()):
            around = None  # what git does not track, and the user names all the same
        else:
            yield repository
    inner: list[str] = []
    loose: list[File] = []
    for here, names in beneath.walk(
        root, depth=_DEPTH, most_entries=_ENTRIES, enter=lambda name: name not in _NOT_ENTERED
    ):
        if here and beneath.lstat(root, f"{here}/.git") is not None:
            found = find(root / here)
            if found is not None and found.top == root / here:
                inner.append(f"{here}/")
                yield _of_git(found, "", held_out)
        if around is None and not f"{here}/".startswith(tuple(inner)):
            loose += _files(root, here, names)
    if loose:
        yield _of_directory(root, sorted(loose, key=lambda file: file.path), held_out)


def _of_git(found: GitRepository, prefix: str, held_out: HeldOutConfig) -> Repository:
    assert found.top is not None
    repository = Repository(found.top.name, found.top, _git=PrivateGitDir(found))
    heads = repository.git("rev-parse", "--revs-only", "HEAD").decode().split()
    if not heads:  # nothing is committed yet
        return repository
    repository.commit = heads[0]
    whole = repository.tree(repository.commit)
    repository.beside = {file.path: file for file in whole}
    now = _within(whole, prefix)
    if repository.name in held_out.repositories:
        repository.files = {"held_out": now}
    elif held_out.after is None:
        repository.files = {"train": now}
    else:
        repository.files = _by_time(repository, now, prefix, held_out.after)
    return repository


def _by_time(repository: Repository, now: list[File], prefix: str, after: date) -> dict[Split, list[File]]:
    if repository.git("rev-parse", "--is-shallow-repository").strip() == b"true":
        raise ConfigError(
            f"{repository.root}: held_out.after needs the repository's history, and this is a shallow clone; run git "
            "fetch --unshallow in it"
        )
    day = datetime(after.year, after.month, after.day, tzinfo=UTC)
    told = repository.git("rev-list", "-1", f"--before={int(day.timestamp())}", "HEAD").decode().strip()
    then = _within(repository.tree(told), prefix) if told else []
    before = {file.path for file in then}
    return {"held_out": [file for file in now if file.path not in before], "train": then}


def _within(files: list[File], prefix: str) -> list[File]:
    return [file for file in files if file.path.startswith(f"{prefix}/")] if prefix else files


def _of_directory(root: Path, files: list[File], held_out: HeldOutConfig) -> Repository:
    repository = Repository(root.name, root, beside={file.path: file for file in files})
    if root.name in held_out.repositories:
        repository.files = {"held_out": files}
        return repository
    if held_out.after is not None:
        raise ConfigError(
            f"{root}: held_out.after needs git's history, and {files[0].path} is in no repository; commit it, or name "
            "the directories of repositories alone"
        )
    repository.files = {"train": files}
    return repository


def _files(root: Path, here: str, names: Sequence[str]) -> Iterator[File]:
    for name in names:
        path = f"{here}/{name}".lstrip("/")
        if (found := beneath.lstat(root, path)) is not None and found.st_mode & 0o170000 == 0o100000:
            yield File(path, found.st_size)


def _read(root: Path, path: str) -> bytes | None:
    try:
        return beneath.read(root, path, MOST_BYTES)
    except OSError:
        return None
