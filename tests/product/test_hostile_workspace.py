"""A workspace that was made to have other files read: what the model's endpoint is sent before anybody was asked."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import acp
import pytest
from acp_editor import editor
from proofs import one_of_each
from scripted_openai import Reply, ScriptedServer
from test_sessions_server import Serving
from users_git import git

DEADLINE_S = 280
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAAB\n"
SECRETS = ("b3BlbnNzaC1rZXk", "the cloud's word", "a neighbour's note", "not to be read", "tok-9f8e7d6c5b4a")


@pytest.fixture
def project(outer: Path) -> Path:
    """A project beside what no model should see."""
    for name, text in {
        ".ssh/id_ed25519": KEY,
        ".aws/credentials": "the cloud's word\n",
        "note": "a neighbour's note",
    }.items():
        (outer / name).parent.mkdir(exist_ok=True)
        (outer / name).write_text(text)
    (outer / "project" / "src").mkdir(parents=True)
    (outer / "project" / "src" / "AGENTS.md").write_text("Say please.\n")
    return outer / "project"


def link(path: Path, to: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def crowd(path: Path, files: int) -> None:
    path.mkdir()
    for number in range(files):
        os.close(os.open(path / str(number), os.O_CREAT))


def planted_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def foreign_git(top: Path) -> None:
    """On a shared machine: what another user put above the user's project."""
    git(top, "init", "-q")
    (top / "AGENTS.md").write_text("a neighbour's note\n")
    if os.geteuid() == 0:
        os.chown(top / ".git", 12345, 12345)


# of each sort the first is always tried: "nested" leads to what nothing would redact
PLANTED: dict[str, Callable[[Path], object]] = {
    "nested": lambda at: link(at / "a" / "b" / "AGENTS.md", "../../../.aws/credentials"),
    "key": lambda at: link(at / "AGENTS.md", "../.ssh/id_ed25519"),
    "absolute": lambda at: link(at / "AGENTS.md", str(at.parent / ".ssh" / "id_ed25519")),
    "directory": lambda at: link(at / "docs", "../.aws") or link(at / "AGENTS.md", "docs/credentials"),
    "through-proc": lambda at: link(at / "AGENTS.md", "/proc/self/environ"),
    "hard-link": lambda at: os.link(at.parent / ".ssh" / "id_ed25519", at / "AGENTS.md"),
    "zero": lambda at: link(at / "AGENTS.md", "/dev/zero"),
    "pipe": lambda at: os.mkfifo(at / "AGENTS.md"),
    "git-link-to-pipe": lambda at: [
        os.mkfifo(at / "gitdir"), (at / ".git").write_text("gitdir: .\n")
    ],
    "git-link-to-zero": lambda at: link(at / ".git", "/dev/zero"),
    "loops": lambda at: [
        [link(at / name, name) for name in ("me", "AGENTS.md", ".envrc")], (at / ".git").write_text("gitdir: me/git\n")
    ],
    "git-link-with-nul": lambda at: (at / ".git").write_text("gitdir: a\0b\n"),
    "sparse": lambda at: sparse(at / "AGENTS.md", 900 << 30),
    "socket": lambda at: planted_socket(at / "AGENTS.md"),
    "crowd": lambda at: crowd(at / "crowd", 150_000),
    "crowds": lambda at: [crowd(at / f"crowd{number}", 20_000) for number in range(3)],
    "above": lambda at: [git(at.parent, "init", "-q"), link(at.parent / "AGENTS.md", ".ssh/id_ed25519")],
    "permissions-pipe": lambda at: [(at / ".etude").mkdir(), os.mkfifo(at / ".etude" / "permissions.toml")],
    "secret": lambda at: (at / "AGENTS.md").write_text("use tok-9f8e7d6c5b4a\n"),
}  # fmt: skip


SORTS = dict.fromkeys(("key", "absolute", "nested", "directory", "through-proc"), "link")
SORTS |= dict.fromkeys(("zero", "git-link-to-zero", "sparse"), "endless") | {"git-link-to-pipe": "pipe"}


def sort_of(how: str) -> str:
    return SORTS.get(how, how)


@pytest.mark.parametrize(
    "how",
    [
        *one_of_each(1, (how for how in PLANTED if not how.startswith("crowd")), sort_of),
        *(pytest.param(how, marks=pytest.mark.proof(12)) for how in PLANTED if how.startswith("crowd")),
    ],
)
def test_the_first_request_holds_nothing_from_outside(project: Path, how: str) -> None:
    PLANTED[how](project)
    with ScriptedServer([Reply("Done.")]) as server:
        asked = play(project, server)
        assert asked.returncode == (42 if how == "permissions-pipe" else 0), asked.stderr
        if how == "permissions-pipe":
            assert "permissions.toml" in asked.stderr and server.bodies == []
            return
        [body] = server.bodies
    said = str(body)
    assert "## src/AGENTS.md\\nSay please." in said, "what is the project's own is still read"
    assert [secret for secret in SECRETS if secret in said] == []


