"""codebase_search in a session that follows its files: after each change it answers as one that looks at all files."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from grep_cases import Tree
from users_git import git

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.tools import ToolConfig
from etude.harness.tools.agent.indexed import Answered, Indexed, keep_on_disk
from etude.search import Index
from etude.search.workspace import build, open_store

QUESTIONS = ("return a value", "d1 f2", "def", "x", "import of a name", "alpha beta", "file")
TRIES = 24


async def asked(indexed: Indexed, sandbox: Sandbox, question: str, under: str = "") -> Answered:
    return await indexed.search(sandbox, ToolConfig(), question, 10, under)


@pytest.fixture
def outer(outer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("etude.search.workspace.default_path", lambda: outer / "cache" / "index.sqlite")
    return outer


async def compared(tree: Tree, masked: tuple[str, ...], tries: int) -> tuple[int, int]:
    """How many questions were answered, and how often all files were looked at for them."""
    answered = 0
    async with asyncio.timeout(240):
        sandbox = await open_workspace(tree.root, WorkspaceConfig(masked=masked))
        try:
            indexed = keep_on_disk(sandbox, tree.root)
            for number in range(tries):
                if number % 3:
                    tree.change()
                question = tree.chance.choice(QUESTIONS)
                found = await asked(indexed, sandbox, question)
                assert found == await asked(Indexed(), sandbox, question), (question, tree.done[-8:])
                answered += bool(found.hits)
            assert indexed._kept is not None, "it is followed"
            return answered, indexed._kept.sweeps
        finally:
            await sandbox.destroy()


@pytest.mark.parametrize("settled", [True, False], ids=["settled", "just changed"])
@pytest.mark.parametrize("repository", [True, False], ids=["git", "plain"])
def test_a_followed_search_is_one_of_the_files_as_they_are(
    outer: Path, repository: bool, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if settled:
        monkeypatch.setattr("etude.search.index._SETTLED_S", float("-inf"))
    tree = Tree(outer / "w", random.Random(f"{repository} {settled}"), repository)
    build(tree.root, open_store())
    answered, sweeps = asyncio.run(compared(tree, ("d0/f0.py",), TRIES))
    assert answered > TRIES // 3 and sweeps < TRIES


@pytest.mark.proof(15)
@pytest.mark.parametrize("seed", range(20))
def test_many_followed_searches(outer: Path, seed: int) -> None:
    tree = Tree(outer / "w", random.Random(f"followed {seed}"), seed % 4 != 0)
    asyncio.run(compared(tree, (), 60))


def test_only_what_has_changed_is_looked_at(outer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that came, one that was written and one that went; another session forgets meanwhile."""
    monkeypatch.setattr("etude.search.index._SETTLED_S", float("-inf"))
    root = outer / "w"
    for number in range(30):
        (root / f"pkg{number % 3}").mkdir(parents=True, exist_ok=True)
        (root / f"pkg{number % 3}" / f"m{number}.py").write_text(f"def special{number}(x):\n    return helper(x)\n")
    git(root, "init", "-q")
    given: list[int] = []
    stale = Index.stale

    def counted(self: Index, stamps: dict[str, str]) -> list[str]:
        given.append(len(stamps))
        return stale(self, stamps)

    monkeypatch.setattr(Index, "stale", counted)

    async def scenario() -> None:
        async with asyncio.timeout(120):
            await followed()

    async def followed() -> None:
        sandbox = await open_workspace(root, WorkspaceConfig())
        try:
            indexed = keep_on_disk(sandbox, root)

            async def has(question: str, path: str) -> bool:
                found = await indexed.search(sandbox, ToolConfig(), question, 100, "")
                return path in {hit.path for hit in found.hits}

            assert await has("special7", "pkg1/m7.py")
            (root / "pkg1" / "m7.py").write_text("def other(x):\n    return 1\n")
            (root / "pkg1" / "came.py").write_text("def arrived(x):\n    return 1\n")
            (root / "pkg2" / "m8.py").unlink()
            assert await has("other", "pkg1/m7.py") and await has("arrived", "pkg1/came.py")
            assert not await has("special8", "pkg2/m8.py") and await has("special9", "pkg0/m9.py")
            assert given == [30, 2, 2, 2, 2] and indexed._kept is not None and indexed._kept.sweeps == 1
            open_store().collect(0)
            assert await has("arrived", "pkg1/came.py") and given[-1] == 30
            (root / "pkg1" / "came.py").unlink()
            assert not await has("arrived", "pkg1/came.py") and indexed._kept.sweeps == 1
        finally:
            await sandbox.destroy()

    asyncio.run(scenario())
