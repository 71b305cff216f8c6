"""The user's own directory below bubblewrap: what a command can do to it, and what it cannot do to anything else."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from guarded_workspace import said, within
from pydantic import ValidationError
from users_git import git

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.errors import ConfigError, MissingDependency, SandboxError
from etude.host.repository import LinkedWorktree, linked_worktree


@pytest.fixture
def project(outer: Path) -> Path:
    root = outer / "project"
    (root / ".etude").mkdir(parents=True)
    (root / "a.txt").write_text("hi\n")
    (root / "way-out").symlink_to(outer / "outside")
    (outer / "outside").mkdir()
    (outer / "outside" / "kept").write_text("kept\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def test_the_workspace_is_the_users_directory_by_both_names(project: Path) -> None:
    async def scenario(workspace: Sandbox) -> None:
        assert await said(workspace, "pwd; cat a.txt") == "/workspace\nhi\n"
        await said(workspace, f"echo by-name > {project}/b.txt; echo here > c.txt")
        await workspace.write_file("/workspace/src/d.txt", b"written\n")
        assert await workspace.read_file(f"{project}/src/d.txt") == b"written\n"
        assert [entry.name for entry in await workspace.list_dir("/workspace/src")] == ["d.txt"]
        assert "first" in await said(workspace, "git log --oneline")
        await said(workspace, "git add -A && git -c user.name=a -c user.email=a@b commit -qm second")

    within(project, scenario)
    assert (project / "b.txt").read_text() == "by-name\n" and (project / "c.txt").read_text() == "here\n"
    assert "second" in git(project, "log", "--oneline") and git(project, "status", "--short") == ""


@pytest.mark.parametrize("history", ["own", "shared"])
@pytest.mark.parametrize("place", ["/tmp", "/var/tmp"])
def test_a_worktree_has_its_repository_wherever_that_lies(place: str, history: str) -> None:
    """The sandbox has a /tmp of its own; agents side by side read the history of a repository in the user's."""
    with tempfile.TemporaryDirectory(prefix="etude-test-", dir=place) as directory:
        main, tree = Path(directory) / "main", Path(directory) / "tree"
        main.mkdir()
        (main / "a.txt").write_text("hi\n")
        for words in ("init -q", "add -A", "commit -qm first", "worktree add -q --detach ../tree"):
            git(main, *words.split())

        async def scenario(workspace: Sandbox) -> None:
            assert "first" in await said(workspace, "git log --oneline")
            await said(workspace, "echo > b.txt; git add -A && git -c user.name=a -c user.email=a@b commit -qm second")
            assert "second" in await said(workspace, "git log --oneline")

        within(tree, scenario, history=history)
        assert (tree / "b.txt").exists() and git(main, "status", "--short") == ""


def test_nothing_outside_is_written_by_a_command_or_a_tool(project: Path) -> None:
    outside = project.parent / "outside"

    async def scenario(workspace: Sandbox) -> None:
        for target in (
            "/etc/etude",
            f"{Path.home()}/etude",
            "/usr/etude",
            f"{outside}/x",
            "way-out/x",
            "../x",
            "/etude",
        ):
            await said(workspace, f"touch {target}", 1)
        await said(workspace, f"rm {outside}/kept", 1)
        for path in ("/etc/etude", f"{outside}/kept", "/workspace/way-out/kept", "/workspace/../etude"):
            with pytest.raises(OSError, match=r"Read-only|No such|denied"):
                await workspace.write_file(path, b"x")
        await said(workspace, "mkdir -p /tmp/x && touch /tmp/x/y /dev/shm/z && ls /tmp/x")

    within(project, scenario)
    assert {path.name for path in outside.iterdir()} == {"kept"} and (outside / "kept").read_text() == "kept\n"
    assert not Path("/tmp/x/y").exists() and not Path("/dev/shm/z").exists()