def test_another_users_repository_above_gives_no_rules(project: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's files")
    foreign_git(project.parent)
    with ScriptedServer([Reply("Done.")]) as server:
        assert play(project, server).returncode == 0
    assert "a neighbour's note" not in str(server.bodies[0])


def test_a_link_within_is_named_and_left_to_the_models_tools(project: Path) -> None:
    (project / "RULES.md").write_text("Rules for all.\n")
    link(project / "AGENTS.md", "RULES.md")
    (project / ".env").write_text("not to be read\n")
    link(project / "sub" / "AGENTS.md", "../.env")
    config = project.parent / "config" / "etude" / "permissions.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[permissions]\ndeny = ["read(.env)", "read(src/**)"]\n')
    reads = [("read_file", {"path": "AGENTS.md"}), ("read_file", {"path": "sub/AGENTS.md"})]
    with ScriptedServer([Reply("", reads), Reply("Done.")]) as server:
        assert play(project, server).returncode == 0
    first, second = server.bodies
    system = first["messages"][0]["content"]
    assert "Read these too before you work below them: AGENTS.md, sub/AGENTS.md" in system
    assert "Say please" not in system, "src/ may not be read"
    results = [each["content"] for each in second["messages"] if each["role"] == "tool"]
    assert "Rules for all." in results[0] and "not to be read" not in results[1]


def test_beside_a_tracked_directory_that_nothing_may_read_git_stashes_by_path(project: Path) -> None:
    (project / "secret").mkdir()
    (project / "secret" / "key").write_text("not to be read\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "a")
    (project / "src" / "AGENTS.md").write_text("Say more.\n")
    config = project.parent / "config" / "etude" / "permissions.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[permissions]\nruns = "allow"\ndeny = ["read(secret/**)"]\n')
    calls = [("run_terminal_cmd", {"command": line}) for line in ("git stash", "git stash push -- src")]
    replies = [Reply("", [call]) for call in calls]
    with ScriptedServer([*replies, Reply("Done.")]) as server:
        assert play(project, server).returncode == 0
    assert "git stash push --" in server.bodies[0]["messages"][0]["content"]
    whole, by_path = (each["content"] for each in server.bodies[-1]["messages"] if each["role"] == "tool")
    assert "Permission denied" in whole and "Saved working directory" in by_path


def play(project: Path, server: ScriptedServer) -> subprocess.CompletedProcess[str]:
    """`etude agent --print` as a process of its own, which can be ended when it hangs."""
    outer = project.parent
    secret = {"DEPLOY_TOKEN": "tok-9f8e7d6c5b4a"}
    env = {**os.environ, **secret, "ETUDE_HOME": str(outer / "home"), "XDG_CONFIG_HOME": str(outer / "config")}
    command = [sys.executable, "-m", "etude.cli.main", "agent", "--print", "--endpoint", server.url, "--model", "m"]
    return subprocess.run(
        [*command, "--dir", str(project), "Go."], capture_output=True, text=True, timeout=DEADLINE_S, env=env
    )


def all_at_once(project: Path) -> None:
    for how in ("key", "nested"):
        PLANTED[how](project)
    os.mkfifo(project / "src" / "pipe")
    (project / "deep").mkdir()
    link(project / "deep" / "AGENTS.md", "/dev/zero")


@pytest.mark.proof(2)
def test_an_editors_first_request(project: Path) -> None:
    all_at_once(project)

    async def ask(server: ScriptedServer) -> None:
        model = ("--endpoint", server.url, "--model", "m")
        async with editor(project.parent, *model, answer=lambda *_: "allow") as (_, agent, _process):
            session = await agent.new_session(cwd=str(project))
            said = await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("Go.")])
            assert said.stop_reason == "end_turn"

    with ScriptedServer([Reply("Done.")]) as server:
        asyncio.run(ask(server))
    said = str(server.bodies[0])
    assert "Say please." in said and not [secret for secret in SECRETS if secret in said]


@pytest.mark.proof(2)
def test_a_pages_first_request(project: Path) -> None:
    all_at_once(project)
    with ScriptedServer([Reply("Done.")]) as server:
        serving = Serving(project.parent, server)
        try:
            session = serving.begin(prompt="Go.")
            serving.until(session, "end")
        finally:
            serving.process.terminate()
            serving.process.wait(30)
            serving.process.stdout.close()
            serving.http.close()
    said = str(server.bodies[0])
    assert "Say please." in said and not [secret for secret in SECRETS if secret in said]
