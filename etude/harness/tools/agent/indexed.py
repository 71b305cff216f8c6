"""The index of a sandbox's workspace, and how it is kept up with the files.

Owns `Indexed`, one for each sandbox, and `keep_on_disk`, by which the product says that a sandbox is a directory of
this machine: its index is then in the user's store, and warm when the session begins. Everywhere else it is in memory,
made at the first question. Either way the sandbox says which files there are and when each was changed, and gives the
bytes of those that are not known: what it hides stays hidden, and the answers are the same. How an index ranks is the
business of `etude.search`.
"""

from __future__ import annotations

import asyncio
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

from etude.environments.base import WORKSPACE, Sandbox
from etude.errors import ConfigError
from etude.harness.tools.agent.listing import listing
from etude.harness.tools.base import ToolConfig, ToolError, overdue
from etude.search import Hit, Index, Store, stamp_of
from etude.search.content import MAX_BYTES, is_code
from etude.search.workspace import open_store

_MAX_FILES = 60_000
_AT_ONCE = 16
_READ_TOGETHER = 500
_LISTING_BYTES = 16_000_000


@dataclass(frozen=True)
class Stamps:
    """Of the files that were listed: those that can be indexed, with their stamps (`search.stamp_of`), and in `others`
    what is too long or no plain file."""

    files: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)


class Indexed:
    """`counts` has what was asked of it: searches, and greps that it narrowed or left whole."""

    def __init__(self, directory: Path | None = None, said: Callable[[str], None] = lambda _: None) -> None:
        self._directory, self._said = directory, said
        self._index: Index | None = None
        self._lock = asyncio.Lock()
        self.counts: Counter[str] = Counter()

    async def search(self, sandbox: Sandbox, config: ToolConfig, question: str, limit: int, under: str) -> list[Hit]:
        """Of the files as they are now."""
        async with self._lock:
            index = await asyncio.to_thread(self._opened)
            self.counts["searches"] += 1
            try:
                return await self._asked(index, sandbox, config, question, limit, under)
            except ConfigError as error:  # the disk is full, say
                return await self._asked(self._in_memory(error), sandbox, config, question, limit, under)

    async def _asked(
        self, index: Index, sandbox: Sandbox, config: ToolConfig, question: str, limit: int, under: str
    ) -> list[Hit]:
        while True:
            renewed = index.renewed
            await self._update(index, sandbox, config)
            hits = await asyncio.to_thread(index.search, question, limit, under)
            if index.renewed == renewed:
                return hits

    async def narrowed(self, pattern: str, ignore_case: bool, stamps: Stamps) -> list[str] | None:
        """Of listed files those that a pattern may match, in order; None where the index cannot say."""
        async with self._lock:
            try:
                index = await asyncio.to_thread(self._opened)
                kept = await asyncio.to_thread(index.may_match, pattern, ignore_case, stamps.files)
            except ConfigError as error:
                self._in_memory(error)
                kept = None
        return None if kept is None else sorted([*kept, *stamps.others], key=_bytes)

    @property
    def on_disk(self) -> bool:
        """Whether a grep can be asked of it."""
        return self._directory is not None

    def _opened(self) -> Index:
        if self._index is None:
            if self._directory is None:
                self._index = Index(Store(None), WORKSPACE)
            else:
                try:
                    self._index = Index(open_store(self._said), str(self._directory), self._said)
                except ConfigError as error:
                    self._in_memory(error)
        assert self._index is not None, "it has just been made"
        return self._index

    def _in_memory(self, why: ConfigError) -> Index:
        self._said(f"the index is in memory: {why}")
        self._directory = None
        self._index = Index(Store(None), WORKSPACE)
        return self._index

    async def _update(self, index: Index, sandbox: Sandbox, config: ToolConfig) -> None:
        now = {
            path: stamp
            for path, stamp in (await stamps_of(sandbox, config)).files.items()
            if index.store.grams or is_code(path)
        }
        some = asyncio.Semaphore(_AT_ONCE)

        async def data_of(path: str) -> bytes | None:
            async with some:
                try:
                    return await sandbox.read_file(f"{WORKSPACE}/{path}", MAX_BYTES)
                except OSError:
                    return None  # gone meanwhile, or grown too long

        stale = await asyncio.to_thread(index.stale, now)
        for start in range(0, max(len(stale), 1), _READ_TOGETHER):
            some_of_them = stale[start : start + _READ_TOGETHER]
            data = await asyncio.gather(*map(data_of, some_of_them))
            await asyncio.to_thread(index.update, now, list(zip(some_of_them, data, strict=True)))


_INDEXES: WeakKeyDictionary[Sandbox, Indexed] = WeakKeyDictionary()


def index_of(sandbox: Sandbox) -> Indexed:
    """The one of a sandbox."""
    return _INDEXES.setdefault(sandbox, Indexed())


def keep_on_disk(sandbox: Sandbox, directory: Path, said: Callable[[str], None] = lambda _: None) -> Indexed:
    """Say that the workspace of a sandbox is a directory of this machine; `said` is told where none can be kept."""
    _INDEXES[sandbox] = Indexed(directory, said)
    return _INDEXES[sandbox]


async def stamps_of(sandbox: Sandbox, config: ToolConfig, path: str = ".", glob: str | None = None) -> Stamps:
    """Of the files below a path, or of those that a glob names. Raises ToolError where they cannot be had."""
    listed = listing(path, glob)
    command = f"date +%s; {listed} | xargs -0r stat --printf '%s %.9Y %.9Z %i %f %n\\0' -- 2>/dev/null"
    done = await sandbox.exec(command, timeout_s=config.command_timeout_s, max_output_bytes=_LISTING_BYTES)
    if done.exit_code == 3:
        raise ToolError(f"no such file or directory: {path}")
    if done.timed_out:
        overdue()
    if done.timed_out or done.log_path:
        raise ToolError("there are too many files here to be indexed; use grep")
    now, _, rows = done.output.decode("utf-8", "surrogateescape").partition("\n")
    found = Stamps()
    for row in filter(None, rows.split("\0")):
        size, changed, status_changed, inode, mode, name = row.split(" ", 5)
        if stat.S_ISREG(int(mode, 16)) and int(size) <= MAX_BYTES and len(found.files) < _MAX_FILES:
            age_s = float(now) - float(status_changed)
            found.files[name] = stamp_of(int(size), changed, status_changed, int(inode), age_s)
        else:
            found.others.append(name)
    return found


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
