"""Paths that lead elsewhere than they seem to: chains of links, descriptors, and what is no path at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths
from etude.harness.permissions.rules import EDITS, READS


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "conf").mkdir(parents=True)
    for name in (".env", "server.key", "conf/prod.yaml", "plain"):
        (project / name).write_text("x\n")
    return project


@pytest.fixture
def judge(project: Path) -> Judge:
    return Judge(
        PermissionConfig(ask=("read(conf/prod.yaml)",), deny=("edit(plain)",)), WorkspacePaths(project), env={}
    )


def run(judge: Judge, line: str) -> str:
    return judge.judge("run_terminal_cmd", {"command": line}).verdict


@pytest.mark.parametrize("length", [2, 39, 40, 41])
@pytest.mark.parametrize("leads", [".env", "/etc/hostname"])
def test_a_chain_of_links_is_followed_as_far_as_the_kernel_does(
    project: Path, judge: Judge, length: int, leads: str
) -> None:
    (project / f"l{length}").symlink_to(leads)
    for number in range(length - 1, 0, -1):
        (project / f"l{number}").symlink_to(f"l{number + 1}")
    opens = True
    try:
        (project / "l1").read_bytes()
    except OSError:
        opens = False
    assert opens == (length <= 40), "what this kernel does"
    assert run(judge, "cat l1") == "ask" and judge.judge("read_file", {"path": "l1"}).verdict == "ask"
    writes = judge.judge("write_file", {"path": "l1"}).verdict
    assert writes == ("ask" if leads == ".env" and length <= 40 else "deny") and run(judge, "echo x > l1") == writes


@pytest.mark.parametrize(
    "line",
    [
        "cat /dev/fd/3/prod.yaml 3< conf",
        "cat /dev/stdin/prod.yaml < conf",
        "{ cat /dev/fd/3/prod.yaml; } 3< conf",
        "cat /dev/fd/3/* 3<conf",
        "find . -maxdepth 0 -exec cat /dev/fd/3/prod.yaml ';' 3< conf",
    ],
)
def test_what_lies_below_a_descriptor_is_not_known(judge: Judge, line: str) -> None:
    assert run(judge, line) == "ask"


@pytest.mark.parametrize("line", ["echo x 3< . > /dev/fd/3/server.key", "echo x 3< . > /dev/fd/3/new"])
def test_nothing_is_written_below_a_descriptor(judge: Judge, line: str) -> None:
    assert run(judge, line) == "deny"


@pytest.mark.parametrize(
    "line",
    [
        "echo x 3< plain > /dev/fd/3",
        "echo x < plain > /dev/stdin",
        "echo x 1< plain > /dev/stdout",
        "{ echo x > /dev/fd/3; } 3< plain",
        "ln -s /dev/fd/3 src; echo x 3< plain > src",
    ],
)
def test_what_is_open_to_be_read_is_not_written_by_its_descriptor(project: Path, judge: Judge, line: str) -> None:
    (project / "src").symlink_to("/dev/fd/3")
    assert run(judge, line) == "deny"


@pytest.mark.parametrize(
    "line", ["echo x > /dev/stderr", "cat < plain > /dev/null", "cat <(echo a) /dev/fd/0", "echo x >&2"]
)
def test_a_descriptor_alone_is_no_question(judge: Judge, line: str) -> None:
    assert run(judge, line) == "allow"


@pytest.mark.parametrize("name", ["~\0", "\0", "x\0y", "/proc/self/\0", "\ud800", "~\ud800"])
@pytest.mark.parametrize("here", [True, False])
def test_what_is_no_path_ends_no_call(judge: Judge, name: str, here: bool) -> None:
    for tool in (*READS, *EDITS):
        asked = judge if here else Judge(PermissionConfig(), env={})
        assert asked.judge(tool, {"path": name}).verdict in ("allow", "ask", "deny"), tool


@pytest.mark.parametrize("line", ["ls /dev/fd/..", "cat /dev/fd/../environ", "cat /dev/fd//../environ"])
def test_above_the_descriptors_is_the_process(project: Path, line: str) -> None:
    judge = Judge(PermissionConfig(outside="allow"), WorkspacePaths(project), env={})
    assert run(judge, "ls /dev/fd") == "allow"
    assert run(judge, line) == "ask"
    judge = Judge(PermissionConfig(outside="allow", deny=("read(/proc/**)",)), WorkspacePaths(project), env={})
    assert run(judge, line) == "deny"


@pytest.mark.parametrize("line", ["cat < /dev/tcp/a/80", "read x < /dev/udp/a/53", "exec 3< /dev/tcp/a/80"])
def test_a_connection_is_no_file_outside(project: Path, line: str) -> None:
    rules = PermissionConfig(outside="allow", runs="allow", builtin=False)
    assert run(Judge(rules, WorkspacePaths(project), env={}), line.replace("/dev", "/etc")) == "allow"
    assert run(Judge(rules, WorkspacePaths(project), env={}), line) == "ask"


@pytest.mark.parametrize("line", ["grep K *", "file *", "cat ?r", "ls -- *", "for f in ?r; do grep K $f; done"])
def test_a_file_that_is_called_as_an_option_is_one(project: Path, judge: Judge, line: str) -> None:
    (project / "docs").mkdir()
    (project / "docs" / "ar").touch()
    assert run(judge, f"cd docs && {line}") == "allow"
    (project / "docs" / "-r").touch()
    assert run(judge, f"cd docs && {line}") == "ask"


def test_a_neighbour_of_the_workspace_is_named_by_its_whole_path(project: Path, judge: Judge) -> None:
    """Inside, the workspace is /workspace: no rule makes `../other` lead there."""
    (project.parent / "other").mkdir()
    (project.parent / "other" / "README.md").write_text("x\n")
    decision = judge.judge("read_file", {"path": "../other/README.md"})
    assert decision.verdict == "ask" and "by its whole path" in decision.explain() and not list(decision.remember)
    assert list(judge.judge("read_file", {"path": "/etc/hostname"}).remember) == ["read(/etc/hostname)"]
