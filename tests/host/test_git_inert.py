"""What the product does with git on the host, in repositories that would run a program: none of them does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from planted_git import TRAPS, Planted
from proofs import one_of_each

from etude.errors import EtudeError
from etude.harness.fleet import FleetConfig, Worktrees, apply_result, trial_merges
from etude.harness.shadow import Shadow
from etude.product.terminal.typing import list_files
from etude.tasks.mined.history import History


async def side_by_side(planted: Planted) -> None:
    """--best-of and --fleet, with agents that change a file each and commit it by the git of their worktree."""
    config = FleetConfig(directory=planted.root.parent / "trees")
    async with Worktrees.opened(planted.root, config) as trees:
        one, two = await trees.add("one"), await trees.add("two")
        for tree, name in ((one, "a.py"), (two, "b.py")):
            (tree.path / name).write_text(f"{tree.name}\n")
        results = [await trees.result(tree) for tree in (one, two)]
        assert [result.files for result in results] == [1, 1]
        assert await trial_merges(trees.repository, results) == []
        assert await apply_result(trees.repository, results[0]) == ["a.py"]
        assert (planted.root / "a.py").read_text() == "one\n"


async def undo(planted: Planted) -> None:
    shadow = Shadow(planted.root, planted.root.parent / "shadow", "s")
    first = await shadow.take("first")
    (planted.root / "b.py").write_text("by the agent\n")
    second = await shadow.take("second")
    assert "by the agent" in await shadow.diff(first, second)
    assert (await shadow.restore(first)).written == ("b.py",)
    await shadow.forget()


async def completion(planted: Planted) -> None:
    assert "b.py" in await asyncio.to_thread(list_files, planted.root)
    assert "c.py" in await asyncio.to_thread(list_files, planted.root / "sub")


async def mining(planted: Planted) -> None:
    history = History(planted.root)
    newest, *_ = history.commits("HEAD", 10)
    assert history.changes(newest) and history.tree(history.head("main"), 1 << 20)
    assert history.file(newest.id, "b.py") is not None


OPERATIONS: tuple[Callable, ...] = (side_by_side, undo, completion, mining)


def springs(name: str) -> tuple[str, ...] | None:
    """What git is asked to do when it falls for the trap."""
    return TRAPS[name].springs


@pytest.mark.parametrize("name", one_of_each(0.7, TRAPS, springs))
def test_nothing_planted_runs(name: str, outer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(outer, TRAPS[name])
    monkeypatch.setenv("HOME", str(outer / "home"))
    for variable, value in planted.env.items():
        monkeypatch.setenv(variable, value)
    sprung = []
    for operation in OPERATIONS:
        try:
            asyncio.run(operation(planted))
        except EtudeError:
            assert name == "lazy-fetch"
        if planted.sprung:
            sprung.append(operation.__name__)
            planted.disarm()
    assert sprung == []


@pytest.mark.parametrize("name", one_of_each(0.5, filter(springs, TRAPS), springs))
def test_the_traps_are_live(name: str, outer: Path) -> None:
    planted = Planted(outer, TRAPS[name])
    planted.as_a_user()
    assert planted.sprung, "plain git does not fall for it, so that the test above says nothing"
