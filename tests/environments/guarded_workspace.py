"""A workspace over a directory for as long as a scenario takes, and what scenarios of the guard have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from users_git import git

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.environments.local.workspace import ConfinedWorkspace


def within(
    directory: Path,
    scenario: Callable[[Any], Coroutine[Any, Any, None]],
    whole_config: WorkspaceConfig | None = None,
    **config: Any,
) -> None:
    async def whole() -> None:
        workspace = await open_workspace(directory, whole_config or WorkspaceConfig(**config))
        assert isinstance(workspace, ConfinedWorkspace) or config.get("sandbox") == "off"
        try:
            async with asyncio.timeout(120):
                await scenario(workspace)
        finally:
            await workspace.destroy()

    asyncio.run(whole())


def repository(outer: Path) -> Path:
    root = outer / "project"
    root.mkdir()
    (root / "a.txt").write_text("a\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


async def said(workspace: Sandbox, command: str, code: int = 0) -> str:
    done = await workspace.exec(command)
    assert done.exit_code == code, done.output.decode()
    return done.output.decode()


def python(text: str) -> str:
    return f"python3 - <<'END'\n{text}\nEND"


def example(pattern: str) -> str:
    return pattern.replace("[0-9]", "1").replace("*", "x")
