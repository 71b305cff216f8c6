"""The index of a sandbox's workspace, and how it is kept up with the files.

Owns `Indexed`, one for each sandbox, and `keep_on_disk`, by which the product says that a sandbox is a directory of
this machine: its index is then in the user's store, and warm when the session begins. Everywhere else it is in memory,
made at the first question. Either way the sandbox says which files there are and when each was changed, and gives the
bytes of those that are not known: what it hides stays hidden, and the answers are the same. How an index ranks is the
business of `etude.search`.
"""

from __future__ import annotations

import asyncio
import posixpath
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

from etude.environments.base import WORKSPACE, Sandbox
from etude.errors import ConfigError
from etude.harness.tools.agent.kept import Kept, Listed
from etude.harness.tools.agent.listing import pattern_of
from etude.harness.tools.agent.stamps import Stamps, TooMany, stamps_of
from etude.harness.tools.base import ToolConfig, relative
from etude.search import Hit, Index, Store
from etude.search.content import MOST_BYTES, is_code
from etude.search.embedder import Embedder
from etude.search.narrowing import Contents, Narrowing, in_bytes
from etude.search.workspace import open_store

_Answer = TypeVar("_Answer")
_AT_ONCE, _TRIES = 16, 2
_TOGETHER, _TOGETHER_BYTES = 500, 16_000_000
"""Files that are held at once, and a few more."""


@dataclass(frozen=True)
class Narrowed:
    """The files to search, in order; and shell that exits with `kept.OUTDATED` where they are no longer all."""

    paths: list[str]
    check: str = ":"


@dataclass(frozen=True)
class Answered:
    """The pieces, and how many files below the path are too long to have any."""

    hits: list[Hit]
    too_long: int


