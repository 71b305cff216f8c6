"""The places agents work in: worktrees of one repository, from one commit and what was not committed yet.

Owns `Worktrees`. Each starts from the same snapshot of the user's working tree, with an index and a HEAD of its own,
detached. What an agent leaves is read back as one commit on top of that snapshot, whatever it did with git meanwhile.
A worktree belongs to the process that holds its lock; what a killed process left is found by the next one, its work
kept below refs/etude/orphans and its directory removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, field_validator

from etude.config import Config
from etude.durable import naming
from etude.environments.base import Sandbox
from etude.errors import ConfigError, EtudeError
from etude.harness.fleet.repository import SCRATCH, GitError, Repository, Snapshot
from etude.host import beneath
from etude.host.lock import try_hold

_LOCK, _START, _INDEX, _TREE = "lock", "start", "index", "tree"
"""What is in a worktree's place: only the last of them is the agent's."""
_HALF_MADE, _STALE_S = "new-", 600.0
_MOST_BYTES = 4 << 30
"""Of one file that is copied in."""
_COUNTED = ("-r", "-z", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
OpenSandbox = Callable[[Path], Awaitable[Sandbox]]


class SetupFailed(EtudeError):
    """The set-up command of a worktree failed; the message holds the end of what it said."""


class FleetConfig(Config):
    """How worktrees are made."""

    directory: Path | None = None
    """Where they lie; None: ~/.cache/etude/worktrees. On the repository's file system it is quickest."""
    max_agents: int = Field(8, ge=1)
    """Most agents side by side; more are refused."""
    commit: str = "HEAD"
    """What they start from, with the working tree's uncommitted changes on top."""
    uncommitted: bool = True
    """Whether those changes are taken along; only from HEAD can they be."""
    link: tuple[str, ...] = ()
    """Ignored files or directories of the user's tree that worktrees see by a symlink: installed packages, say."""
    copy_in: tuple[str, ...] = ()
    """The same, copied."""
    setup: str = ""
    """A command that makes a fresh worktree ready, run in its sandbox."""
    setup_timeout_s: float = Field(900.0, gt=0)
    """How long `setup` may take in a worktree."""

    @field_validator("link", "copy_in")
    @classmethod
    def _below(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path or path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"{path!r} must be relative to the repository, and below it")
        return paths


@dataclass(frozen=True)
class Worktree:
    """One agent's place."""

    name: str
    path: Path
    start: str
    """The commit it started from: the user's tree as it was."""


@dataclass(frozen=True)
class Result:
    """What an agent left: `commit` is its tree on top of `start`, and `start` itself where nothing changed."""

    name: str
    start: str
    commit: str
    files: int = 0
    added: int = 0
    removed: int = 0
    left_out: tuple[str, ...] = ()
    """Files of the agent's that are too large to be in it."""

    @property
    def empty(self) -> bool:
        return self.commit == self.start


