"""Where git does not work in commands, the person and the model are told; where the user's git does, it does inside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scripted_openai import Reply, ScriptedServer
from users_git import git

from etude.cli.main import main
from etude.product.agent import not_writable

STATUS = ("run_terminal_cmd", {"command": "git status --short --branch"})
ANOTHER = 1234


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch, outer: Path) -> Path:
    """A repository, and a home whose git config is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))
    monkeypatch.setenv("HOME", str(outer))
    monkeypatch.setenv("ETUDE_HOME", str(outer / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(outer / "config"))
    (root := outer / "project").mkdir()
    (root / "src").mkdir()
    (root / "src" / "a.py").write_text("x = 1\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def played(directory: Path, *more: str) -> tuple[str, str]:
    """What the model is told of git, and what `git status` says to it."""
    with ScriptedServer([Reply("", [STATUS]), Reply("Done.")]) as server:
        words = ["--endpoint", server.url, "--model", "m", "--dir", str(directory), "--allow", "run", *more]
        assert main(["agent", "-p", "Look.", *words]) == 0
    system, status = server.bodies[0]["messages"][0]["content"], server.bodies[1]["messages"][-1]["content"]
    [state] = [line for line in system.splitlines() if line.startswith("Git: ")]
    return state, str(status)


def test_below_the_top_of_a_repository_both_are_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, status = played(project / "src")
    assert "not a git repository" in status
    assert state.startswith(
        "Git: the workspace is a directory within a repository, so git in commands does not find it"
    )
    assert state.endswith("on branch main, everything is committed.")
    assert f"the repository's top is {project}; start there for git" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("more", [(), ("--set", 'workspace.sandbox="off"', "--set", 'workspace.network="full"')])
def test_where_git_works_nothing_is_said(
    project: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    """At the top; and without the sandbox, whose commands see what lies above."""
    state, status = played(project / "src" if more else project, *more)
    assert "## main" in status and state == "Git: on branch main, everything is committed."
    assert "git does not work" not in capsys.readouterr().err


@pytest.mark.parametrize("given", ["", "1"])
def test_git_inside_trusts_whom_the_users_git_trusts(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Beside what the user's own environment tells git."""
    if given:
        for name, value in {"COUNT": given, "KEY_0": "status.branch", "VALUE_0": "true"}.items():
            monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    handed_over(project)
    (project.parent / ".gitconfig").write_text(f"[safe]\ndirectory = {project}\n")
    state, status = played(project)
    assert "## main" in status and state == "Git: on branch main, everything is committed."
    assert "git does not work" not in capsys.readouterr().err


def test_git_inside_refuses_whom_the_users_git_refuses(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handed_over(project)
    state, status = played(project)
    assert "dubious ownership" in status
    assert state.startswith(
        "Git: git in commands refuses the repository, which belongs to another user, on branch main"
    )
    said = " ".join(capsys.readouterr().err.split())
    assert f"{project} belongs to another user, and your git does not trust it" in said
    assert f"git config --global --add safe.directory {project}, and start again" in said


def handed_over(project: Path) -> None:
    """To another user of the machine."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to other users")
    for path in (project, *project.rglob("*")):
        os.chown(path, ANOTHER, ANOTHER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
def test_root_is_told_where_it_may_not_write(tmp_path: Path) -> None:
    """The sandbox takes root's rights over other users' files away."""
    assert not_writable(tmp_path) == ""
    os.chown(tmp_path, 12_345, 12_345)
    assert "belongs to user 12345" in not_writable(tmp_path) and "sudo -u '#12345' etude agent" in not_writable(
        tmp_path
    )
    assert not_writable(tmp_path, 12_345) == ""
    tmp_path.chmod(0o777)
    assert not_writable(tmp_path) == ""
