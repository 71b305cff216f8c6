"""A user's git repository, and the few things done to it on agents' behalf.

Owns `Repository`: running git in it, and keeping the state of a working tree as a commit without touching the index,
HEAD, the stash or what is ignored. How git is run is the business of `harness.git`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from etude.errors import ConfigError, EtudeError, MissingDependency
from etude.harness.git import run_git

_QUIET = ("-c", "gc.auto=0", "-c", "advice.detachedHead=false", "-c", "submodule.recurse=false")
SCRATCH = "etude-index-"
"""What directories of an index for the moment are called."""


class GitError(EtudeError):
    """Git refused; the message holds what it said."""

    def __init__(self, message: str, code: int, output: bytes) -> None:
        super().__init__(message)
        self.code = code
        self.output = output

    def __reduce__(self) -> tuple[type, tuple[str, int, bytes]]:
        return type(self), (str(self), self.code, self.output)


class Repository:
    """The repository that a directory belongs to. `root` is the top of the working tree."""

    def __init__(self, root: Path, common: Path, timeout_s: float = 120.0) -> None:
        self.root = root
        self.common = common
        """Where its objects, refs and config are, whichever worktree the user is in."""
        self._timeout_s = timeout_s

    @classmethod
    async def find(cls, directory: Path, timeout_s: float = 120.0) -> Repository:
        """Raises ConfigError where there is none, or nothing committed in it yet."""
        if shutil.which("git") is None:
            raise MissingDependency("git is not installed: apt-get install -y git (2.38 or later)")
        asked = cls(directory, directory, timeout_s)
        try:
            top = await asked.line("rev-parse", "--show-toplevel")
            await asked.line("rev-parse", "--verify", "HEAD^{commit}")
            common = await asked.line("rev-parse", "--path-format=absolute", "--git-common-dir")
        except GitError:
            raise ConfigError(
                f"{directory} is in no git repository with a commit; agents side by side need one: git init, commit"
            ) from None
        return cls(Path(top), Path(common), timeout_s)

    async def git(
        self,
        *words: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        given: bytes = b"",
        fine: Sequence[int] = (0,),
    ) -> bytes:
        """Run git and return what it prints. Raises GitError for an exit code that is not `fine`."""
        where = cwd or self.root
        ran = await run_git(*_QUIET, *words, cwd=where, env=env, given=given, deadline_s=self._timeout_s)
        if ran.code not in fine:
            raise GitError(f"git {' '.join(words)[:80]} in {where}: {ran.reason}", ran.code, ran.output)
        return ran.output

    async def line(self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """The one line git prints."""
        return (await self.git(*words, cwd=cwd, env=env)).decode(errors="surrogateescape").strip()

    async def snapshot(
        self,
        tree: Path,
        parent: str,
        message: str,
        index: Path | None = None,
        leave_out: Sequence[str] = (),
        scratch: Path | None = None,
    ) -> str:
        """A commit of what a directory holds, untracked files included and ignored ones not; `parent` if that is the
        same. `leave_out` are paths that stay as they are in the parent. `index` spares git the files it knows; the one
        that is used for the moment lies below `scratch`, for who would clear that up after a kill.

        The directory's own `.git` is not looked at: whoever works there could have put another in its place, with a
        config that names programs to run."""
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=scratch) as place:
            own = Path(place) / "index"
            env = {"GIT_DIR": str(self.common), "GIT_WORK_TREE": str(tree), "GIT_INDEX_FILE": str(own)}
            if index is not None and index.exists():
                shutil.copy2(index, own)
            else:
                await self.git("read-tree", parent, cwd=tree, env=env)
            await self.git("add", "-A", "--", ".", cwd=tree, env=env)
            if leave_out:
                await self._put_back(leave_out, parent, tree, {**env, "GIT_LITERAL_PATHSPECS": "1"})
            written = await self.line("write-tree", cwd=tree, env=env)
        if written == await self.line("rev-parse", f"{parent}^{{tree}}"):
            return parent
        return await self.line("commit-tree", written, "-p", parent, "-m", message)

    async def _put_back(self, paths: Sequence[str], parent: str, tree: Path, env: Mapping[str, str]) -> None:
        """Make of these paths in an index what the parent has. (To exclude them from `add` is an error to git where
        they are ignored.)"""
        await self.git("rm", "-r", "-q", "--cached", "--ignore-unmatch", "--", *paths, cwd=tree, env=env)
        entries = await self.git("ls-tree", "-r", "-z", parent, "--", *paths, cwd=tree, env=env)
        await self.git("update-index", "-z", "--index-info", cwd=tree, env=env, given=entries)

    async def working_tree(self, message: str, parent: str = "HEAD", scratch: Path | None = None) -> str:
        """A commit of what the user's working tree holds now, on top of `parent`."""
        index = await self.line("rev-parse", "--path-format=absolute", "--git-path", "index")
        start = await self.line("rev-parse", parent)
        return await self.snapshot(self.root, start, message, Path(index), scratch=scratch)