class Indexed:
    """`counts` has what was asked of it: searches, and greps that it narrowed or left whole."""

    def __init__(
        self, directory: Path | None = None, said: Callable[[str], None] = lambda _: None,
        embedder: Embedder | None = None,
    ) -> None:  # fmt: skip
        self._directory, self._said, self._embedder = directory, said, embedder
        self._index: Index | None = None
        self._lock = asyncio.Lock()
        self._kept: Kept | None = None
        self._keeps = True
        self._too_many = False
        self._listed: Listed | None = None
        self._narrowing: tuple[int, Stamps, Narrowing] | None = None
        self._followed: tuple[int, Stamps] | None = None
        self._seen: Listed | None = None
        self._unread: set[str] = set()
        self._alone = threading.Lock()
        self.counts: Counter[str] = Counter()

    async def search(self, sandbox: Sandbox, config: ToolConfig, question: str, limit: int, under: str) -> Answered:
        """Of the files as they are now."""
        async with self._lock:
            index = await self._in_thread(self._opened)
            self.counts["searches"] += 1
            try:
                return await self._asked(index, sandbox, config, question, limit, under)
            except ConfigError as error:  # the disk is full, say
                return await self._asked(self._in_memory(error), sandbox, config, question, limit, under)

    async def _asked(
        self, index: Index, sandbox: Sandbox, config: ToolConfig, question: str, limit: int, under: str
    ) -> Answered:
        def asked() -> tuple[list[Hit], tuple[int, int]]:
            hits = index.search(question, limit, under)
            return hits, (index.revision, index.loads)

        while True:
            # of what the index has, while the sandbox looks at its files: where nothing has changed, that is the answer
            early = asyncio.create_task(self._in_thread(asked)) if await self._may_stand(sandbox, config) else None
            try:
                listed, looked = await self._looked(sandbox, config)
            except BaseException:
                if early is not None:
                    early.add_done_callback(_let_be)
                raise
            hits, (revision, loads) = await early if early is not None else ([], (-1, index.loads))
            long = await self._take_in_all(index, listed, looked, sandbox)
            if revision != index.revision:
                hits, _ = await self._in_thread(asked)
            self._seen = listed
            if loads == index.loads:
                return Answered(hits, sum(f"{path}/".startswith(f"{under}/" if under else "") for path in long))
            self._followed = None  # somebody has made the index forget meanwhile: all is looked at anew

    async def _may_stand(self, sandbox: Sandbox, config: ToolConfig) -> bool:
        """Whether it is of use to ask the index before the files are looked at: not where some are known to have
        changed."""
        if self._followed is None:
            await self._watched(sandbox, config)
            return True
        return await self._listed_now(sandbox, config) is self._seen

    async def _in_thread(self, do: Callable[[], _Answer]) -> _Answer:
        """Of the index. One whose question is given up still has the store until it ends: the next one waits there."""

        def alone() -> _Answer:
            with self._alone:
                return do()

        return await asyncio.to_thread(alone)

    async def narrowed(
        self, sandbox: Sandbox, config: ToolConfig, pattern: str, ignore_case: bool, path: str, glob: str | None
    ) -> Narrowed | None:
        """Of the files below a path those that a pattern may match; None where the index cannot say, or they are most
        of them."""
        if relative(path).startswith(("/", "..")):
            return None
        if self._too_many:
            self.counts["whole"] += 1
            return None
        async with self._lock:
            try:
                index = await self._in_thread(self._opened)
                found = await self._in_thread(lambda: index.having(pattern, ignore_case) if index.paths() else None)
                narrowed = None
                if found is not None and await self._kept_up(sandbox, config, path, glob):
                    narrowed = await self._of_kept(index, found, ignore_case, path, glob)
                elif found is not None:
                    narrowed = await self._of_swept(index, found, ignore_case, sandbox, config, path, glob)
            except ConfigError as error:
                self._in_memory(error)
                narrowed = None
            except TooMany:  # a grep of all of them needs no list
                self._too_many = True
                narrowed = None
        self.counts["whole" if narrowed is None else "narrowed"] += 1
        return narrowed

    async def _kept_up(self, sandbox: Sandbox, config: ToolConfig, path: str, glob: str | None) -> bool:
        """Whether the files below a path are known without looking at each; not so for what is odd enough that only
        the sandbox can say what it names."""
        if glob and pattern_of(glob) is None:
            return False
        self._listed = await self._listed_now(sandbox, config)
        if self._listed is None:
            return False
        within = relative(path)
        folders = (posixpath.dirname(name) for name in self._listed.changed)
        return within == "." or within in self._listed.stamps.folders or within in folders

    async def _listed_now(self, sandbox: Sandbox, config: ToolConfig) -> Listed | None:
        """What is known of the files without looking at each; None where that cannot be."""
        kept = await self._watched(sandbox, config)
        try:
            return None if kept is None else await kept.listed(sandbox, config)
        except OSError:
            self._keep_no_more()
            return None

    async def _watched(self, sandbox: Sandbox, config: ToolConfig) -> Kept | None:
        if not self._keeps or self._directory is None:
            return None
        try:
            self._kept = self._kept or Kept(self._directory)
            await self._kept.watch(sandbox, config)
        except OSError:
            self._keep_no_more()
        return self._kept

    def _keep_no_more(self) -> None:
        self._keeps = False
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    async def _of_kept(
        self, index: Index, found: Contents, ignore_case: bool, path: str, glob: str | None
    ) -> Narrowed | None:
        assert self._kept is not None and self._listed is not None, "it is kept up"
        stamps = self._listed.stamps
        if self._narrowing is None or self._narrowing[0] != index.revision or self._narrowing[1] is not stamps:
            made = await self._in_thread(lambda: index.narrowing(stamps.files, stamps.others))
            self._narrowing = index.revision, stamps, made
        narrowing = self._narrowing[2]
        inside = relative(path)
        folder = "" if inside == "." else inside
        names = {*narrowing.read(found, ignore_case), *self._listed.changed}
        if folder:
            names = {name for name in names if name.startswith(f"{folder}/")}
        if 2 * len(names) > narrowing.below(folder):
            return None
        if glob and (wanted := pattern_of(glob, inside)):
            names = {name for name in names if wanted.match(in_bytes(name))}
        return Narrowed(sorted(names, key=in_bytes), self._kept.check)

    async def outdated(self) -> None:
        """What was known of the files was not so."""
        async with self._lock:
            if self._kept is not None:
                self._kept.forget()

    async def _of_swept(
        self, index: Index, found: Contents, ignore_case: bool, sandbox: Sandbox, config: ToolConfig, path: str,
        glob: str | None,
    ) -> Narrowed | None:  # fmt: skip
        """By looking at each file."""
        stamps = await stamps_of(sandbox, config, path, glob)
        narrowing = await self._in_thread(lambda: index.narrowing(stamps.files, stamps.others))
        names = narrowing.read(found, ignore_case)
        return None if 2 * len(names) > len(narrowing.paths) or not narrowing.paths else Narrowed(names)

    @property
    def on_disk(self) -> bool:
        """Whether a grep can be asked of it."""
        return self._directory is not None

    def _opened(self) -> Index:
        if self._index is None:
            if self._directory is None:
                self._index = Index(Store(None), WORKSPACE, self._said, self._embedder)
            else:
                try:
                    self._index = Index(open_store(self._said), str(self._directory), self._said, self._embedder)
                except ConfigError as error:
                    self._in_memory(error)
        assert self._index is not None, "it has just been made"
        return self._index

    def _in_memory(self, why: ConfigError) -> Index:
        self._said(f"the index is in memory: {why}")
        self._directory = None
        self._index = Index(Store(None), WORKSPACE, self._said, self._embedder)
        return self._index

    async def _looked(self, sandbox: Sandbox, config: ToolConfig) -> tuple[Listed | None, Stamps]:
        """What is known of the files and what may have changed of them, as it is now; or all there is."""
        for _ in range(_TRIES):
            listed = await self._listed_now(sandbox, config)
            if listed is None or self._kept is None:
                break
            try:
                changed = await self._kept.looked(listed, sandbox, config)
            except OSError:
                self._keep_no_more()
                break
            if changed is not None:
                return listed, changed
            self._kept.forget()
        return None, await stamps_of(sandbox, config)

    async def _take_in_all(
        self, index: Index, listed: Listed | None, looked: Stamps, sandbox: Sandbox
    ) -> Collection[str]:
        """Bring the index up to that; the files that are too long for it."""
        followed, self._followed = self._followed, None
        if listed is None:
            await self._take_in(index, looked.files, looked.long, sandbox)
            return looked.long
        stamps, long = listed.stamps.files, listed.stamps.long
        if followed is not None and followed[0] == index.loads and followed[1] is listed.stamps:
            again = {path: stamps[path] for path in self._unread if path in stamps and path not in listed.changed}
            gone = listed.changed - looked.files.keys()
            await self._take_in(index, again | looked.files, looked.long, sandbox, gone)
        else:
            now = {path: stamp for path, stamp in stamps.items() if path not in listed.changed}
            await self._take_in(index, now | looked.files, long | looked.long, sandbox)
        self._followed = index.loads, listed.stamps
        return (long - listed.changed) | looked.long

    async def _take_in(
        self, index: Index, stamps: Mapping[str, str], long: Collection[str], sandbox: Sandbox,
        gone: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        """Files with their stamps, and those that are `gone`; without these, the others are."""
        now = {
            path: stamp
            for path, stamp in stamps.items()
            if index.store.grams or (is_code(path) and path not in long)
        }  # fmt: skip

        async def data_of(path: str) -> bytes | None:
            try:
                return await sandbox.read_file(f"{WORKSPACE}/{path}", MOST_BYTES)
            except OSError:
                return None  # gone meanwhile, or grown too long

        stale = await self._in_thread(lambda: index.stale(now))
        self._unread.clear()
        read: list[tuple[str, bytes | None]] = [(path, None) for path in gone or ()]
        if gone is not None and not (stale or gone):
            return
        for start in range(0, max(len(stale), 1), _AT_ONCE):
            some = stale[start : start + _AT_ONCE]
            given = list(zip(some, await asyncio.gather(*map(data_of, some)), strict=True))
            self._unread.update(path for path, data in given if data is None)
            read += given
            size = sum(len(data or b"") for _, data in read)
            if start + _AT_ONCE >= len(stale) or len(read) >= _TOGETHER or size > _TOGETHER_BYTES:
                await self._in_thread(partial(index.update, now, read, whole=gone is None))
                read = []


def _let_be(task: asyncio.Task[object]) -> None:
    """Nobody waits for its answer any more."""
    if not task.cancelled():
        task.exception()


_INDEXES: WeakKeyDictionary[Sandbox, Indexed] = WeakKeyDictionary()


def index_of(sandbox: Sandbox) -> Indexed:
    """The one of a sandbox."""
    return _INDEXES.setdefault(sandbox, Indexed())


def keep_on_disk(
    sandbox: Sandbox, directory: Path, said: Callable[[str], None] = lambda _: None, embedder: Embedder | None = None
) -> Indexed:
    """Say that the workspace of a sandbox is a directory of this machine; `said` is told where none can be kept. An
    `embedder` takes the place of our own."""
    _INDEXES[sandbox] = Indexed(directory, said, embedder)
    return _INDEXES[sandbox]
