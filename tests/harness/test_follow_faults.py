"""A followed search loses nothing: it is stopped on the way, others forget what it knew, a repository begins within."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from users_git import git

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.errors import SandboxError
from etude.harness.tools import ToolConfig
from etude.harness.tools.agent.indexed import Indexed, keep_on_disk
from etude.search import Index
from etude.search.workspace import build, open_store

Scenario = Callable[[Sandbox, Indexed], Coroutine[Any, Any, None]]
BODY = "def {}(x):\n    return x\n"


@pytest.fixture
def root(outer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("etude.search.workspace.default_path", lambda: outer / "cache" / "index.sqlite")
    monkeypatch.setattr("etude.search.index._SETTLED_S", float("-inf"))
    root = outer / "w"
    for name in ("d0/alpha.py", "d0/beta.py", "d1/gamma.py", "d1/hidden.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(BODY.format(Path(name).stem))
    git(root, "init", "-q")
    git(root, "add", "-A")
    return root


def played(root: Path, scenario: Scenario, masked: tuple[str, ...] = ()) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120):
            sandbox = await open_workspace(root, WorkspaceConfig(masked=masked))
            try:
                await scenario(sandbox, keep_on_disk(sandbox, root))
            finally:
                await sandbox.destroy()

    asyncio.run(whole())


async def found(sandbox: Sandbox, indexed: Indexed, question: str = "def return") -> set[str]:
    answered = await indexed.search(sandbox, ToolConfig(), question, 100, "")
    return {hit.path for hit in answered.hits}


async def agrees(sandbox: Sandbox, indexed: Indexed, question: str = "def return") -> set[str]:
    """What is found, as one finds it who looks at all files."""
    here = await indexed.search(sandbox, ToolConfig(), question, 100, "")
    assert here == await Indexed().search(sandbox, ToolConfig(), question, 100, "")
    return {hit.path for hit in here.hits}


@pytest.mark.parametrize("way", ["given up", "failed"])
def test_a_question_that_is_stopped_loses_no_change(root: Path, way: str) -> None:
    async def scenario(sandbox: Sandbox, indexed: Indexed) -> None:
        await agrees(sandbox, indexed)
        (root / "d0/new.py").write_text(BODY.format("delta"))
        (root / "d0/alpha.py").write_text(BODY.format("epsilon"))
        run, asked = sandbox.exec, asyncio.Event()

        async def stopped(command: str, **options: Any) -> Any:
            if "d0/new.py" in command and "ls-files" in command:
                asked.set()
                if way == "failed":
                    raise SandboxError("busy")
                await asyncio.Event().wait()
            return await run(command, **options)

        sandbox.exec = stopped  # ty: ignore[invalid-assignment]
        question = asyncio.create_task(found(sandbox, indexed))
        await asked.wait()
        question.cancel()
        with pytest.raises((asyncio.CancelledError, SandboxError)):
            await question
        sandbox.exec = run  # ty: ignore[invalid-assignment]
        assert "d0/new.py" in await agrees(sandbox, indexed)
        assert "d0/alpha.py" in await agrees(sandbox, indexed, "epsilon")

    played(root, scenario)


@pytest.mark.parametrize("moment", ["stale", "update", "search"])
def test_what_others_forget_meanwhile_is_taken_in_again(
    root: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the user's own index has a file that is hidden from the agent."""
    build(root, open_store())
    whole = {"d0/alpha.py", "d0/beta.py", "d1/gamma.py"}
    do, calls = getattr(Index, moment), 0

    def forgotten(self: Index, *given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            other = open_store()
            other.collect(0)
            build(root, other)
        return do(self, *given, **options)

    async def scenario(sandbox: Sandbox, indexed: Indexed) -> None:
        assert await found(sandbox, indexed) == whole
        monkeypatch.setattr(Index, moment, forgotten)
        for number in range(4):
            (root / "d0/beta.py").write_text(BODY.format(f"beta{number}"))
            assert await found(sandbox, indexed) == whole, number
        assert calls >= 2

    played(root, scenario, ("d1/hidden.py",))


def test_a_file_that_once_could_not_be_read_is_read_again(root: Path) -> None:
    async def scenario(sandbox: Sandbox, indexed: Indexed) -> None:
        read, failed = sandbox.read_file, []

        async def failing(path: str, *given: Any) -> bytes:
            if path.endswith("beta.py") and not failed:
                failed.append(path)
                raise OSError(24, "too many open files")
            return await read(path, *given)

        sandbox.read_file = failing  # ty: ignore[invalid-assignment]
        assert "d0/beta.py" not in await found(sandbox, indexed)
        assert "d0/beta.py" in await found(sandbox, indexed)

    played(root, scenario)


def test_what_an_ignored_directory_does_not_ignore_is_found(root: Path) -> None:
    (root / ".gitignore").write_text("logs/*\n!logs/keep.py\n")
    (root / "logs").mkdir()
    (root / "logs/other.py").write_text(BODY.format("other"))

    async def scenario(sandbox: Sandbox, indexed: Indexed) -> None:
        assert not any(path.startswith("logs") for path in await agrees(sandbox, indexed))
        (root / "logs/keep.py").write_text(BODY.format("keep"))
        assert "logs/keep.py" in await agrees(sandbox, indexed)

    played(root, scenario)


def test_what_makes_a_directory_a_repository_is_noticed(root: Path) -> None:
    sub = root / "sub"
    (sub / ".git").mkdir(parents=True)
    (sub / "inner.py").write_text(BODY.format("inner"))

    async def scenario(sandbox: Sandbox, indexed: Indexed) -> None:
        assert "sub/inner.py" in await agrees(sandbox, indexed)
        git(sub, "init", "-q")
        assert "sub/inner.py" not in await agrees(sandbox, indexed)
        (sub / ".git/HEAD").unlink()
        assert "sub/inner.py" in await agrees(sandbox, indexed)

    played(root, scenario)


def test_where_git_names_no_file_any_more_others_are_found(outer: Path, root: Path) -> None:
    git(root, "rm", "-rq", "--cached", ".")
    (root / "built").mkdir()
    (root / "built/made.py").write_text(BODY.format("made"))
    (root / ".git/info/exclude").write_text("built/\n")

    async def scenario(sandbox: Sandbox, indexed: Indexed) -> None:
        assert "built/made.py" not in await agrees(sandbox, indexed)
        for path in ("d0/alpha.py", "d0/beta.py", "d1/gamma.py", "d1/hidden.py"):
            (root / path).unlink()
        assert await agrees(sandbox, indexed) == {"built/made.py"}

    played(root, scenario)
