"""grep and codebase_search over a user's directory whose index is on disk: the same answers as without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from users_git import git

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.config import HarnessConfig
from etude.harness.schema import ToolCall, check_call
from etude.harness.tools import AGENT_TOOLS, ToolConfig, run_calls
from etude.harness.tools.agent.indexed import _INDEXES, Indexed, keep_on_disk
from etude.search import Index, index_version
from etude.search.workspace import build, default_path, open_store

BY_NAME = {tool.name: tool for tool in AGENT_TOOLS}
GREPS: tuple[dict[str, str], ...] = (
    {"pattern": "special7"},
    {"pattern": r"def special\d\("},
    {"pattern": "SPECIAL7", "ignore_case": "true", "context": "1"},
    {"pattern": "special7|fresh", "glob": "*.py"},
    {"pattern": "special7", "path": "pkg1"},
    {"pattern": "treasure"},
    {"pattern": "nowhere_at_all"},
    {"pattern": "special7("},
    {"pattern": "special7", "path": "none"},
    {"pattern": "return"},
    {"pattern": "x"},
)
Scenario = Callable[[Sandbox], Coroutine[Any, Any, None]]


@pytest.fixture
def root(outer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(outer / "cache"))
    monkeypatch.setattr("etude.search.index._SETTLED_S", float("-inf"))
    root = outer / "w"
    for number in range(40):
        path = root / f"pkg{number % 4}" / f"m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def special{number}(x):\n    return helper(x)\n")
    (root / ".env").write_text("treasure=1\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def played(root: Path, scenario: Scenario) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120):
            sandbox = await open_workspace(root, WorkspaceConfig(masked=(".env",)))
            try:
                await scenario(sandbox)
            finally:
                await sandbox.destroy()

    asyncio.run(whole())


async def answer(sandbox: Sandbox, name: str, values: dict[str, str]) -> str:
    call = check_call(BY_NAME, name, list(values.items()), "")
    assert isinstance(call, ToolCall), call
    [result] = await run_calls([call], BY_NAME, sandbox, ToolConfig(), lambda index, result: None)
    return result.text


def test_a_warm_index_changes_no_grep(root: Path) -> None:
    build(root, open_store())
    (root / "pkg0" / "m0.py").write_text("def fresh():\n    pass\n")
    (root / "pkg0" / "new.py").write_text("special7 = 1\n")
    (root / "pkg3" / "m7.py").write_text("# special7 stood here\n")

    async def scenario(sandbox: Sandbox) -> None:
        without = [await answer(sandbox, "grep", values) for values in GREPS]
        indexed = keep_on_disk(sandbox, root)
        assert [await answer(sandbox, "grep", values) for values in GREPS] == without
        assert without[0] == "pkg0/new.py:1:special7 = 1\npkg3/m7.py:1:# special7 stood here"
        assert (
            without[5] == "no matches" and without[7].startswith("error: ") and without[8].startswith("error: no such")
        )
        assert (indexed.counts["narrowed"], indexed.counts["whole"]) == (6, 2)

    played(root, scenario)


def test_a_cold_index_changes_no_grep(root: Path) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        without = [await answer(sandbox, "grep", values) for values in GREPS]
        indexed = keep_on_disk(sandbox, root)
        assert [await answer(sandbox, "grep", values) for values in GREPS] == without
        assert indexed.counts["narrowed"] == 0

    played(root, scenario)


def test_files_are_looked_at_once(root: Path) -> None:
    """Then only what has changed is; where git may name other files, all are again, and no answer is an old one."""
    build(root, open_store())

    async def scenario(sandbox: Sandbox) -> None:
        indexed = keep_on_disk(sandbox, root)

        async def sweeps(pattern: str, answered: str) -> int:
            assert await answer(sandbox, "grep", {"pattern": pattern}) == answered
            assert indexed._kept is not None
            return indexed._kept.sweeps

        assert await sweeps("special7", "pkg3/m7.py:1:def special7(x):") == 1
        await sandbox.write_file("/workspace/pkg1/m1.py", b"treasure8 = 1\n")
        (root / "pkg2" / "added.py").write_text("treasure8 = 2\n")
        (root / "pkg3" / "m7.py").unlink()
        assert await sweeps("treasure8", "pkg1/m1.py:1:treasure8 = 1\npkg2/added.py:1:treasure8 = 2") == 1
        assert await sweeps("special7", "no matches") == 1
        (root / ".git" / "info" / "exclude").write_text("pkg2/added.py\n")
        assert await sweeps("treasure8", "pkg1/m1.py:1:treasure8 = 1") == 2
        await sandbox.exec("git add -f pkg2/added.py", max_output_bytes=1000)
        assert await sweeps("treasure8", "pkg1/m1.py:1:treasure8 = 1\npkg2/added.py:1:treasure8 = 2") == 3
        await sandbox.exec("mkdir fresh; echo treasure8 > fresh/x", max_output_bytes=1000)
        assert (
            await sweeps("treasure8", "fresh/x:1:treasure8\npkg1/m1.py:1:treasure8 = 1\npkg2/added.py:1:treasure8 = 2")
            == 4
        )
        assert indexed.counts["narrowed"] == 6 + 2 and indexed.counts["whole"] == 0, "two were outdated"

    played(root, scenario)


def test_a_search_is_the_same_on_disk_and_in_memory(root: Path) -> None:
    questions = [{"query": query} for query in ("special 7", "helper", "fresh words", "treasure")]
    built = build(root, open_store())
    (root / "pkg0" / "m0.py").write_text("def fresh():\n    pass\n")

    async def scenario(sandbox: Sandbox) -> None:
        without = [await answer(sandbox, "codebase_search", values) for values in questions]
        keep_on_disk(sandbox, root)
        assert [await answer(sandbox, "codebase_search", values) for values in questions] == without
        assert without[0].startswith("pkg3/m7.py:1-2\ndef special7(x):") and without[2].startswith("pkg0/m0.py:1-2")
        assert without[3].startswith("nothing found"), "the sandbox hides what its index on the host has"
        assert open_store().status().contents == built.taken + 1, "the others were known"

    played(root, scenario)


def test_where_no_index_can_be_kept_it_is_in_memory(root: Path, outer: Path) -> None:
    said: list[str] = []
    (outer / "cache" / "etude").mkdir(parents=True)
    (outer / "cache" / "etude" / "search").write_text("no directory")

    async def scenario(sandbox: Sandbox) -> None:
        indexed = keep_on_disk(sandbox, root, said.append)
        assert (await answer(sandbox, "codebase_search", {"query": "special 7"})).startswith("pkg3/m7.py:1-2\n")
        assert (await answer(sandbox, "grep", {"pattern": "special7"})).startswith("pkg3/m7.py:1:")
        assert len(said) == 1 and "the index is in memory" in said[0] and isinstance(indexed, Indexed)

    played(root, scenario)


def test_a_store_that_is_damaged_meanwhile_is_made_anew(root: Path) -> None:
    said: list[str] = []
    store = open_store()
    build(root, store)
    store.close()  # or all there is would lie in its log

    async def scenario(sandbox: Sandbox) -> None:
        keep_on_disk(sandbox, root, said.append)
        default_path().write_bytes(b"nonsense" * 1000)
        assert (await answer(sandbox, "codebase_search", {"query": "special 7"})).startswith("pkg3/m7.py:1-2\n")
        assert (await answer(sandbox, "grep", {"pattern": "special7"})).startswith("pkg3/m7.py:1:")
        assert len(said) == 1 and "made anew" in said[0]

    played(root, scenario)


def test_what_ranks_is_part_of_what_a_harness_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two results of another ranking are not of the same harness, and a session's log says by which it was played."""
    agent, small = HarnessConfig(toolset="agent"), HarnessConfig()
    assert small.identity()["versions"] == {} and agent.identity()["versions"] == {"search": index_version()}
    before = agent.identity()
    monkeypatch.setattr("etude.search.index.ANSWER_VERSION", 999)
    shown = agent.identity()
    monkeypatch.setattr("etude.search.index.RANKING_VERSION", 999)
    assert agent.identity() != shown != before and small.identity() == HarnessConfig().identity()


