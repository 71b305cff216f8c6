"""A directory of this machine, and the user's store: what `etude index` does.

Owns `Listing`, which files of a directory are to be searched with the stamp of each, and `build`, `status`, `search`
and `collect`. Which files there are git says, by the private git directory of `etude.host`, or where there is no git, a
walk; that they have not changed only their stamps say: a repository's own index may lie. Files are read by
`host.beneath`, through no link. Holds the order of things and no ranking.
"""

from __future__ import annotations

import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from etude.errors import ConfigError
from etude.host import beneath
from etude.host.git import GitContext, run_git_now
from etude.host.repository import PrivateGitDir, find
from etude.search.base import Hit
from etude.search.content import MOST_BYTES, lines_of, text_of, too_long
from etude.search.database import Damaged
from etude.search.embedder import Embedder
from etude.search.index import Index, index_version, settled, way_of_taking_in
from etude.search.sealed import Sealed
from etude.search.store import Store, StoreStatus, default_path, forget_earlier

MOST_FILES = 100_000
_DEPTH = 100
_TRIES = 3


def _quiet(*_: object) -> None:
    """For who does not listen."""


@dataclass(frozen=True)
class Listing:
    """The files of a directory that are short enough to be indexed, with their stamps; and the commit it stands at."""

    stamps: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    too_long: int = 0
    """How many files have no pieces for their length: a grep alone finds what is in them."""


@dataclass(frozen=True)
class Built:
    """What a build did: files that were looked at, read since they had changed, and contents that were new."""

    workspace: str
    commit: str
    files: int
    too_long: int
    read: int
    taken: int
    fetched: int
    """Contents of which a team's index had what would have been made."""
    embedded: int
    """How many pieces vectors were made of."""
    bytes: int
    version: str


@dataclass(frozen=True)
class WorkspaceStatus:
    """A workspace's part of the store. `stale`: files that have changed since, which a build would read; `unembedded`:
    those that have not, and have no vectors of this embedder."""

    workspace: str
    files: int
    too_long: int
    indexed: int
    stale: int
    unembedded: int
    commit: str
    version: str
    store: StoreStatus


@dataclass(frozen=True)
class Found:
    """A piece with its lines."""

    path: str
    first: int
    last: int
    score: float
    text: str


def open_store(said: Callable[[str], None] = _quiet, path: Path | None = None) -> Store:
    """The user's store; a damaged one is made anew, and that is said. Raises ConfigError where none can be kept."""
    path = default_path() if path is None else path
    try:
        store = Store(path)
    except Damaged as error:
        store = Store(path, anew=True)
        said(f"{path}: the index was damaged ({error}) and is made anew")
    forget_earlier(path)
    return store


def build(
    directory: Path, store: Store, said: Callable[[str], None] = _quiet, on_read: Callable[[int, int], None] = _quiet,
    embedder: Embedder | None = None, shared: Sealed | None = None,
) -> Built:  # fmt: skip
    """Bring a directory's index up to date; what is committed before a kill is there after it. `on_read` is told how
    many of how many files are read. What is `shared` of them is not made anew."""
    root = root_of(directory)
    index = Index(store, str(root), said, embedder, shared)
    there = listing(root)
    read = _bring_up(index, root, there, on_read)
    if index.renewed:  # what was known before is lost
        _bring_up(index, root, there, on_read)
    version, made = index_version(embedder), (index.taken, index.fetched, index.embedded)
    return Built(str(root), there.commit, len(there.stamps), there.too_long, read, *made, store.size(), version)


def _bring_up(index: Index, root: Path, there: Listing, on_read: Callable[[int, int], None] = _quiet) -> int:
    """How many files were read."""
    stale = index.stale(there.stamps)
    index.update(there.stamps, _read(root, stale, on_read), there.commit)
    return len(stale)


def status(
    directory: Path, store: Store, said: Callable[[str], None] = _quiet, embedder: Embedder | None = None
) -> WorkspaceStatus:
    """How far a directory's index is behind its files; changes nothing."""
    root = root_of(directory)
    index = Index(store, str(root), said, embedder)
    there = listing(root)
    stale, unembedded = map(len, index.behind(there.stamps))
    known, version = len(index.paths()), index_version(embedder)
    counts = (len(there.stamps), there.too_long, known, stale, unembedded)
    return WorkspaceStatus(str(root), *counts, store.commit_of(str(root)), version, store.status())


