"""A workspace opened as it is: what the seam promises still holds, and file tools write nowhere else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import structlog

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.errors import ConfigError, DeadlineExceeded


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / "a").write_text("hi\n")
    (root / "way-out").symlink_to("/var")
    return root


def within(directory: Path, scenario: Callable[[Any], Coroutine[Any, Any, None]], **config: Any) -> None:
    async def whole() -> None:
        workspace = await open_workspace(directory, WorkspaceConfig(sandbox="off", network="full", **config))
        try:
            async with asyncio.timeout(60):
                await scenario(workspace)
        finally:
            await workspace.destroy()

    asyncio.run(whole())


def test_it_warns_when_it_is_opened(project: Path) -> None:
    async def nothing(_: Sandbox) -> None: ...

    with structlog.testing.capture_logs() as logs:
        within(project, nothing)
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("not_sandboxed", "warning")]


def test_commands_run_where_the_user_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hidden")

    async def scenario(workspace: Sandbox) -> None:
        done = await workspace.exec("pwd; cat a; cat; echo $GIVEN$MORE$SECRET_TOKEN >&2; exit 3", env={"MORE": "2"})
        assert (done.exit_code, done.output.decode()) == (3, f"{project}\nhi\n12\n")
        assert (await workspace.exec("pwd", cwd="/workspace/.git")).output.decode() == f"{project}/.git\n"
        assert (await workspace.exec("kill -9 $$")).exit_code == 137

    within(project, scenario, env={"GIVEN": "1"})


def test_a_command_given_up_while_it_starts_does_not_go_on(project: Path) -> None:
    async def scenario(workspace: Sandbox) -> None:
        for moment in range(12):
            running = asyncio.ensure_future(workspace.start(f"sleep 1; touch late-{moment}"))
            for _ in range(moment):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait({running})
            if not running.cancelled():
                await running.result().kill()
        await workspace.exec("sleep 2")

    within(project, scenario)
    assert not list(project.glob("late-*"))


def test_a_command_that_overstays_is_killed_with_its_group(project: Path) -> None:
    async def scenario(workspace: Sandbox) -> None:
        done = await workspace.exec("echo before; (sleep 60; touch late) & sleep 60", timeout_s=2.0)
        assert (done.exit_code, done.timed_out, done.output) == (124, True, b"before\n")
        done = await workspace.exec("sleep 60 & echo here")  # does not wait for what holds the pipe
        assert (done.exit_code, done.output) == (0, b"here\n")

    within(project, scenario)
    assert not (project / "late").exists()


def test_long_output_is_cut_and_kept_whole(project: Path) -> None:
    async def scenario(workspace: Sandbox) -> None:
        done = await workspace.exec("seq 100000", max_output_bytes=1000)
        assert done.log_path is not None and b" bytes cut, whole output in " in done.output
        assert (
            done.output.startswith(b"1\n2\n") and done.output.endswith(b"99999\n100000\n") and len(done.output) < 1200
        )
        whole = await workspace.read_file(done.log_path)
        assert whole == b"".join(b"%d\n" % number for number in range(1, 100_001))

    within(project, scenario)


def test_background_commands(project: Path) -> None:
    async def scenario(workspace: Sandbox) -> None:
        process = await workspace.start("echo one; read x < fifo; echo two", timeout_s=30)
        assert [info.running for info in await workspace.processes()] == [True]
        pieces = (await workspace.connect(process.id)).output()
        assert await anext(pieces) == b"one\n"
        with pytest.raises(DeadlineExceeded, match="to end"):
            await process.wait(0.05)
        await process.kill()
        assert (await process.wait(120)).exit_code == 137
        assert (await (await workspace.start("sleep 60", timeout_s=0.2)).wait(120)).exit_code == 124
        with pytest.raises(ProcessLookupError):
            await workspace.connect(99)

    os.mkfifo(project / "fifo")
    within(project, scenario)


def test_files_are_the_users_and_only_the_workspaces_are_written(project: Path) -> None:
    async def scenario(workspace: Sandbox) -> None:
        await workspace.write_file("/workspace/new/b", b"1")
        await workspace.write_file(f"{project}/a", b"2")
        assert await workspace.read_file("/workspace/a") == b"2"
        assert [entry.name for entry in await workspace.list_dir("/workspace")] == [".git", "a", "new", "way-out"]
        for path in (
            "/var/x",
            "/workspace/way-out/x",
            "/workspace/../../../../../../../var/x",
            "/workspace/.git/hooks/pre-commit",
        ):
            with pytest.raises(PermissionError):
                await workspace.write_file(path, b"x")
            with pytest.raises((PermissionError, FileNotFoundError)):
                await workspace.remove(path)
        await workspace.remove("/workspace/way-out")
        await workspace.remove("/workspace/new", recursive=True)
        for path, error in (
            ("/workspace", IsADirectoryError),
            ("/workspace/none", FileNotFoundError),
            ("/dev/null", PermissionError),
        ):
            with pytest.raises(error):
                await workspace.read_file(path)
        with pytest.raises(OSError, match="too large"):
            await workspace.read_file("/workspace/a", max_bytes=0)

    within(project, scenario)
    assert Path("/var").is_dir() and sorted(path.name for path in project.iterdir()) == [".git", "a"]


def test_what_it_cannot_do_is_said(project: Path) -> None:
    async def scenario(workspace: Sandbox) -> None:
        for call in (workspace.snapshot(), workspace.fork(1), workspace.metrics(), workspace.download("/workspace")):
            with pytest.raises(ConfigError, match="opened as it is"):
                await call

    within(project, scenario)