async def agrees(sandbox: Sandbox, indexed: Indexed, pattern: str) -> str:
    """What a grep answers, with the index as without."""
    _INDEXES[sandbox] = indexed
    found = await answer(sandbox, "grep", {"pattern": pattern})
    _INDEXES[sandbox] = Indexed()
    assert await answer(sandbox, "grep", {"pattern": pattern}) == found
    return found


def test_what_comes_to_a_directory_of_ignored_files_is_found(root: Path) -> None:
    """git lists it as if it were ignored itself."""
    for folder in ("logs/deep", "build"):
        (root / folder).mkdir(parents=True)
        (root / folder / "a.log").write_text("special7\n")
    (root / ".gitignore").write_text("*.log\nbuild/\n")
    build(root, open_store())

    async def scenario(sandbox: Sandbox) -> None:
        indexed = keep_on_disk(sandbox, root)
        await agrees(sandbox, indexed, "special7")
        assert indexed._kept is not None and indexed._kept._watch.covered >= {"logs", "logs/deep"}
        assert "build" not in indexed._kept._watch.covered
        (root / "logs" / "deep" / "new.py").write_text("special7 = 1\n")
        assert "logs/deep/new.py" in await agrees(sandbox, indexed, "special7")

    played(root, scenario)


@pytest.mark.parametrize("way", ["a link", "comes later"])
def test_what_decides_is_looked_at_where_it_lies(root: Path, outer: Path, way: str) -> None:
    """The excludes by a link, and configuration that names a file which is not there yet."""
    (outer / "excludes").write_text("m7.py\n" if way == "comes later" else "")
    if way == "a link":
        (root / ".git" / "info" / "exclude").unlink(missing_ok=True)
        (root / ".git" / "info" / "exclude").symlink_to(outer / "excludes")
    else:
        git(root, "config", "include.path", str(outer / "later"))
    git(root, "rm", "-q", "--cached", "pkg3/m7.py")
    build(root, open_store())

    async def scenario(sandbox: Sandbox) -> None:
        indexed = keep_on_disk(sandbox, root)
        assert "m7.py" in await agrees(sandbox, indexed, "special7")
        if way == "a link":
            (outer / "excludes").write_text("m7.py\n")
        else:
            (outer / "later").write_text(f"[core]\n\texcludesFile = {outer}/excludes\n")
        assert await agrees(sandbox, indexed, "special7") == "no matches"

    played(root, scenario)


