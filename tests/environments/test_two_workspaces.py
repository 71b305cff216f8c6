"""Two sessions over one directory: what one changes while the other looks is no way round the guard."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from guarded_workspace import within
from users_git import git

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.environments.local.workspace import ConfinedWorkspace
from etude.errors import ConfigError

_EVIL = "printf '[core]\\n\\trepositoryformatversion = 0\\n\\tworktree = .\\n\\tfsmonitor = %s\\n' {} > {}"
_RACER = """
import os, sys
name, other = sys.argv[1:]
for number in range(1000):
    here = f"r/{number}"
    os.makedirs(here, exist_ok=True)
    open(f"r/{number}.{name}", "w").close()
    while not os.path.exists(f"r/{number}.{other}"):
        pass
    try:
        if name == "head":
            open(f"{here}/HEAD", "w").write("ref: refs/heads/main\\n")
        else:
            os.mkdir(f"{here}/objects"), os.mkdir(f"{here}/refs")
    except PermissionError:
        pass
"""


async def said(workspace: Sandbox, command: str) -> str:
    done = await workspace.exec(command, timeout_s=100)
    return done.output.decode()


def both(directory: Path, scenario) -> None:
    async def whole() -> None:
        one, other = await open_workspace(directory), await open_workspace(directory)
        try:
            async with asyncio.timeout(110):
                await scenario(one, other)
        finally:
            await asyncio.gather(one.destroy(), other.destroy())

    asyncio.run(whole())


def test_a_repository_that_another_session_moved_there_is_seen_at_once(outer: Path) -> None:
    project, evil, canary = outer / "project", outer / "evil", outer / "canary"
    (project / "x").mkdir(parents=True)
    git(project, "init", "-q", "--bare", "store.git")
    evil.write_text(f"#!/bin/sh\ntouch {canary}\n")
    evil.chmod(0o755)
    plant = _EVIL.format(evil, "x/config")

    async def scenario(one: Sandbox, other: Sandbox) -> None:
        assert "only the user" not in await said(one, "touch x/a")
        await said(other, "mv x y; mv store.git x")
        assert "only the user may write it: x/config." in await said(one, plant)

    both(project, scenario)
    assert (project / "x" / "HEAD").exists(), "the other session moved nothing"
    subprocess.run(["git", "status"], cwd=project / "x", capture_output=True, check=False)
    assert not canary.exists()
    subprocess.run(plant, shell=True, cwd=project, check=True)
    subprocess.run(["git", "status"], cwd=project / "x", capture_output=True, check=False)
    assert canary.exists(), "git would not have obeyed it"


def test_two_sessions_do_not_each_make_the_half_of_a_repository(outer: Path) -> None:
    project = outer / "project"
    project.mkdir()

    async def scenario(one: Sandbox, other: Sandbox) -> None:
        await one.write_file("/workspace/racer.py", _RACER.encode())
        heads, rests = await asyncio.gather(
            said(one, "python3 racer.py head rest"), said(other, "python3 racer.py rest head")
        )
        assert "only the user" in heads + rests

    both(project, scenario)
    heads, refs = ({path.parent for path in (project / "r").glob(f"*/{part}")} for part in ("HEAD", "refs"))
    assert heads and refs, "one of them was always first: they did not meet"
    assert not [each for each in heads & refs if (each / "objects").exists()]


def test_no_command_holds_the_lock_that_the_guards_take_turns_by(outer: Path) -> None:
    project = outer / "project"
    project.mkdir()

    async def scenario(one: Sandbox, other: Sandbox) -> None:
        found = await said(one, "ls -l /proc/self/fd /proc/1/fd; find ~/.local /tmp /run -name guard.lock")
        assert "guard.lock" not in found
        await asyncio.gather(*(said(each, "mkdir -p n; flock n sleep 0; mkdir n/refs") for each in (one, other)))

    both(project, scenario)


@pytest.mark.parametrize("way", ["all shown", "state elsewhere", "state writable", "state in the workspace"])
def test_nothing_that_is_shown_or_writable_holds_that_lock(
    outer: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    project, state = outer / "project", outer / "state"
    project.mkdir(), state.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    monkeypatch.setenv("HOME", str(outer))
    monkeypatch.setenv("XDG_STATE_HOME", str(state) if "state" in way else "")
    config = WorkspaceConfig(shown=("~",), writable=(state,) if way == "state writable" else ())

    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert list(outer.rglob("guard.lock"))
        assert "guard.lock" not in await said(workspace, f"find {outer} -name guard.lock")
        assert "refs" in await said(workspace, "mkdir -p n/refs; ls n")

    if way in ("state writable", "state in the workspace"):
        monkeypatch.setenv("XDG_STATE_HOME", str((state if "writable" in way else project) / "state"))
        with pytest.raises(ConfigError, match="set XDG_STATE_HOME elsewhere"):
            within(project, scenario, config)
    else:
        within(project, scenario, config)
