"""An index that a team shares: pushed once for a commit, and fetched where its files are at hand.

Owns `push` and `fetch`. What is pushed is of the files that a commit has, each as it is there; it lies under a name
that git's tree of the commit gives, and what decides an index (`index_version`): so whoever stands at that commit or
soon after it finds it. Whoever stands soon before it does by a pointer, under a name of each earlier commit. What the
files hold is sealed (`sealed`). A file that a secret is found in is left out whole.
Fetching is a build that need not cut and embed what an entry opens for: all else, and what has changed since, it takes
in as ever. Nothing of a content that is not at hand is opened, so nothing of it is ever ranked. Where the objects lie
is another's business: `Objects`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from etude.errors import ConfigError
from etude.host import beneath
from etude.host.git import GitContext, run_git_now
from etude.host.repository import PrivateGitDir, find
from etude.search.content import MOST_BYTES, key_of, read, text_of
from etude.search.embedder import Embedder, shipped
from etude.search.index import Index, index_version
from etude.search.sealed import Entry, Sealed, seal
from etude.search.store import Store
from etude.search.workspace import Built, build, root_of

_LOOKED_BACK = 50
"""So many commits may lie between the one that a directory stands at and the one that was pushed."""
_POINTER = re.compile(rb"index/[0-9a-f]{40}")
_MOST_BYTES, _MOST_POINTER = 1 << 30, 1 << 10
_TOGETHER = 8
_AT_ONCE = 500
Told = Callable[[str], None]


class Objects(Protocol):
    """Of `weights.store.Store` what is needed here."""

    url: str

    def exists(self, key: str) -> bool: ...

    def get(self, key: str, most_bytes: int) -> bytes: ...

    def put(self, key: str, data: bytes) -> bool: ...


@dataclass(frozen=True)
class Pushed:
    """`secret`: files that were left out since a secret was found in them."""

    workspace: str
    name: str
    files: int
    secret: int
    bytes: int
    version: str


def push(
    directory: Path, store: Store, objects: Objects, clean: Callable[[str], bool], said: Told, embedder: Embedder | None
) -> Pushed:
    """Bring a directory's index up to date, and push what it knows of the files of its commit that have not changed.
    `clean` says whether no secret is in a text."""
    built = build(directory, store, said, embedder=embedder)
    root = Path(built.workspace)
    there = _Commits(root)
    trees = there.trees()
    name = _name(trees[0], there.prefix, embedder)
    index = Index(store, str(root), said, embedder)
    found = _Contents(root, index, clean)
    data = seal(name, found.entries(there.unchanged()))
    if not found.files:  # what lies there already may be better
        raise ConfigError(
            f"{root}: no file of its commit can be pushed: none has vectors, is unchanged and holds no secret"
        )
    objects.put(name, data)
    with ThreadPoolExecutor(_TOGETHER) as some:
        pointers = (_pointer(tree, there.prefix, embedder) for tree in dict.fromkeys(trees[1:]))
        list(some.map(lambda pointer: objects.put(pointer, name.encode()), pointers))
    return Pushed(str(root), name, found.files, found.secret, len(data), built.version)


def fetch(
    directory: Path, store: Store, objects: Objects, said: Told, on_read: Callable[[int, int], None],
    embedder: Embedder | None,
) -> Built:  # fmt: skip
    """Bring a directory's index up to date with what was pushed for its commit, or for one soon before or after it;
    with nothing else where there is none, and that is said. Raises ConfigError where it is not what was pushed."""
    there = _Commits(root_of(directory))
    name = _found(there, objects, embedder)
    if name is None:
        said(
            f"{objects.url}: has no index of a commit within {_LOOKED_BACK} of this one, made as this Etude makes one; "
            "all is made here"
        )
        return build(directory, store, said, on_read, embedder)
    width = (embedder or shipped()).width
    sealed = Sealed(objects.get(name, _MOST_BYTES), name, f"{objects.url}/{name}", width)
    return build(directory, store, said, on_read, embedder, sealed)


def _found(there: _Commits, objects: Objects, embedder: Embedder | None) -> str | None:
    """The name of the index of the nearest commit, this one or one before it; or of a later one that was pushed."""
    trees = there.trees()
    for tree in trees:
        if objects.exists(name := _name(tree, there.prefix, embedder)):
            return name
    for tree in trees:
        if objects.exists(pointer := _pointer(tree, there.prefix, embedder)):
            told = objects.get(pointer, _MOST_POINTER)
            if _POINTER.fullmatch(told) and objects.exists(told.decode()):
                return told.decode()
    return None


def _name(tree: str, prefix: str, embedder: Embedder | None, kind: str = "index") -> str:
    """What a tree's index is called: whoever lists the store learns no id of git."""
    told = "\0".join((tree, prefix, index_version(embedder))).encode()
    return f"{kind}/{hashlib.blake2b(told, digest_size=20).hexdigest()}"


def _pointer(tree: str, prefix: str, embedder: Embedder | None) -> str:
    """Where the name of the newest index after a tree lies."""
    return _name(tree, prefix, embedder, "index-after")


class _Commits:
    """What git says of a directory: the trees of its commits, newest first, and which files are as in the newest."""

    def __init__(self, root: Path) -> None:
        found = find(root) if root.is_dir() else None
        if found is None or found.top is None:
            raise ConfigError(f"{root}: is in no git repository; an index is shared by its commits")
        self.prefix = root.relative_to(found.top.resolve()).as_posix()
        self._user = PrivateGitDir(found)
        self._at = GitContext(self._user.git_dir, found.top, self._user.index, root)

    def trees(self) -> list[str]:
        told = self._git("log", "--first-parent", f"-n{_LOOKED_BACK}", "--format=%T")
        return told.decode().split()

    def unchanged(self) -> list[str]:
        """Files of the commit, relative to the directory."""
        tracked = _split(self._git("ls-files", "-z", "-c"))
        return sorted(tracked - _split(self._git("diff-index", "-z", "--name-only", "--relative", "HEAD")))

    def _git(self, *words: str) -> bytes:
        ran = run_git_now(*words, at=self._at)
        if ran.code:
            raise ConfigError(f"{self._at.directory}: git {words[0]} says: {ran.reason}; an index is of a commit")
        return ran.output


class _Contents:
    """What an index knows of files, each content once; counts what it gave."""

    def __init__(self, root: Path, index: Index, clean: Callable[[str], bool]) -> None:
        self._root, self._index, self._clean = root, index, clean
        self.files = self.secret = 0

    def entries(self, paths: list[str]) -> Iterator[tuple[bytes, bytes, Entry]]:
        had: set[bytes] = set()
        for start in range(0, len(paths), _AT_ONCE):
            for path, near in self._index.vectors_of(paths[start : start + _AT_ONCE]).items():
                try:
                    data = beneath.read(self._root, path, MOST_BYTES)
                except OSError:
                    continue  # gone meanwhile
                key = key_of(path, data)
                pieces = read(path, data, grams=False).pieces
                if key in had or len(pieces) != len(near) or not pieces:
                    continue
                if not self._clean(text_of(data) or ""):
                    self.secret += 1
                    continue
                had.add(key)
                self.files += 1
                yield key, data, Entry(pieces, near)


def _split(listed: bytes) -> set[str]:
    return {os.fsdecode(path) for path in listed.split(b"\0") if path}
