"""What of a home and of a machine commands are not shown: dot files, those to come too, sockets, what rules deny."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import structlog
from guarded_workspace import within
from proofs import one_of_each
from pydantic import ValidationError

from etude.environments.base import Sandbox
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.local import WorkspaceConfig, absent, outside
from etude.harness.permissions.rules import PermissionConfig
from etude.product.agent import confined

CONNECT = "python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])' {}"


@pytest.fixture
def home(outer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = outer / "home"
    for name in (
        ".codex/auth.json", ".newtool/token", ".config/newtool/token", ".config/git/config", ".config/git/credentials",
        ".cargo/bin/tool", ".cargo/credentials.toml", ".cache/huggingface/token", ".cache/huggingface/hub/model",
        ".mytools/bin/mine", ".bashrc", ".gitconfig", "data/table", "other/code.py", "project/a.txt",
    ):  # fmt: skip
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"{name} is here\n")
    (home / "link").symlink_to("data")
    monkeypatch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))
    monkeypatch.setenv("HOME", str(home))
    return home


async def said(workspace: Sandbox, command: str) -> str:
    return (await workspace.exec(command)).output.decode()


def test_of_dot_files_toolchains_are_shown_and_nothing_else(home: Path) -> None:
    search = f"{home}/.mytools/bin:{os.environ['PATH']}"

    async def scenario(workspace: Sandbox) -> None:
        listed = set((await said(workspace, "ls -A ~")).split())
        assert listed == {
            ".config",
            ".cargo",
            ".cache",
            ".mytools",
            ".gitconfig",
            "data",
            "other",
            "link",
            "project",
        } | (listed & {".local"})
        for hidden in (".codex/auth.json", ".newtool/token", ".config/newtool/token", ".config/git/credentials",
                       ".cargo/credentials.toml", ".cache/huggingface/token", ".bashrc"):  # fmt: skip
            assert "is here" not in await said(workspace, f"cat ~/{hidden}; cat {home}/{hidden}"), hidden
        for shown in (".config/git/config", ".cargo/bin/tool", ".cache/huggingface/hub/model", ".mytools/bin/mine",
                      "data/table", "other/code.py", "link/table", "project/a.txt"):  # fmt: skip
            assert "is here" in await said(workspace, f"cat ~/{shown}"), shown
        (home / ".later").write_text("is here\n")
        (home / ".config" / "later").write_text("is here\n")
        assert "is here" not in await said(workspace, "cat ~/.later ~/.config/later")
        assert (await workspace.exec("touch ~/x || touch ~/.x || touch ~/data/x || touch ~/.cargo/x")).exit_code

    within(home / "project", scenario, WorkspaceConfig(env={"PATH": search}))
    assert not (home / "x").exists() and not (home / ".x").exists()


def test_a_workspace_in_a_dot_directory_is_there_and_its_neighbours_are_not(home: Path) -> None:
    (home / ".dotfiles" / "mine").mkdir(parents=True)
    (home / ".dotfiles" / "token").write_text("is here\n")

    async def scenario(workspace: Sandbox) -> None:
        await said(workspace, "echo made > made")
        assert "is here" not in await said(workspace, f"cat ../token {home}/.dotfiles/token ~/.codex/auth.json")

    within(home / ".dotfiles" / "mine", scenario, WorkspaceConfig())
    assert (home / ".dotfiles" / "mine" / "made").read_text() == "made\n"


def test_more_is_shown_where_the_user_says_so(home: Path) -> None:
    async def one(workspace: Sandbox) -> None:
        assert "is here" in await said(workspace, "cat ~/.newtool/token")
        assert "is here" not in await said(workspace, "cat ~/.bashrc")

    async def everything(workspace: Sandbox) -> None:
        assert "is here" in await said(workspace, "cat ~/.bashrc")
        assert "is here" not in await said(workspace, "cat ~/.codex/auth.json"), "what has a name stays hidden"

    within(home / "project", one, WorkspaceConfig(shown=("~/.newtool",)))
    within(home / "project", everything, WorkspaceConfig(shown=("~",)))
    for wrong in ("/etc", "~/data", "~/.x/../data"):
        with pytest.raises(ValidationError, match="dot file"):
            WorkspaceConfig(shown=(wrong,))


@pytest.mark.parametrize(
    "way", ["at home", "all shown", "elsewhere", "linked", "in the workspace", "writable", "hidden"]
)
def test_the_index_of_the_users_code_is_there_for_no_command(
    home: Path, outer: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It holds words of files that a rule denies, and of all other projects. It is made after the session began."""
    cache = {"elsewhere": outer / "cache", "in the workspace": home / "project" / ".cache", "writable": outer / "cache"}
    cache["hidden"] = home / "snap" / "cache"
    place = cache.get(way, home / ".cache")
    (place / "etude").mkdir(parents=True)
    shutil.copy(guest_program(default_cache_dir()), place / "etude")  # not built anew each time
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    real = place / "etude" / "search"
    if way == "linked":
        real = outer / "large"
        real.mkdir()
        (place / "etude" / "search").symlink_to(real)

    async def scenario(workspace: Sandbox) -> None:
        real.mkdir(parents=True, exist_ok=True)
        (real / "index-1.sqlite").write_text("aVeryRareWord")
        found = await said(workspace, f"grep -rls aVeryRareWord {outer} /workspace; cat {real}/*")
        assert "index-1" not in found and "aVeryRareWord" not in found
        assert not await said(workspace, f"touch {real}/planted 2>/dev/null; ls -A {real} 2>/dev/null")

    config = WorkspaceConfig(
        shown=("~",) if way == "all shown" else WorkspaceConfig().shown,
        writable=(outer / "cache",) if way == "writable" else (),
    )
    within(home / "project", scenario, config)
    assert (real / "index-1.sqlite").read_text() == "aVeryRareWord"


