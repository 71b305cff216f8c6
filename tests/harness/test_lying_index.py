"""The user's index is written by the session's commands: what it says of files hides no change from undo and diff."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from users_git import git

from etude.harness.fleet.repository import Repository
from etude.harness.shadow import Shadow


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    (root / "sub").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        (root / name).write_text("as it was\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def flagged(flag: str) -> Callable[[Path], None]:
    def lie(root: Path) -> None:
        git(root, "update-index", flag, "a.txt")
        (root / "a.txt").write_text("changed!!\n")

    return lie


def forged(root: Path) -> None:
    """The old content with the time, size and number of the new file: what git takes to be unchanged."""
    old = bytes.fromhex(git(root, "rev-parse", ":a.txt").strip())
    (root / "a.txt").write_text("changed!!\n")
    git(root, "update-index", "a.txt")
    new = bytes.fromhex(git(root, "rev-parse", ":a.txt").strip())
    index = root / ".git" / "index"
    body = index.read_bytes()[:-20].replace(new, old, 1)
    index.write_bytes(body + hashlib.sha1(body).digest())
    later = (root / "a.txt").stat().st_mtime + 10  # or git would look at what is as new as its index
    os.utime(index, (later, later))


def gone(root: Path) -> None:
    git(root, "update-index", "--skip-worktree", "a.txt")
    (root / "a.txt").unlink()


LIES = {"skipped": flagged("--skip-worktree"), "assumed": flagged("--assume-unchanged"), "forged": forged, "gone": gone}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_no_flag_of_the_index_hides_a_change(lie: Callable[[Path], None], repo: Path) -> None:
    shadow = Shadow(repo, repo.parent / "home", "s")

    async def scenario() -> None:
        first = await shadow.take("first")
        lie(repo)
        assert "a.txt" not in git(repo, "status", "--short"), "the user's git would have told"
        assert "a.txt" in await shadow.diff(first, await shadow.take("second"))
        repository = await Repository.find(repo)
        commit = (await repository.working_tree("now")).commit
        assert git(repo, "diff", "--name-only", "HEAD", commit) == "a.txt\n"
        restored = await shadow.restore(first)
        assert "a.txt" in restored.written and (repo / "a.txt").read_text() == "as it was\n"

    asyncio.run(scenario())


def test_a_sparse_checkout_is_no_deletion(repo: Path) -> None:
    git(repo, "sparse-checkout", "set", "--no-cone", "/*.txt")
    assert not (repo / "sub").exists()
    (repo / "b.txt").write_text("b\n")

    async def scenario() -> None:
        repository = await Repository.find(repo)
        commit = (await repository.working_tree("now")).commit
        assert git(repo, "diff", "--name-only", "HEAD", commit) == "b.txt\n"

    asyncio.run(scenario())
