"""Whoever is cancelled while git runs goes on at once, and leaves no process."""

import asyncio

import pytest
from users_git import git

from etude.host import git as host_git
from etude.host.git import GitContext, run_git


@pytest.mark.parametrize("patience_s", [0.0, 3.0])
def test_at_any_moment(tmp_path, monkeypatch, patience_s):
    """Before it has started, and while it prints more than a pipe holds; whether it is slow or not."""
    monkeypatch.setattr(host_git, "_PATIENCE_S", patience_s)
    git(tmp_path, "init", "-q")
    (tmp_path / "large").write_bytes(bytes(50_000_000))
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")

    async def scenario():
        for moment in range(40):
            running = asyncio.ensure_future(run_git("cat-file", "-p", "HEAD:large", at=GitContext(tmp_path / ".git")))
            for _ in range(moment):
                await asyncio.sleep(0 if moment < 10 else 0.002)
            running.cancel()
            assert (await asyncio.wait({running}, timeout=30))[0], moment
            assert running.cancelled() or running.result().code == 0

    asyncio.run(scenario())