def test_what_the_users_programs_obey_is_read_and_not_written(project: Path) -> None:
    config, hooks = (project / ".git" / "config").read_bytes(), sorted((project / ".git" / "hooks").iterdir())

    async def scenario(workspace: Sandbox) -> None:
        for command in (
            "echo x > .git/hooks/pre-commit", "echo x >> .git/config", "git config core.fsmonitor ./x", "mv .git .git2",
            "rm -rf .git/hooks", "mv .git/hooks .git/h", "touch .etude/x", "rm -rf .etude", "ln -sf /etc .git/hooks/x",
        ):  # fmt: skip
            done = await workspace.exec(command)
            assert done.exit_code, command
            assert (await workspace.exec(f"cd {project} && {command}")).exit_code, command
        await said(workspace, "cat .git/config; ls .git/hooks .etude; git status")

    within(project, scenario)
    assert (project / ".git" / "config").read_bytes() == config
    assert sorted((project / ".git" / "hooks").iterdir()) == hooks and list((project / ".etude").iterdir()) == []


def test_secrets_and_sockets_are_not_there(project: Path, outer: Path) -> None:
    keys, token = outer / "keys", outer / "token"
    keys.mkdir()
    (keys / "id").write_text("secret\n")
    token.write_text("secret\n")
    (outer / "link").symlink_to(keys)

    async def scenario(workspace: Sandbox) -> None:
        shown = await said(workspace, f"ls -A {keys} {outer}/link; cat {token} || true; ls -A /run")
        assert shown.replace(f"cat: {token}: Permission denied\n", "") == f"{keys}:\n\n{outer}/link:\n"
        await said(workspace, f"touch {keys}/x", 1)

    within(project, scenario, hidden=(f"{outer}/link", str(token), str(outer / "none")))
    assert (keys / "id").read_text() == "secret\n"


def test_git_does_not_commit_that_what_is_masked_is_gone(project: Path) -> None:
    """A directory that was only empty would be one whose files somebody removed."""
    git(project, "init", "-q")
    (project / "infra" / "deep").mkdir(parents=True)
    for name in ("infra/plan", "infra/deep/key", "token", "own"):
        (project / name).write_text("first\n")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")

    async def scenario(workspace: Sandbox) -> None:
        listed = await workspace.exec("ls infra; find . -path ./.git -prune -o -print; echo $?")
        assert b"plan" not in listed.output and listed.output.endswith(b"0\n"), "a walk goes on"
        assert b" D " not in (await workspace.exec("git status --short")).output
        for command in ("add own", "add -A infra", "commit -qm second", "stash", "commit -qam third"):
            await workspace.exec(f"echo {len(command)} >> own; git -c user.name=a -c user.email=a@b {command}")

    within(project, scenario, masked=("infra", "token"))
    changed = git(project, "log", "--format=", "--name-status", "--diff-filter=D")
    assert "infra" not in changed and "token" not in changed
    assert (project / "infra" / "deep" / "key").read_text() == "first\n"
    assert len(git(project, "log", "--format=%s").split()) > 1, "something was committed"


def test_what_is_masked_is_empty_by_every_name(project: Path) -> None:
    (project / "vault" / "deep").mkdir(parents=True)
    (project / "vault" / "deep" / "key").write_text("secret\n")
    (project / "token").write_text("secret\n")
    (project / "alias").symlink_to("token")

    async def scenario(workspace: Sandbox) -> None:
        for command in (
            "cat * ; cat vault/deep/*",
            f"grep -r . {project}",
            "cat alias",
            "find . -type f -exec cat {} +",
        ):
            assert b"secret" not in (await workspace.exec(command)).output, command
        with pytest.raises(OSError):
            await workspace.read_file("/workspace/vault/deep/key")
        assert (await workspace.exec("echo x > vault/y; rm token")).exit_code

    within(project, scenario, masked=("vault", "alias", "none"))
    assert (project / "token").read_text() == "secret\n" and not (project / "vault" / "y").exists()


def test_no_network_but_its_own_and_all_of_it_when_allowed(project: Path) -> None:
    connect = "python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 5)\""
    listen = "import socket; s = socket.create_server(('127.0.0.1', 4177)); print('up', flush=True); s.accept()"
    serve = f'python3 -c "{listen}"'
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        async def alone(workspace: Sandbox) -> None:
            await said(workspace, connect.format(port=port), 1)
            background = await workspace.start(serve)
            async for piece in background.output():
                assert piece.startswith(b"up")
                break
            await said(workspace, connect.format(port=4177))  # what one command serves the next one reaches

        async def open_to_all(workspace: Sandbox) -> None:
            await said(workspace, connect.format(port=port))

        within(project, alone)
        within(project, open_to_all, network="full")


