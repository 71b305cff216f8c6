"""A workspace over a directory for as long as a scenario takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from etude.environments.local import WorkspaceConfig, open_workspace
from etude.environments.local.workspace import ConfinedWorkspace


def within(
    directory: Path,
    scenario: Callable[[ConfinedWorkspace], Coroutine[Any, Any, None]],
    whole_config: WorkspaceConfig | None = None,
    **config: Any,
) -> None:
    async def whole() -> None:
        workspace = await open_workspace(directory, whole_config or WorkspaceConfig(**config))
        assert isinstance(workspace, ConfinedWorkspace)
        try:
            async with asyncio.timeout(120):
                await scenario(workspace)
        finally:
            await workspace.destroy()

    asyncio.run(whole())