@pytest.mark.parametrize("network", one_of_each(2, ["full", "none"]))
def test_sockets_of_the_machine_are_not_reached_and_those_of_commands_are(home: Path, network: Any) -> None:
    places = (home / ".newtool" / "agent", home / "data" / "docker.sock", home / "project" / "server", home / ".x11")
    listening = [socket.socket(socket.AF_UNIX) for _ in places]
    for each, place in zip(listening, places, strict=True):
        each.bind(str(place))
        each.listen()
    own = (
        "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.bind('/workspace/own'); s.listen(); "
        "print('up', flush=True); s.accept()\""
    )

    async def scenario(workspace: Sandbox) -> None:
        for place in (*places, "/workspace/server", home / "link" / "docker.sock"):
            done = await workspace.exec(CONNECT.format(place))
            assert done.exit_code and b"Error" in done.output, place
        background = await workspace.start(own)
        async for piece in background.output():
            assert piece.startswith(b"up")
            break
        assert await said(workspace, CONNECT.format("/workspace/own")) == ""

    for place in places:  # each of them can be reached from outside of the sandbox
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))
    within(home / "project", scenario, WorkspaceConfig(network=network))
    for each in listening:
        each.close()


def test_no_variable_of_the_user_has_a_search_read_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge goes by a command's words: with `--hidden` from elsewhere `rg KEY` would read a `.env`."""
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "rg"))
    monkeypatch.setenv("EDITOR_OF_CHOICE", "vi")
    for sandbox in ("on", "off"):
        config = WorkspaceConfig.model_validate({"sandbox": sandbox, "network": "full"})
        env = confined(config, PermissionConfig(), tmp_path).env
        assert "RIPGREP_CONFIG_PATH" not in env and env["EDITOR_OF_CHOICE"] == "vi"


def test_what_rules_deny_to_read_is_not_there_wherever_it_lies(home: Path) -> None:
    project = home / "project"
    for name in ("infra/secrets/key", ".env", "src/a.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("is here\n")
    os.link(project / ".env", project / "hard")
    (home / "data" / "deep").mkdir()
    (home / "data" / "deep" / "table").write_text("is here\n")
    (home / "real").mkdir()
    (home / "real" / "token").write_text("is here\n")
    (home / "alias").symlink_to("real")
    rules = PermissionConfig(
        deny=("read(.env)", "read(infra/secrets/**)", "read(~/data/*/table)", "read(~/alias/**)", "read(/etc/passwd)")
    )
    config = confined(WorkspaceConfig(), rules, project)

    async def scenario(workspace: Sandbox) -> None:
        for hidden in (".env", "hard", "infra/secrets/key", "~/data/deep/table", "~/alias/token", "~/real/token",
                       f"{project}/.env", "$(echo .e)nv", "infra/*/*"):  # fmt: skip
            assert "is here" not in await said(workspace, f"cat {hidden}"), hidden
        assert "root" not in await said(workspace, "cat /etc/passwd")
        assert await said(workspace, "cat src/a.py ~/data/table") == "is here\ndata/table is here\n"

    within(project, scenario, config)
    gone = absent(project, config)
    assert {str(project / ".env"), str(project / "hard"), str(home / "real"), "/etc/passwd"} <= set(gone)
    assert str(home / ".codex") in gone and str(home / "data") not in gone


ABSTRACT = """
import socket, sys
kind = getattr(socket, sys.argv[2])
with socket.socket(socket.AF_UNIX, kind) as mine:
    try:
        mine.connect("\\0" + sys.argv[1])
        print("reached")
    except OSError as error:
        print(type(error).__name__)
"""
SERVE = """
import socket
with socket.socket(socket.AF_UNIX) as mine:
    mine.bind("\\0etude-of-a-command")
    mine.listen()
    print("up", flush=True)
    mine.accept()
"""


@pytest.mark.skipif(not outside.abstract_sockets_held(), reason="Landlock has no scopes in this kernel (before 6.12)")
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET"])
def test_a_socket_of_the_hosts_without_a_path_is_out_of_reach(home: Path, kind: str) -> None:
    """With the host's network too; those of commands are not."""
    project, name = home / "project", f"etude-of-the-host-{os.getpid()}"
    (project / "reach.py").write_text(ABSTRACT)
    (project / "serve.py").write_text(SERVE)
    with socket.socket(socket.AF_UNIX, getattr(socket, kind)) as server:
        server.bind(f"\0{name}")
        if kind != "SOCK_DGRAM":
            server.listen()

        async def scenario(workspace: Sandbox) -> None:
            assert name in await said(workspace, "cat /proc/net/unix")  # it is the host's network
            assert await said(workspace, f"python3 reach.py {name} {kind}") == "PermissionError\n"
            serving = await workspace.start("python3 serve.py")
            assert await anext(serving.output()) == b"up\n"
            assert await said(workspace, "python3 reach.py etude-of-a-command SOCK_STREAM") == "reached\n"

        within(project, scenario, WorkspaceConfig(network="full"))


def test_a_kernel_that_cannot_keep_them_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(_: Sandbox) -> None:
        pass

    for held in (True, False):
        monkeypatch.setattr("etude.environments.local.workspace.abstract_sockets_held", lambda held=held: held)
        with structlog.testing.capture_logs() as logs:
            within(home / "project", scenario, WorkspaceConfig(network="full"))
        assert ("abstract_sockets_reachable" in [entry["event"] for entry in logs]) is not held
