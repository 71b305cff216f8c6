"""Snapshots of a directory in a git repository of its own, beside the user's and unknown to it.

Owns `Shadow`. A snapshot holds every file that git would: what is ignored is neither kept nor ever touched, and the
user's HEAD, stash, hooks and config are not so much as read, and the index only for what is tracked though a pattern
ignores it. Content is kept byte for byte, whatever `.gitattributes` say. Restoring takes a snapshot first, removes and
writes only paths that one of the two snapshots has, and leaves alone whatever is in the way and in neither. Directories
with a `.git` of their own (submodules, clones) and files over a size are left out, and restoring leaves them as they
are.

Works on the host's side of a workspace; runs nothing of the workspace's. When to take a snapshot is the business of
`harness.checkpoints`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.durable import write_whole
from etude.errors import CheckpointError, ConfigError
from etude.host import beneath
from etude.host.git import GitContext, find_git, run_git
from etude.host.repository import PrivateGitDir, excludes, find

MAX_FILE_MB = 50.0
"""Of one file. Agents side by side have the same bound."""
_ATTRIBUTES = "* -text !eol !filter !ident !working-tree-encoding\n"


@dataclass(frozen=True)
class Restored:
    """What restoring a snapshot did. `before` is the snapshot of what was there, to go back to."""

    before: str
    written: tuple[str, ...]
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    """What should have been written or removed, and was left alone: something unknown was in the way."""


class Shadow:
    """For one session; sessions of one workspace share a repository, and so what their snapshots have in common."""

    def __init__(self, workspace: Path, home: Path, session_id: str, max_file_mb: float = MAX_FILE_MB) -> None:
        self._workspace = workspace.resolve()
        find_git(self._workspace)
        self._git = home / hashlib.sha256(os.fsencode(self._workspace)).hexdigest()[:24]
        self._session, self._max_bytes = session_id, int(max_file_mb * 1e6)
        self._index = self._git / f"index-{session_id}"
        self._turn = asyncio.Lock()
        """One snapshot at a time: they share an index."""
        self._written: str | None = None
        """The tree that the index was last written as; None where that is not known."""
        self._snapshots: dict[str, str] | None = None
        """This session's, by tree; None where they have not been asked for. Nobody else makes any."""

    async def take(self, label: str) -> str:
        """A snapshot's id. Where this session has one of the very same files, it is that one's."""
        async with self._turn:
            return await self._take(label)

    async def restore(self, snapshot: str) -> Restored:
        """Make the directory what it was, ignored files aside."""
        async with self._turn:
            before = await self._take("before going back")
            changes = await self._changes(before, snapshot)
            gone = [path for status, path in changes if status == "D"]
            removed = await asyncio.to_thread(beneath.remove, self._workspace, gone)
            wanted = [(status, path) for status, path in changes if status != "D"]
            await asyncio.to_thread(beneath.make_room, self._workspace, [path for _, path in wanted])
            free = [path for status, path in wanted if not beneath.blocked(self._workspace, path, new=status == "A")]
            self._written = None
            await self._run("read-tree", "-m", "-i", before, snapshot)
            await self._run("checkout-index", "-f", "-u", "-z", "--stdin", stdin=_lines(free))
            kept = {*gone, *(path for _, path in wanted)} - {*removed, *free}
            # what lies there in their place is none of ours, and must not come into the next snapshot as if it were
            await self._run("update-index", "--force-remove", "-z", "--stdin", stdin=_lines(kept))
            return Restored(before, tuple(free), tuple(removed), tuple(sorted(kept)))

    async def diff(self, start: str, end: str) -> str:
        """From one snapshot to another, as a patch."""
        patch = await self._run("diff-tree", "-r", "-p", "-M", "--no-color", "--no-ext-diff", start, end)
        return patch.decode("utf-8", "replace")

    async def changed(self, start: str, end: str) -> list[str]:
        """The paths that are not the same in two snapshots."""
        return [path for _, path in await self._changes(start, end)]

    def at(self, snapshot: str) -> PastTree:
        """A snapshot, to compare the directory with as it is."""
        return PastTree(self, snapshot)

    async def changed_since(self, snapshot: str) -> list[str]:
        """The paths that are not now as they were, without those that are gone. Keeps no snapshot."""
        async with self._turn:
            changes = await self._changes(snapshot, await self._tree())
        return [path for status, path in changes if status != "D"]

    async def read(self, snapshot: str, path: str) -> bytes | None:
        """A file of a snapshot; None where it has none of that name."""
        entry = (await self._run("ls-tree", "-z", snapshot, "--", path)).split(b"\0")[0].split()
        if not entry or not entry[0].startswith(b"100"):
            return None
        return await self._run("cat-file", "blob", entry[2].decode())

    async def forget(self) -> None:
        """Drop this session's snapshots; what no other has is gone with git's next clean-up."""
        async with self._turn:
            if self._git.exists():
                refs = (await self._run("for-each-ref", "--format=delete %(refname)", self._refs)).strip()
                await self._run("update-ref", "--stdin", stdin=refs + b"\n" if refs else b"")
                self._index.unlink(missing_ok=True)
                self._written = self._snapshots = None
                await self._run("-c", "gc.auto=6700", "gc", "--auto", "--quiet")

    async def adopt(self, other: str) -> None:
        """Keep the snapshots of another session of this workspace as this session's own too."""
        async with self._turn:
            await self._prepare(await asyncio.to_thread(self._users))
            listed = await self._run("for-each-ref", "--format=%(objectname)", f"refs/sessions/{other}/")
            self._snapshots = None
            commands = [f"update {self._refs}{each} {each}\n" for each in listed.decode().split()]
            await self._run("update-ref", "--stdin", stdin="".join(commands).encode())

    # --- with the lock held ---------------------------------------------------------------------------------------

    @property
    def _refs(self) -> str:
        return f"refs/sessions/{self._session}/"

    async def _tree(self) -> str:
        """The directory as it is, as a tree."""
        user = await asyncio.to_thread(self._users)
        await self._prepare(user)
        seen, wanted, kept = await _together(
            self._listed("-o", "-m", "-d"), self._tracked_though_ignored(user), self._listed("-c", "-i")
        )
        new = set(wanted) - set(kept)
        gone, fit = await asyncio.to_thread(self._sorted, dict.fromkeys([*seen, *new]))
        ignored = set(kept) - set(wanted)  # by now
        gone, fit = [*gone, *ignored], [path for path in fit if path not in ignored]
        if self._written is None or gone or fit:
            self._written = None
            if gone:
                await self._run("update-index", "--force-remove", "-z", "--stdin", stdin=_lines(gone))
            if fit:
                await self._run("update-index", "--add", "--remove", "--replace", "-z", "--stdin", stdin=_lines(fit))
            self._written = (await self._run("write-tree")).decode().strip()
        return self._written

    async def _take(self, label: str) -> str:
        tree = await self._tree()
        if self._snapshots is None:
            same = await self._run("for-each-ref", "--format=%(tree) %(objectname)", self._refs)
            self._snapshots = dict(line.split() for line in same.decode().splitlines())
        if tree not in self._snapshots:
            commit = (await self._run("commit-tree", tree, "-m", label)).decode().strip()
            await self._run("update-ref", f"{self._refs}{commit}", commit)
            self._snapshots[tree] = commit
        return self._snapshots[tree]

    async def _listed(self, *which: str) -> list[str]:
        return _split(await self._run("ls-files", "-z", *which, "--exclude-standard"))

    async def _prepare(self, user: PrivateGitDir | None) -> None:
        """Make the repository, and tell it what the user's own ignores beside the `.gitignore` files."""
        if not (self._git / "HEAD").exists():
            self._git.mkdir(parents=True, exist_ok=True, mode=0o700)
            await self._run("init", "--quiet")
        info = self._git / "info"
        info.mkdir(exist_ok=True)
        _replace(info / "attributes", _ATTRIBUTES.encode())
        _replace(info / "exclude", user.excludes if user is not None else await self._ignored_everywhere())

    async def _ignored_everywhere(self) -> bytes:
        return await asyncio.to_thread(excludes, None, self._workspace)

    def _users(self) -> PrivateGitDir | None:
        """The user's repository, where the workspace is in one."""
        found = find(self._workspace)
        return None if found is None else PrivateGitDir(found)

    async def _tracked_though_ignored(self, user: PrivateGitDir | None) -> list[str]:
        """Files that the user's git keeps although a pattern would ignore them: they are not ignored."""
        if user is None:
            return []
        try:
            index = await asyncio.to_thread(lambda: user.index)
            at = GitContext(user.git_dir, user.found.top, index, self._workspace)
        except ConfigError:  # the session's own commands may have broken it
            return []
        ran = await run_git("ls-files", "-z", "-c", "-i", "--exclude-standard", at=at)
        return _split(ran.output) if ran.code == 0 else []

    def _sorted(self, paths: Iterable[str]) -> tuple[list[str], list[str]]:
        """Those that are gone, or have become what no snapshot can hold; and those that one can. A repository within,
        which is named with a slash, is neither."""
        gone, fit = [], []
        for path in paths:
            found = beneath.lstat(self._workspace, path)
            if found is not None and (stat.S_ISLNK(found.st_mode) or self._readable(path, found)):
                fit.append(path)
            elif not path.endswith("/"):
                gone.append(path)
        return gone, fit

    def _readable(self, path: str, found: os.stat_result) -> bool:
        size_fits = stat.S_ISREG(found.st_mode) and found.st_size <= self._max_bytes
        return size_fits and os.access(self._workspace / path, os.R_OK)

    async def _changes(self, start: str, end: str) -> list[tuple[str, str]]:
        fields = _split(await self._run("diff-tree", "-r", "-z", "--no-renames", "--name-status", start, end))
        return list(zip(fields[::2], fields[1::2], strict=True))

    async def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        ran = await run_git(*arguments, at=GitContext(self._git, self._workspace, self._index), given=stdin)
        if ran.code:
            said = " ".join(ran.reason.split())
            raise CheckpointError(
                f"no snapshot of {self._workspace} in {self._git}: git {arguments[0]} said: {said}; is there room?"
            )
        return ran.output


@dataclass(frozen=True)
class PastTree:
    """A directory as it was: `harness.tools.base.Baseline`."""

    shadow: Shadow
    snapshot: str

    async def changed(self) -> list[str]:
        return await self.shadow.changed_since(self.snapshot)

    async def read(self, path: str) -> bytes | None:
        return await self.shadow.read(self.snapshot, path)


async def _together(*works: Coroutine[Any, Any, list[str]]) -> list[list[str]]:
    """What each returns. Where one fails the others are ended first: none is left running behind the lock."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


def _split(output: bytes) -> list[str]:
    return [os.fsdecode(part) for part in output.split(b"\0") if part]


def _lines(paths: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def _replace(path: Path, data: bytes) -> None:
    """Whole or not at all: sessions of one workspace write the same file."""
    if path.exists() and path.read_bytes() == data:
        return
    write_whole(path, data, shared=True)
