"""A grep that asks the index answers as the same grep does without: thousands of patterns, in trees that change.

The rule's slice is a few hundred patterns; the proof (`make prove`) is 10,000 more.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from grep_cases import Tree, grep_of, without_ripgrep

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.schema import ToolCall, check_call
from etude.harness.tools import AGENT_TOOLS, ToolConfig, run_calls
from etude.harness.tools.agent.indexed import _INDEXES, Indexed, keep_on_disk
from etude.search.workspace import build, open_store

BY_NAME = {tool.name: tool for tool in AGENT_TOOLS}
GREPS, EVERY = 250, 4
"""So many greps of one tree, and between so many of them something happens to it."""


async def answer(sandbox: Sandbox, values: Mapping[str, str]) -> str:
    call = check_call(BY_NAME, "grep", list(values.items()), "")
    assert isinstance(call, ToolCall), call
    [result] = await run_calls([call], BY_NAME, sandbox, ToolConfig(), lambda index, result: None)
    return result.text


async def compared(tree: Tree, sandbox: Sandbox, indexed: Indexed, count: int) -> int:
    """How many greps said anything; each has the answer that it has without the index."""
    said = 0
    for number in range(count):
        if number % EVERY == 0:
            tree.change()
        if number % 100 == 99:
            await indexed.search(sandbox, ToolConfig(), "return", 1, "")  # takes in what has changed
        values = grep_of(tree.chance)
        _INDEXES[sandbox] = indexed
        by_index = await answer(sandbox, values)
        _INDEXES[sandbox] = Indexed()
        assert by_index == await answer(sandbox, values), (values, tree.done[-8:])
        said += by_index != "no matches"
    return said


def played(outer: Path, seed: str, repository: bool, env: dict[str, str], count: int) -> Indexed:
    tree = Tree(outer / "w", random.Random(seed), repository)
    build(tree.root, open_store())

    async def whole() -> Indexed:
        async with asyncio.timeout(120):
            sandbox = await open_workspace(tree.root, WorkspaceConfig(masked=("d0/f0.py",), env=env))
            try:
                indexed = keep_on_disk(sandbox, tree.root)
                assert await compared(tree, sandbox, indexed, count) > count // 3
                return indexed
            finally:
                await sandbox.destroy()

    return asyncio.run(whole())


@pytest.fixture
def outer(outer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("etude.search.workspace.default_path", lambda: outer / "cache" / "index.sqlite")
    monkeypatch.setattr("etude.search.index._SETTLED_S", float("-inf"))
    return outer


@pytest.mark.parametrize("repository", [True, False], ids=["git", "plain"])
@pytest.mark.parametrize("searcher", ["grep", "rg"])
def test_an_index_changes_no_answer(outer: Path, searcher: str, repository: bool) -> None:
    if searcher == "rg" and shutil.which("rg") is None:
        pytest.skip("ripgrep is not installed")
    env = {"PATH": without_ripgrep(outer / "bin")} if searcher == "grep" else {}
    indexed = played(outer, f"{searcher} {repository}", repository, env, 40)
    assert indexed.counts["narrowed"] > 3 and indexed.counts["whole"] > 0


@pytest.mark.proof(15)
@pytest.mark.parametrize("seed", range(40))
def test_ten_thousand_greps(outer: Path, seed: int) -> None:
    env = {"PATH": without_ripgrep(outer / "bin")}
    indexed = played(outer, f"proof {seed}", seed % 4 != 0, env, GREPS)
    assert indexed.counts["narrowed"] > 20