def test_few_bytes_of_files_are_held_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        (root / f"large{number}.py").write_text("x = 1\n" * 1000)
    monkeypatch.setattr("etude.harness.tools.agent.indexed._TOGETHER_BYTES", 6_000)
    held, update = [], Index.update

    def counted(self: Index, stamps: dict[str, str], files: list[tuple[str, bytes | None]], *, whole: bool) -> None:
        held.append(sum(len(data or b"") for _, data in files))
        update(self, stamps, files, whole=whole)

    monkeypatch.setattr(Index, "update", counted)

    async def scenario(sandbox: Sandbox) -> None:
        assert "pkg3/m7.py" in await answer(sandbox, "codebase_search", {"query": "special7"})

    played(root, scenario)
    assert sum(held) > 240_000 and max(held) <= 16 * 6_000 + 6_000


def test_a_tree_too_large_to_list_is_searched_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(root, open_store())
    monkeypatch.setattr("etude.harness.tools.agent.stamps.LISTING_BYTES", 100)

    async def scenario(sandbox: Sandbox) -> None:
        indexed = keep_on_disk(sandbox, root)
        for _ in range(2):
            assert await agrees(sandbox, indexed, "special7") == "pkg3/m7.py:1:def special7(x):"
        assert indexed.counts == {"whole": 2}

    played(root, scenario)


def test_a_directory_above_that_is_renamed_hides_no_change(root: Path, outer: Path) -> None:
    (outer / "above").mkdir()
    inner = root.rename(outer / "above" / "w")
    build(inner, open_store())

    async def scenario(sandbox: Sandbox) -> None:
        indexed = keep_on_disk(sandbox, inner)
        await agrees(sandbox, indexed, "special7")
        there = (outer / "above").rename(outer / "elsewhere") / "w"
        (there / "new.py").write_text("special7 = 1\n")
        assert "new.py" in await agrees(sandbox, indexed, "special7")

    played(inner, scenario)
