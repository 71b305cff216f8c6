"""The product's workspace, opened by a user who is not root."""

from __future__ import annotations

import os

import pytest
from nobody import as_nobody

SCENARIO = """
import asyncio, os, sys
from pathlib import Path
from etude.environments.local import open_workspace

place = Path(sys.argv[1])
project = place / "project"
project.mkdir()
os.environ["XDG_CACHE_HOME"] = str(place / "cache")

async def main():
    workspace = await open_workspace(project)
    try:
        done = await workspace.exec("echo hello > here; cat here; mkdir .vscode 2>/dev/null || echo refused")
        print(done.output.decode().splitlines()[:2])
    finally:
        await workspace.destroy()

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs without root")
def test_a_workspace_is_opened_where_roots_home_is_shut() -> None:
    """On most machines /root may not even be looked into."""
    assert as_nobody(SCENARIO) == "['hello', 'refused']"
