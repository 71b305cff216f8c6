"""A hard link to a secret is the secret, by the default rules: named, met on a walk, and read by a tool."""

import os
import sys
from pathlib import Path

import pytest

from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths
from etude.harness.permissions.unreadable import LinkedSecrets

LINES = ("cat src/settings", "grep -rn K src", "head -1 < src/settings", "cat src/s*", "cd src && cat settings",
         "rg K src", "cat notes.txt", "find src -type f -exec cat {} +")  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    for name in (".env", "id_rsa", "src/a.py", "src/b.py"):
        (project / name).write_text("K=secret\n")
    os.link(project / "src" / "b.py", project / "src" / "c.py")
    return project


def judged(judge: Judge, line: str) -> str:
    return judge.judge("run_terminal_cmd", {"command": line}).verdict


def test_a_hard_link_is_what_it_leads_to(project: Path) -> None:
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={})
    for name in ("src/settings", "notes.txt"):
        (project / name).write_text("x\n")
    assert [line for line in LINES if judged(judge, line) != "allow"] == []
    for name, secret in (("src/settings", ".env"), ("notes.txt", "id_rsa")):
        (project / name).unlink()
        os.link(project / secret, project / name)
    assert [line for line in LINES if judged(judge, line) != "ask"] == []
    assert judge.judge("read_file", {"path": "src/settings"}).verdict == "ask"
    assert judge.judge("grep", {"pattern": "K", "path": "src"}).verdict == "ask"
    assert judged(judge, "cat src/b.py src/c.py") == "allow", "other files may have two names"
    decision = judge.judge("run_terminal_cmd", {"command": "cat src/settings"})
    assert f"another name of {project / '.env'}" in decision.explain() and decision.remember == ("read(src/settings)",)


def test_who_may_read_the_secret_may_read_it_by_its_other_name(project: Path) -> None:
    os.link(project / ".env", project / "src" / "settings")
    assert judged(Judge(PermissionConfig(allow=("read(.env)",)), WorkspacePaths(project), env={}), LINES[0]) == "allow"
    hidden = (str(project / ".env"), str(project / "src" / "settings"))
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={}, hidden=hidden)
    assert judged(judge, "grep -rn K src") == "allow", "it is not there"
    assert (
        judged(Judge(PermissionConfig(builtin=False, runs="allow"), WorkspacePaths(project), env={}), LINES[0])
        == "allow"
    )


def test_a_key_of_the_home_counts_and_what_packages_bring_does_not(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "work").write_text("key\n")
    monkeypatch.setenv("HOME", str(home))
    os.link(home / ".ssh" / "work", project / "src" / "settings")
    (project / "node_modules" / "x").mkdir(parents=True)
    (project / "node_modules" / "x" / "test.pem").write_text("x\n")
    os.link(project / "node_modules" / "x" / "test.pem", project / "notes.txt")
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={})
    assert judged(judge, "cat src/settings") == "ask"
    assert judged(judge, "cat notes.txt") == "allow"


def test_any_link_is_asked_about_where_there_are_too_many_files_to_look_at(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project / "none"))
    assert judged(Judge(PermissionConfig(), WorkspacePaths(project), env={}), "cat src/b.py") == "allow"
    monkeypatch.setattr(sys.modules[LinkedSecrets.__module__], "_MOST_SEEN", 1)
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={})
    assert [judged(judge, line) for line in ("cat src/b.py", "grep -r K src", "cat src/a.py")] == [
        "ask",
        "ask",
        "allow",
    ]
