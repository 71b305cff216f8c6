"""A pipe where git reads ends in a message that names it, and in no wait for somebody to write it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from proofs import one_of_each
from users_git import git

from etude.errors import ConfigError
from etude.harness.fleet.repository import Repository
from etude.harness.shadow import Shadow
from etude.host import git as host_git
from etude.host.git import GitContext, run_git_now
from etude.host.repository import PrivateGitDir, find


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long git is waited for before anybody looks for pipes."""
    monkeypatch.setattr(host_git, "_PATIENCE_S", 0.3)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a.txt").write_text("a\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


@pytest.mark.parametrize("name", one_of_each(2, ["sub/.gitignore", ".gitignore"]))
def test_undo_names_the_pipe_it_would_wait_for(name: str, repo: Path) -> None:
    shadow = Shadow(repo, repo.parent / "home", "s")

    async def scenario() -> None:
        first = await shadow.take("first")
        os.mkfifo(repo / name)
        with pytest.raises(ConfigError, match=rf"{name} is no regular file, and git would read it: remove it"):
            await shadow.take("second")
        (repo / name).unlink()
        (repo / "sub" / "a.txt").write_text("b\n")
        assert (await shadow.restore(first)).written == ("sub/a.txt",)

    asyncio.run(scenario())


@pytest.mark.parametrize("name", one_of_each(2, ["sub/.gitattributes", ".gitignore"]))
def test_agents_side_by_side_do_so_too(name: str, repo: Path) -> None:
    (repo / "sub" / "a.txt").write_text("b\n")

    async def scenario() -> None:
        repository = await Repository.find(repo)
        os.mkfifo(repo / name)
        with pytest.raises(ConfigError, match="is no regular file"):
            await repository.working_tree("now")

    asyncio.run(scenario())


def test_an_index_that_is_a_pipe_is_none(repo: Path) -> None:
    shadow = Shadow(repo, repo.parent / "home", "s")
    (repo / ".git" / "index").unlink()
    os.mkfifo(repo / ".git" / "index")

    async def scenario() -> None:
        await shadow.take("first")
        with pytest.raises(ConfigError, match="index: is no regular file; is the repository whole"):
            await (await Repository.find(repo)).working_tree("now")

    asyncio.run(scenario())


def test_a_branch_that_is_a_pipe_is_named(repo: Path) -> None:
    found = find(repo)
    assert found is not None
    aside = PrivateGitDir(found)
    (repo / ".git" / "refs" / "heads" / "main").unlink()
    os.mkfifo(repo / ".git" / "refs" / "heads" / "main")
    with pytest.raises(ConfigError, match="refs/heads/main is no regular file"):
        run_git_now("rev-parse", "HEAD", at=GitContext(aside.git_dir, repo))