def search(
    directory: Path, store: Store, question: str, limit: int, said: Callable[[str], None] = _quiet,
    embedder: Embedder | None = None,
) -> list[Found]:  # fmt: skip
    """Bring the index up to date and ask it."""
    if limit < 1:
        raise ConfigError(f"--limit {limit}: ask for one piece at least")
    if not question.strip():
        raise ConfigError("the question is blank; say in words what you look for")
    root = root_of(directory)
    index = Index(store, str(root), said, embedder)
    for _ in range(_TRIES):
        renewed = index.renewed
        _bring_up(index, root, listing(root))
        hits = index.search(question, limit)
        if index.renewed == renewed:
            break
    return [found for hit in hits if (found := _shown(root, hit)) is not None]


def collect(store: Store, most_mb: int) -> tuple[StoreStatus, StoreStatus]:
    """Forget workspaces that are gone, and what is used least until the store is no larger; before and after."""
    if most_mb < 0:
        raise ConfigError(f"--most-mb {most_mb}: name a size; 0 forgets everything")
    before = store.status()
    try:
        store.collect(most_mb << 20)
    except Damaged:
        store.renew()
    return before, store.status()


def listing(root: Path) -> Listing:
    """Of a directory as it is now. A stamp is by what a file is known not to have changed: its size, both of its times,
    its number, and `index.way_of_taking_in`; of one whose time is not settled it is empty."""
    paths, commit = _paths(root)
    stamps: dict[str, str] = {}
    long = 0
    now, way = time.time(), way_of_taking_in()
    names: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        names.setdefault(folder, []).append(name)
    for folder, handle in beneath.each_folder(root, sorted(names)):
        for name in names[folder]:
            found = _stat(name, handle) if isinstance(handle, int) else None
            if found is None or not stat.S_ISREG(found.st_mode):
                continue
            path = f"{folder}/{name}" if folder else name
            long += too_long(path, found.st_size)
            if found.st_size <= MOST_BYTES:
                stamps[path] = _told(found) + way if settled(now - found.st_ctime) else ""
    return Listing(stamps, commit, long)


def _told(found: os.stat_result) -> str:
    """As `stat` prints it in a sandbox."""
    return f"{found.st_size} {_seconds(found.st_mtime_ns)} {_seconds(found.st_ctime_ns)} {found.st_ino}"


def _seconds(ns: int) -> str:
    digits = str(ns)
    return f"{digits[:-9]}.{digits[-9:]}" if len(digits) > 9 else f"{ns // 10**9}.{ns % 10**9:09d}"


def _stat(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None


def _paths(root: Path) -> tuple[list[str], str]:
    """At most so many, and the commit."""
    found = find(root)
    if found is None or found.top is None:
        walked = beneath.walk(root, depth=_DEPTH, most_entries=16 * MOST_FILES, enter=lambda name: name != ".git")
        paths = (f"{here}/{name}".lstrip("/") for here, names in walked for name in names)
        return list(itertools.islice(paths, MOST_FILES)), ""
    user = PrivateGitDir(found)
    at = GitContext(user.git_dir, found.top, user.index, root)
    listed = run_git_now("ls-files", "-z", "-co", "--exclude-standard", at=at)
    if listed.code != 0:
        raise ConfigError(f"{root}: git cannot list its files: {listed.reason}")
    head = run_git_now("rev-parse", "--verify", "-q", "HEAD", at=at)
    paths = {os.fsdecode(path) for path in listed.output.split(b"\0") if path and not path.endswith(b"/")}
    return list(itertools.islice(sorted(paths), MOST_FILES)), head.output.decode().strip()


def _read(root: Path, paths: list[str], on_read: Callable[[int, int], None]) -> Iterator[tuple[str, bytes | None]]:
    for number, path in enumerate(paths, 1):
        on_read(number, len(paths))
        try:
            yield path, beneath.read(root, path, MOST_BYTES)
        except OSError:
            yield path, None


def _shown(root: Path, hit: Hit) -> Found | None:
    try:
        text = text_of(beneath.read(root, hit.path, MOST_BYTES))
    except OSError:
        return None
    lines = [] if text is None else lines_of(text)[hit.first - 1 : hit.last]
    return Found(**asdict(hit), text="\n".join(lines))


def root_of(directory: Path) -> Path:
    """Where it really is. Raises ConfigError where it is none."""
    if not directory.is_dir():
        what = "is no directory" if directory.exists() else "no such directory"
        raise ConfigError(f"{directory}: {what}; name one with code in it")
    return directory.resolve()
