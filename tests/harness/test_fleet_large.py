"""Files that are too large for agents side by side: left out, named, and never lost or kept by the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from users_git import git

from etude.errors import ConfigError
from etude.harness.fleet import FleetConfig, Worktrees, apply_result


@pytest.fixture
def project(outer: Path) -> Path:
    root = outer / "project"
    root.mkdir()
    git(root, "init", "-q")
    (root / "a.py").write_text("x = 1\ny = 2\nz = 3\n")
    (root / "b.py").write_text("b\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    (root / "b.py").write_text("b, staged\n")
    git(root, "add", "b.py")
    (root / "a.py").write_text("x = 1\ny = 2\nz = 3 # dirty\n")
    return root


def with_trees(project: Path, scenario: Callable[[Worktrees], Awaitable[None]]) -> None:
    async def whole() -> None:
        config = FleetConfig(directory=project.parent / "trees")
        async with asyncio.timeout(240), Worktrees.opened(project, config) as trees:
            await scenario(trees)

    asyncio.run(whole())


def large(path: Path) -> None:
    """More than undo and worktrees take; it is made of nothing, and takes git its time all the same."""
    with path.open("w+b") as file:
        file.truncate(60_000_000)


def test_files_that_are_too_large_are_left_out_and_named(project: Path) -> None:
    """New ones, and those that have grown; in the user's tree, and in an agent's."""
    large(project / "big.bin")
    large(project / "b.py")
    (project / "also.bin").symlink_to("big.bin")

    async def scenario(trees: Worktrees) -> None:
        assert trees.left_out == ("b.py", "big.bin")
        tree = await trees.add("one")
        assert not (tree.path / "big.bin").exists() and (tree.path / "also.bin").is_symlink()
        assert (tree.path / "b.py").read_text() == "b, staged\n", "as the index has it"
        (tree.path / "b.py").write_text("b, the agent's\n")
        (tree.path / "small.py").write_text("small\n")
        large(tree.path / "a.py")
        large(tree.path / "data.bin")
        result = await trees.result(tree)
        assert sorted(result.left_out) == ["a.py", "data.bin"] and result.files == 2
        assert git(project, "show", f"{result.commit}:a.py") == "x = 1\ny = 2\nz = 3 # dirty\n"
        with pytest.raises(ConfigError, match=r"changes b\.py, too large in your tree"):
            await apply_result(trees.repository, result)
        assert (project / "b.py").stat().st_size == 60_000_000 and not (project / "small.py").exists()
        (project / "b.py").write_text("b, staged\n")
        assert await apply_result(trees.repository, result) == ["b.py", "small.py"]

    with_trees(project, scenario)
    packed = git(project, "cat-file", "--batch-all-objects", "--batch-check=%(objectsize)").split()
    assert max(map(int, packed)) < 60_000_000, "nothing of them is kept in the repository"


def test_a_large_file_that_is_committed_is_there(project: Path) -> None:
    large(project / "big.bin")
    git(project, "add", "big.bin")
    git(project, "commit", "-qm", "large")

    async def scenario(trees: Worktrees) -> None:
        assert trees.left_out == ()
        tree = await trees.add("one")
        assert (tree.path / "big.bin").stat().st_size == 60_000_000
        assert (await trees.result(tree)).left_out == ()

    with_trees(project, scenario)