class Worktrees:
    """The worktrees of one run. Use as `async with Worktrees.opened(...)`: they are removed at its end."""

    def __init__(self, repository: Repository, config: FleetConfig) -> None:
        self.repository, self.config = repository, config
        base = config.directory or Path.home() / ".cache" / "etude" / "worktrees"
        digest = hashlib.sha256(os.fsencode(repository.root)).hexdigest()[:16]
        self._home = base.expanduser().resolve() / f"{repository.root.name}-{digest}"
        if self._home.is_relative_to(repository.root):
            raise ConfigError(f"directory: {base} lies in the repository, whose worktrees must lie beside it")
        self._run = f"{os.getpid()}-{secrets.token_hex(3)}"
        self._held: dict[str, int] = {}
        self._making = asyncio.Lock()
        self._start: str | None = None
        self.orphans: tuple[str, ...] = ()
        """The refs under which the work of killed runs was kept at the opening of this one."""
        self.left_out: tuple[str, ...] = ()
        """Files of the user's that are too large to be taken along."""

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, directory: Path, config: FleetConfig | None = None) -> AsyncGenerator[Worktrees]:
        """Prune what killed runs left, take the snapshot that all start from, and remove every worktree at the end."""
        trees = cls(await Repository.find(directory), config or FleetConfig())
        trees.orphans = tuple(await trees.prune())
        trees._start = await trees._snapshot_of_user()
        try:
            yield trees
        finally:
            for name in list(trees._held):
                await trees.remove(name)

    @property
    def start(self) -> str:
        """The commit that every worktree starts from."""
        assert self._start is not None, "open with Worktrees.opened"
        return self._start

    async def add(self, name: str, open_sandbox: OpenSandbox | None = None) -> Worktree:
        """Make a worktree; with a sandbox to run it in, its set-up command too. Raises SetupFailed."""
        if not _NAME.fullmatch(name) or name in self._held:
            raise ConfigError(f"{name!r}: name each agent once, with small letters, digits and hyphens")
        if len(self._held) >= self.config.max_agents:
            raise ConfigError(f"max_agents: there are {len(self._held)} agents already")
        if self.config.setup and open_sandbox is None:
            raise ConfigError("setup: a set-up command needs a sandbox to run in")
        path = self._home / f"{self._run}-{name}"
        async with self._making:
            self._held[name] = _hold(path)
            tree = Worktree(name, path / _TREE, self.start)
            try:
                own = await self.repository.add_worktree(path.name, tree.path, self.start)
                with naming(path):
                    shutil.copy2(own / "index", path / _INDEX)  # now, while it is git's own
                    (path / _START).write_text(self.start)
            except BaseException:
                await self._drop(name)
                raise
        try:
            await asyncio.to_thread(self._bring, tree)
            if open_sandbox is not None and self.config.setup:
                await self._set_up(tree, open_sandbox)
        except BaseException:
            await self.remove(name)
            raise
        return tree

    async def result(self, tree: Worktree) -> Result:
        """What the worktree holds now. It goes on as it is: this can be asked at any time."""
        read = await self._read_back(tree.path.parent, tree.start, f"What agent {tree.name} did")
        commit = read.commit
        counts = await self.repository.git("diff-tree", *_COUNTED, tree.start, commit)
        rows = [row.split(b"\t") for row in counts.split(b"\0") if row]
        added, removed = (sum(int(row[at]) for row in rows if row[at] != b"-") for at in (0, 1))
        return Result(tree.name, tree.start, commit, len(rows), added, removed, read.left_out)

    async def remove(self, name: str) -> None:
        """Remove a worktree and all that is in it."""
        async with self._making:
            await self._drop(name)

    async def _drop(self, name: str) -> None:
        if name in self._held:
            await self._discard(self._home / f"{self._run}-{name}")
            os.close(self._held.pop(name))  # only now: who is cancelled here leaves it to the end of the run

    async def prune(self) -> list[str]:
        """Remove what no living process holds; what an agent had done there is kept, under the refs returned."""
        kept = []
        await asyncio.to_thread(_remove_stale, self._home)
        for path in sorted(self._home.glob("[0-9]*-*")) if self._home.is_dir() else ():
            lock = _try_lock(path)
            if lock is None:
                continue
            try:
                if (ref := await self._keep(path)) is not None:
                    kept.append(ref)
                await self._discard(path)
            except GitError:
                continue  # what cannot be kept is not thrown away
            finally:
                os.close(lock)
        return kept

    async def _snapshot_of_user(self) -> str:
        base = await self.repository.line("rev-parse", "--verify", f"{self.config.commit}^{{commit}}")
        if not self.config.uncommitted:
            return base
        if base != await self.repository.line("rev-parse", "HEAD"):
            raise ConfigError(f"commit: {self.config.commit} is not HEAD; set uncommitted = false to start from it")
        self._home.mkdir(parents=True, exist_ok=True)
        taken = await self.repository.working_tree("What was not committed yet", scratch=self._home)
        self.left_out = taken.left_out
        return taken.commit

    async def _set_up(self, tree: Worktree, open_sandbox: OpenSandbox) -> None:
        sandbox = await open_sandbox(tree.path)
        try:
            done = await sandbox.exec(self.config.setup, timeout_s=self.config.setup_timeout_s)
        finally:
            await sandbox.destroy()
        if done.exit_code:
            said = done.output.decode(errors="replace").strip()[-600:]
            raise SetupFailed(f"setup: {self.config.setup} ended with {done.exit_code} in worktree {tree.name}: {said}")

    def _bring(self, tree: Worktree) -> None:
        """Give the worktree what git does not: links to, and copies of, ignored things of the user's."""
        for name in (*self.config.link, *self.config.copy_in):
            target = tree.path / name
            if beneath.lstat(self.repository.root, name) is None or os.path.lexists(target):
                continue
            if name in self.config.copy_in:
                beneath.copy_tree(self.repository.root, name, target, _MOST_BYTES)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(self.repository.root / name)

    async def _read_back(self, path: Path, start: str, message: str) -> Snapshot:
        brought = (*self.config.link, *self.config.copy_in)
        return await self.repository.snapshot(path / _TREE, start, message, path / _INDEX, brought, path)

    async def _keep(self, path: Path) -> str | None:
        """Keep an orphan's work under a ref; None where it had done nothing, was not finished being made, or was being
        removed."""
        if not (path / _START).exists() or not (path / _TREE).is_dir():
            return None
        start = (path / _START).read_text().strip()
        work = (await self._read_back(path, start, f"What {path.name} had done")).commit
        if work == start:
            return None
        ref = f"refs/etude/orphans/{path.name}-{work[:8]}"
        await self.repository.git("update-ref", ref, work)
        return ref

    async def _discard(self, path: Path) -> None:
        (path / _START).unlink(missing_ok=True)  # what is half removed, if we are killed now, is nobody's work
        await self.repository.remove_worktree(path.name, path)


def _remove_stale(home: Path) -> None:
    """What a run that was killed in the very moment of making it left half made. It is there for a moment only, but in
    that moment another run's looks the same; so what is young is left for later."""
    for path in (*home.glob(f"{_HALF_MADE}*"), *home.glob(f"{SCRATCH}*")):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)


def _hold(path: Path) -> int:
    """Make a directory and lock it for as long as this process lives. It has its name only when it is locked, so that
    nobody takes it for an orphan."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=_HALF_MADE, dir=path.parent))
    lock = _try_lock(fresh)
    assert lock is not None, "a directory just made is nobody's"
    fresh.rename(path)
    return lock


def _try_lock(path: Path) -> int | None:
    """The lock on a directory; None where a living process has it."""
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    if try_hold(lock):
        return lock
    os.close(lock)
    return None