def test_hosts_are_reached_by_a_proxy_and_by_name(project: Path) -> None:
    fetch = (
        'python3 -c "import urllib.request, urllib.error\n'
        "try: urllib.request.urlopen('http://{host}/', timeout=50)\n"
        'except urllib.error.HTTPError as error: print(error.code)"'
    )

    async def scenario(workspace: Sandbox) -> None:
        assert await said(workspace, fetch.format(host="elsewhere.invalid")) == "403\n"
        assert await said(workspace, fetch.format(host="here.invalid")) == "502\n"  # allowed, and no such host

    within(project, scenario, network="hosts", egress={"hosts": ["here.invalid"]})


def test_no_privilege_and_no_sight_of_other_processes(project: Path) -> None:
    async def scenario(workspace: Sandbox) -> None:
        assert "CapEff:\t0000000000000000" in await said(workspace, "cat /proc/self/status")
        assert str(os.getpid()) not in (await said(workspace, "ls /proc")).split()
        await said(workspace, "unshare -Ur true", 1)

    within(project, scenario)


def test_the_environment_is_what_the_caller_gave(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hidden")

    async def scenario(workspace: Sandbox) -> None:
        text = await said(workspace, "env")
        assert "SECRET_TOKEN" not in text and f"HOME={os.environ['HOME']}" in text and "GIVEN=1" in text

    within(project, scenario, env={"GIVEN": "1"})


def test_its_processes_end_with_it(project: Path) -> None:
    pids = []

    async def scenario(workspace: Sandbox) -> None:
        await workspace.start("exec sleep 4242")
        async with asyncio.timeout(120):
            while not (found := _running("sleep 4242")):
                await asyncio.sleep(0.05)
        pids.extend(found)

    within(project, scenario)
    assert pids and not _running("sleep 4242")


def _running(command: str) -> list[str]:
    words = b"\0".join(part.encode() for part in command.split()) + b"\0"
    return [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if _read(path) == words]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_it_has_no_snapshots_and_no_forks(project: Path) -> None:
    async def scenario(workspace: Sandbox) -> None:
        with pytest.raises(ConfigError, match="directory of this machine"):
            await workspace.snapshot()
        with pytest.raises(ConfigError, match="directory of this machine"):
            await workspace.fork(2)
        await said(workspace, "true")

    within(project, scenario)


def test_a_worktree_commits_into_the_repository_it_belongs_to(project: Path) -> None:
    tree = project.parent / "tree"
    git(project, "worktree", "add", "-q", "--detach", str(tree))
    assert linked_worktree(tree) == LinkedWorktree(project / ".git" / "worktrees" / "tree", project / ".git")
    assert linked_worktree(project) is None

    async def scenario(workspace: Sandbox) -> None:
        await said(workspace, "echo x > x && git add x && git -c user.name=a -c user.email=a@b commit -qm there")
        await said(workspace, f"echo x >> {project}/.git/config", 2)
        await said(workspace, f"echo x > {project}/.git/hooks/pre-commit", 2)
        await said(workspace, f"echo x > {project}/a.txt", 2)

    within(tree, scenario)
    assert "there" in git(tree, "log", "--oneline") and (project / "a.txt").read_text() == "hi\n"


def test_a_worktree_with_a_history_of_its_own_leaves_the_repository_alone(project: Path) -> None:
    tree = project.parent / "tree"
    git(project, "worktree", "add", "-q", "--detach", str(tree))
    before = git(project, "for-each-ref"), sorted((project / ".git" / "objects").rglob("*"))

    async def scenario(workspace: Sandbox) -> None:
        await said(
            workspace, "echo x > x && git add x && git -c user.name=a -c user.email=a@b commit -qm there && git log"
        )
        for command in ("git stash -u", "git branch b", f"rm -rf {project}/.git/objects", "rm .git", "echo x > .git"):
            assert (await workspace.exec(f"echo y > y; {command}")).exit_code, command

    within(tree, scenario, history="own")
    assert (git(project, "for-each-ref"), sorted((project / ".git" / "objects").rglob("*"))) == before
    assert git(project, "status", "--short") == ""


def test_a_git_file_that_points_elsewhere_opens_nothing(outer: Path) -> None:
    victim, workspace = outer / "victim", outer / "workspace"
    (victim / "worktrees" / "w").mkdir(parents=True)
    workspace.mkdir()
    (workspace / ".git").write_text(f"gitdir: {victim}/worktrees/w\n")
    (victim / "worktrees" / "w" / "commondir").write_text("../..\n")
    assert linked_worktree(workspace) is None
    (victim / "worktrees" / "w" / "gitdir").write_text(f"{outer}/another/.git\n")
    assert linked_worktree(workspace) is None
    (victim / "worktrees" / "w" / "gitdir").write_text(f"{workspace}/.git\n")
    assert linked_worktree(workspace) == LinkedWorktree(victim / "worktrees" / "w", victim)
    (victim / "worktrees" / "w" / "commondir").write_text("/etc\n")
    assert linked_worktree(workspace) is None


def test_what_cannot_be_had_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never opened without what the config says."""
    broken = project.parent / "bin" / "bwrap"
    broken.parent.mkdir()
    said = "[ $1 = --version ] && echo bubblewrap 0.9.0 && exit\necho setting up uid map: denied >&2\nexit 1\n"
    broken.write_text(f"#!/bin/sh\n{said}")
    broken.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
        with pytest.raises(SandboxError, match=r"user namespaces must be allowed.*setting up uid map: denied"):
            asyncio.run(open_workspace(project))
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(project))
        with pytest.raises(MissingDependency, match="bubblewrap is not installed"):
            asyncio.run(open_workspace(project))


@pytest.mark.parametrize("directory", ["/", "~", "~/.."])
def test_more_than_a_project_is_refused(directory: str) -> None:
    with pytest.raises(ConfigError, match="project"):
        asyncio.run(open_workspace(Path(directory).expanduser()))


@pytest.mark.parametrize(
    "config", [{"sandbox": "off"}, {"network": "hosts"}, {"egress": {"hosts": ["a.example"]}}, {"protected": ("../x",)}]
)
def test_what_contradicts_itself_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WorkspaceConfig(**config)


def test_no_program_of_the_workspace_opens_its_sandbox(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent of an earlier session left in the project's environment, or the project came with."""
    proof = project.parent / "proof"
    for place in (".venv/bin", "bin"):
        (project / place).mkdir(parents=True)
        planted = project / place / "bwrap"
        planted.write_text(f"#!/bin/sh\ntouch {proof}\necho bubblewrap 9.9\n")
        planted.chmod(0o755)
    monkeypatch.chdir(project)
    monkeypatch.setenv("PATH", f"{project}/.venv/bin:bin:{os.environ['PATH']}")

    async def scenario(workspace: Sandbox) -> None:
        assert await said(workspace, "echo inside") == "inside\n"

    within(project, scenario)
    assert not proof.exists()


DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
CHANGES = """
import os, stat
for name in {devices!r}:
    path = "/dev/" + name
    for change in (
        lambda: os.chmod(path, 0o4755), lambda: os.chown(path, 0, 0), lambda: os.utime(path, (1, 1)),
        lambda: os.setxattr(path, "system.posix_acl_access", {acl!r}), lambda: os.unlink(path),
        lambda: os.chmod("/proc/self/fd/%d" % os.open(path, os.O_PATH), 0o755),
    ):
        try:
            change()
            print("changed", path)
        except OSError:
            pass
open("/dev/null", "w").write("x")
print(len(open("/dev/zero", "rb").read(9)), len(open("/dev/urandom", "rb").read(9)))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("Cap")])
"""
ACL = b"\x02\0\0\0" + b"\x01\0\x07\0\xff\xff\xff\xff" + b"\x04\0\0\0\xff\xff\xff\xff" + b"\x20\0\0\0\xff\xff\xff\xff"


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes belong to root")
def test_the_hosts_device_nodes_are_used_and_never_changed(project: Path) -> None:
    """Of a product that runs as root: their owner is who runs the commands."""
    before = {name: (os.stat(f"/dev/{name}").st_mode, os.listxattr(f"/dev/{name}")) for name in DEVICES}

    async def scenario(workspace: Sandbox) -> None:
        await workspace.write_file("change.py", CHANGES.format(devices=DEVICES, acl=ACL).encode())
        assert await said(workspace, "python3 change.py") == "9 9\n" + str(["0" * 16] * 5) + "\n"

    try:
        within(project, scenario)
        assert before == {name: (os.stat(f"/dev/{name}").st_mode, os.listxattr(f"/dev/{name}")) for name in DEVICES}
    finally:
        for name, (mode, _) in before.items():
            os.chmod(f"/dev/{name}", mode & 0o7777)
