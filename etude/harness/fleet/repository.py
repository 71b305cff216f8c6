"""A user's git repository, and the few things done to it on agents' behalf.

Owns `Repository`: running git in it, keeping the state of a working tree as a commit without touching the index, HEAD,
the stash or what is ignored, and making and removing worktrees. Files over the size that undo has too are left out, and
named: git would take minutes over one, and keep it in the user's repository. git sees its objects and refs and never
its config (`host.repository`), which is why a worktree is made here by hand: `git worktree add` reads the repository's
own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.errors import ConfigError, EtudeError
from etude.harness.shadow import MAX_FILE_MB
from etude.host import beneath
from etude.host.git import GitContext, run_git
from etude.host.repository import PrivateGitDir, find

SCRATCH = "etude-index-"
"""What directories of an index for the moment are called."""
_MAX_BYTES = int(MAX_FILE_MB * 1e6)


class GitError(EtudeError):
    """Git refused; the message holds what it said."""

    def __init__(self, message: str, code: int, output: bytes) -> None:
        super().__init__(message)
        self.code = code
        self.output = output

    def __reduce__(self) -> tuple[type, tuple[str, int, bytes]]:
        return type(self), (str(self), self.code, self.output)


@dataclass(frozen=True)
class Snapshot:
    """A commit of what a directory holds. The files `left_out` are too large: they stay in it as they were before, or
    are not in it at all where they are new."""

    commit: str
    left_out: tuple[str, ...] = ()


class Repository:
    """The repository that a directory belongs to. `root` is the top of the working tree."""

    def __init__(self, root: Path, aside: PrivateGitDir, timeout_s: float = 120.0) -> None:
        self.root, self._aside, self._timeout_s = root, aside, timeout_s

    @classmethod
    async def find(cls, directory: Path, timeout_s: float = 120.0) -> Repository:
        """Raises ConfigError where there is none, or nothing committed in it yet."""
        found = await asyncio.to_thread(find, directory)
        if found is not None and found.top is not None:
            repository = cls(found.top, await asyncio.to_thread(PrivateGitDir, found), timeout_s)
            try:
                await repository.line("rev-parse", "--verify", "HEAD^{commit}")
                return repository
            except GitError:
                pass
        raise ConfigError(
            f"{directory} is in no git repository of yours with a commit, as agents side by side need: git init, commit"
        )

    async def git(
        self,
        *words: str,
        tree: Path | None = None,
        index: Path | None = None,
        env: Mapping[str, str] | None = None,
        given: bytes = b"",
        fine: Sequence[int] = (0,),
    ) -> bytes:
        """Run git and return what it prints; on the files of `tree` instead of the root's, where one is given. Raises
        GitError for an exit code that is not `fine`."""
        where = GitContext(self._aside.git_dir, tree or self.root, index, workspace=self.root)
        ran = await run_git(*words, at=where, env=env, given=given, deadline_s=self._timeout_s)
        if ran.code not in fine:
            raise GitError(f"git {' '.join(words)[:80]} in {where.directory}: {ran.reason}", ran.code, ran.output)
        return ran.output

    async def line(self, *words: str, tree: Path | None = None, index: Path | None = None) -> str:
        """The one line git prints."""
        return (await self.git(*words, tree=tree, index=index)).decode(errors="surrogateescape").strip()

    async def snapshot(
        self,
        tree: Path,
        parent: str,
        message: str,
        index: Path | None = None,
        leave_out: Sequence[str] = (),
        scratch: Path | None = None,
    ) -> Snapshot:
        """A commit of what a directory holds, untracked files included and ignored ones not; `parent` if that is the
        same. Submodules are the commits they stand at, and other repositories within are left out. `leave_out` are
        paths that stay as they are in the parent. `index` spares git the files it knows; the one that is used for the
        moment lies below `scratch`, for who would clear that up after a kill.

        The directory's own `.git` is not looked at: whoever works there could have put another in its place, with a
        config that names programs to run."""
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=scratch) as place:
            own = Path(place) / "index"
            if index is not None and index.exists():
                shutil.copy2(index, own)
            else:
                await self.git("read-tree", parent, tree=tree, index=own)
            large = await self._stage(tree, own)
            if leave_out:
                await self._put_back(leave_out, parent, tree, own)
            written = await self.line("write-tree", tree=tree, index=own)
        left_out = tuple(path for path in large if not any(Path(path).is_relative_to(each) for each in leave_out))
        if written == await self.line("rev-parse", f"{parent}^{{tree}}"):
            return Snapshot(parent, left_out)
        return Snapshot(await self.line("commit-tree", written, "-p", parent, "-m", message), left_out)

    async def commit_with(self, parent: str, entries: bytes, message: str) -> str:
        """A commit on `parent` with some paths of its tree other than there. `entries` are as `git update-index` takes
        them by --index-info, each ended by NUL."""
        with tempfile.TemporaryDirectory(prefix=SCRATCH) as place:
            index = Path(place) / "index"
            await self.git("read-tree", parent, index=index)
            await self.git("update-index", "-z", "--index-info", index=index, given=entries)
            written = await self.line("write-tree", index=index)
        return await self.line("commit-tree", written, "-p", parent, "-m", message)

    async def _stage(self, tree: Path, index: Path) -> list[str]:
        """What `git add -A` does, without its `git status` in every submodule, by that one's own config. The files that
        are too large are not staged; it returns them."""
        seen = await self.git("ls-files", "-z", "-o", "-m", "-d", "--exclude-standard", tree=tree, index=index)
        paths = [path for path in dict.fromkeys(seen.split(b"\0")) if path and not path.endswith(b"/")]
        large = await asyncio.to_thread(_large, tree, paths)
        given = b"".join(path + b"\0" for path in paths if path not in large)
        words = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
        await self.git(*words, tree=tree, index=index, given=given)
        return [os.fsdecode(path) for path in large]

    async def _put_back(self, paths: Sequence[str], parent: str, tree: Path, index: Path) -> None:
        """Make of these paths in an index what the parent has. (To exclude them from `add` is an error to git where
        they are ignored.)"""
        env = {"GIT_LITERAL_PATHSPECS": "1"}
        await self.git("rm", "-r", "-q", "--cached", "--ignore-unmatch", "--", *paths, tree=tree, index=index, env=env)
        entries = await self.git("ls-tree", "-r", "-z", parent, "--", *paths, tree=tree, env=env)
        await self.git("update-index", "-z", "--index-info", tree=tree, index=index, given=entries)

    async def working_tree(self, message: str, parent: str = "HEAD", scratch: Path | None = None) -> Snapshot:
        """A commit of what the user's working tree holds now, on top of `parent`."""
        start = await self.line("rev-parse", parent)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=scratch) as place:
            index = Path(place) / "index"
            grown = await self._names(index)
            taken = await self.snapshot(self.root, start, message, index, scratch=scratch)
            return Snapshot(taken.commit, (*grown, *taken.left_out))

    async def _names(self, index: Path) -> list[str]:
        """The user's index with what it says of files left out: that one is unchanged, or is not to be looked at. The
        session's commands write it, and could hide a change from who believes that. Only what a sparse checkout leaves
        out is believed to be left out, and files that have become too large, which are returned."""
        users = await asyncio.to_thread(lambda: self._aside.index)
        entries = (await self.git("ls-files", "-z", "-v", "-s", index=users)).split(b"\0")[:-1]
        sparse = beneath.lstat(self._aside.found.git_dir, "info/sparse-checkout") is not None
        absent = [
            path
            for entry in entries if sparse and entry[:1] in b"Ss"
            for path in [entry.partition(b"\t")[2]] if beneath.lstat(self.root, os.fsdecode(path)) is None
        ]  # fmt: skip
        given = b"".join(entry[2:] + b"\0" for entry in entries)
        await self.git("update-index", "-z", "--index-info", index=index, given=given)
        grown = await self._grown(entries)
        left_out = b"".join(path + b"\0" for path in (*absent, *grown))
        await self.git("update-index", "-z", "--skip-worktree", "--stdin", index=index, given=left_out)
        return [os.fsdecode(path) for path in grown]

    async def _grown(self, entries: Iterable[bytes]) -> list[bytes]:
        """Files of an index that are too large and not of the size they have there. The new index knows no times, so
        that git would read all of each to tell whether it has changed."""
        ids = {path: about.split()[2] for about, _, path in (entry.partition(b"\t") for entry in entries)}
        large = await asyncio.to_thread(_large, self.root, ids)
        given = b"".join(ids[path] + b"\n" for path in large)
        sizes = (await self.git("cat-file", "--batch-check=%(objectsize)", given=given)).splitlines() if large else []
        return [path for (path, size), known in zip(large.items(), sizes, strict=True) if known != b"%d" % size]

    async def add_worktree(self, name: str, tree: Path, commit: str) -> Path:
        """Make a worktree with a detached HEAD, the way git lays one out; returns its own git directory."""
        own = self._worktrees() / name
        own.mkdir(parents=True)
        tree.mkdir(parents=True)
        named = {own / "HEAD": commit, own / "commondir": "../..", own / "gitdir": tree / ".git"}
        for file, text in {**named, tree / ".git": f"gitdir: {own}"}.items():
            file.write_bytes(os.fsencode(f"{text}\n"))
        await self.git("read-tree", commit, tree=tree, index=own / "index")
        await self.git("checkout-index", "-a", "-u", tree=tree, index=own / "index")
        return own

    async def remove_worktree(self, name: str, tree: Path) -> None:
        """Both of what `add_worktree` makes, whichever of it is there."""
        own = self._worktrees() / name
        await asyncio.to_thread(lambda: [shutil.rmtree(each, ignore_errors=True) for each in (own, tree)])

    def _worktrees(self) -> Path:
        common = self._aside.found.common
        if (there := beneath.lstat(common, "worktrees")) is not None and not stat.S_ISDIR(there.st_mode):
            raise ConfigError(f"{common / 'worktrees'}: is no directory of git's; remove it")
        return common / "worktrees"


def _large(tree: Path, paths: Iterable[bytes]) -> dict[bytes, int]:
    """Those that are too large, and how large. Only these are looked at in the way that follows no link: it costs."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            if os.lstat(os.path.join(os.fsencode(tree), path)).st_size <= _MAX_BYTES:
                continue
        there = beneath.lstat(tree, os.fsdecode(path))
        if there is not None and stat.S_ISREG(there.st_mode) and there.st_size > _MAX_BYTES:
            found[path] = there.st_size
    return found
