"""What git prints of secrets by the default rules: what it keeps unasked, what only the working files hold never.

Each line is run by a real shell and a real git, and must print the secret, or the case shows nothing.
"""

# ruff: noqa: E501  (lines of a shell are read best on one line)
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from users_git import git

from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths

SECRET = "the secret itself -- --cached"
CHANGED = (
    "git diff", "git diff HEAD", "git diff -- certs", "git diff --stat -p", "git diff-files -p", "git diff-index -p HEAD", "git grep secret",
    "git grep -n secret -- certs", "git status -vv", "git -C certs diff", "cd certs && git diff", "git diff --word-diff", "git diff -U0 HEAD -- .",
    "git diff -S --cached", "git grep -l -e secret | xargs -r true; git diff",
)  # fmt: skip
CHANGED_AND_UNPRINTED = (
    "git status", "git status -sb", "git diff --stat", "git diff --name-only", "git diff --cached", "git diff --cached --stat", "git ls-files -m", "git grep --cached secret",
    "git diff -- src", "git grep a -- src", "git diff-files", "git log -p", "git describe --always --dirty",
)  # fmt: skip
NO_REPOSITORY = (
    "git diff src docs",
    "git diff docs src",
    "cd src && git diff . ../docs",
    "git -C src diff . ../docs",
    "git diff -p src docs | cat",
)
IN_GIT = (
    "git -C .git diff ../src ../docs", "cd .git && git diff ../src ../docs", "cd .git/refs && git diff ../../src ../../docs",
    "git diff docs /dev", "cd / && git diff {here}/src {here}/docs", "git -C / diff {here}/src {here}/docs",
)  # fmt: skip


@pytest.fixture
def project(outer: Path) -> Path:
    """Outside of /tmp, where a judge sees what a command does."""
    project = outer / "project"
    for name, text in {"src/a.py": "a = 1\n", ".env": "old\n", "certs/server.key": "old\n"}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    return project


def committed(project: Path) -> Judge:
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    return Judge(PermissionConfig(), WorkspacePaths(project), env={})


def judged(judge: Judge, line: str) -> str:
    return judge.judge("run_terminal_cmd", {"command": line}).verdict


def printed(project: Path, line: str) -> bool:
    said = subprocess.run(["bash", "-c", line], cwd=project, capture_output=True, stdin=subprocess.DEVNULL).stdout
    return SECRET.encode() in said


@pytest.mark.parametrize("line", CHANGED)
def test_a_tracked_secret_that_was_changed_is_asked_about(project: Path, line: str) -> None:
    judge = committed(project)
    usual = judged(judge, line)
    for name in (".env", "certs/server.key"):
        (project / name).write_text(f"{SECRET}\n")
    assert printed(project, line), "the line shows nothing"
    assert (usual, judged(judge, line)) == ("allow", "ask")


def test_what_prints_no_content_of_it_is_not(project: Path) -> None:
    judge = committed(project)
    for name in (".env", "certs/server.key"):
        (project / name).write_text(f"{SECRET}\n")
    assert [line for line in CHANGED_AND_UNPRINTED if printed(project, line)] == []
    assert [line for line in CHANGED_AND_UNPRINTED if judged(judge, line) != "allow"] == []
    decision = judge.judge("run_terminal_cmd", {"command": "git diff"})
    assert decision.remember == ("read(.env)",), "one yes holds for the file"
    judge.allow("read(.env)")
    judge.allow("read(certs/server.key)")
    assert judged(judge, "git diff") == "allow"


def test_a_secret_as_git_keeps_it_and_a_link_are_no_question(project: Path) -> None:
    (project / "linked.key").symlink_to("src/a.py")
    judge = committed(project)
    (project / "src" / "a.py").write_text("a = 2\n")
    (project / "linked.key").unlink()
    (project / "linked.key").symlink_to("src")
    (project / ".env").unlink()
    assert [line for line in CHANGED if judged(judge, line) != "allow"] == []
    (project / "linked.key").unlink()
    (project / "linked.key").write_text(f"{SECRET}\n")
    assert printed(project, "git diff") and judged(judge, "git diff") == "ask"


@pytest.mark.parametrize("line", ["git diff --submodule=diff", "git grep --recurse-submodules secret"])
def test_a_secret_in_a_submodule_counts(project: Path, line: str) -> None:
    inner = project / "vendor" / "inner"
    inner.mkdir(parents=True)
    (inner / ".env").write_text("old\n")
    committed(inner)
    (project / ".gitmodules").write_text('[submodule "inner"]\n\tpath = vendor/inner\n\turl = ../inner\n')
    judge = committed(project)
    git(project, "submodule", "init", "-q")
    assert judged(judge, line) == "allow"
    (inner / ".env").write_text(f"{SECRET}\n")
    assert printed(project, line) and judged(judge, line) == "ask"


def test_files_that_lie_elsewhere_than_the_repository_are_looked_at_one_by_one(project: Path) -> None:
    judge = committed(project)
    git(project, "config", "core.worktree", "../certs")
    assert judged(judge, "git diff") == "ask", "it cannot be told which of them git keeps"


def test_a_tracked_hard_link_to_a_secret_counts(project: Path) -> None:
    (project / ".gitignore").write_text(".env\n")
    os.link(project / ".env", project / "src" / "settings")
    judge = committed(project)
    assert judged(judge, "git diff") == "allow"
    (project / ".env").write_text(f"{SECRET}\n")
    assert printed(project, "git diff") and judged(judge, "git diff") == "ask"


@pytest.mark.parametrize("line", NO_REPOSITORY)
def test_git_diff_is_diff_where_there_is_no_repository(project: Path, line: str) -> None:
    (project / "docs").mkdir()
    (project / ".env").unlink()
    (project / "certs" / "server.key").unlink()
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={})
    assert judged(judge, line) == "allow"
    (project / "docs" / "id_rsa").write_text(f"{SECRET}\n")
    assert printed(project, line), "the line shows nothing"
    assert judged(judge, line) == "ask"


@pytest.mark.parametrize("line", IN_GIT)
def test_git_diff_is_diff_where_it_is_asked_from_elsewhere(project: Path, line: str) -> None:
    (project / "docs").mkdir()
    (project / "docs" / ".env").write_text(f"{SECRET}\n")
    (project / ".gitignore").write_text(".env\n")
    judge, line = committed(project), line.format(here=project)
    # a file of /dev that goes while git reads them ends git
    assert any(printed(project, line) for _ in range(20)), "the line shows nothing"
    assert judged(judge, line) == "ask"
    assert judged(judge, line.replace(str(project), "/workspace")) == "ask"
