"""What is asked about when it is named is asked about when a walk or a pattern comes to it: by the default rules alone.

Each line is run by a real shell, and must print the secret, or the case shows nothing.
"""

# ruff: noqa: E501  (lines of a shell are read best on one line)
from __future__ import annotations

import subprocess
from pathlib import Path

import debian_packages
import pytest
from users_git import git

from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths

SECRET = "the secret itself"
READ = (
    # by a walk
    "grep -r secret .", "grep -rn secret", "grep -R secret .", "grep -d recurse secret .", "grep -rh --include=.e* secret",
    "grep -r --include=*.py --include=*.key secret .", "grep -r --exclude=*.py secret .", "grep -r --exclude=*.key --include=* secret .",
    "grep -re --include=*.py -e secret .", "grep -r --exclude=.env --exclude=*.key --incl=* secret .", "cd certs && grep -r secret",
    "grep -r --exclude='{.env,*.key}' secret .", "grep -r --include={*.py,.env} secret .",
    "grep -re --exclude=.env -e secret .", "grep -r secret --exclude=*.key -- .", "egrep -r --include={*.key,*.py} secret .",
    "grep -r secret certs", "X=certs; grep -r secret $X", "for d in src certs; do grep -r secret $d; done", "grep -r secret c*",
    "rg secret", "rg secret certs", "rg --hidden secret", "rg -uu secret", "rg -. secret", "rg -g .env secret", "rg --glob '.e*' secret",
    "rg -uuu secret .",
    "find . -type f -exec cat {} +", "find . -name '.e*' -exec cat {} ';'", "find certs -exec grep -h secret {} +", "find . -name .e* -exec cat {} +",
    "find . -not -name x -type f -exec cat {} +", "find . -iname '*.KEY' -exec tail {} +", "find . -type f -execdir cat {} ';'",
    "find . -type f | xargs cat", "find . -type f -print0 | xargs -0 grep secret", "cat $(find . -type f)", "grep -r secret linked/",
    # by a pattern
    "cat certs/*", "cat .e*", "cat */*.key", "head certs/s*", "for f in certs/*; do cat \"$f\"; done", "tail -n 1 .*", "awk 1 certs/*",
    "sed -n p certs/*", "sort certs/*", "strings certs/*", "paste certs/*", "cd certs; cat *", "while read l; do echo \"$l\"; done < .e?v",
    # by what is no reader, and is asked about as a command
    "tar cf - .", "cp -r . /tmp/etude-secret && cat /tmp/etude-secret/.env", "python3 -c 'print(open(\".env\").read())'",
)  # fmt: skip
HARMLESS = (
    "grep -rn secret src", "grep -rn --include=*.py secret .", "grep -rn --include='*.py' --include=*.md secret .", "rg secret src",
    "grep -r --exclude=.env --exclude='*.key' secret .", "grep -r --exclude=*.key --exclude=.e* secret .", "egrep -r --include=*.{py,md} secret .",
    "grep -r --include=* --exclude=.env --exclude=*.key secret .", "find . -name '*.py' -exec grep secret {} +", "ls -R",
    "git status", "git ls-files", "grep -rn secret sample", "cat sample/.env.example", "ls -la", "wc -l src/*", "grep -r secret packages",
)  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Which no test changes."""
    return laid_out(tmp_path_factory.mktemp("searched"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return laid_out(tmp_path)


def laid_out(top: Path) -> Path:
    debian_packages.program("rg", "ripgrep")
    project = top / "project"
    for name in (
        ".env",
        "certs/server.key",
        "src/a.py",
        "other/b.py",
        "sample/.env.example",
        "packages/node_modules/x/test.pem",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"{SECRET}\n" if name.endswith((".env", ".key")) else "a secret = 1\n")
    (project / "linked").symlink_to("certs")
    git(project, "init", "-q")
    (project / ".gitignore").write_text(".env\n")
    return project


def judged(judge: Judge, line: str) -> str:
    return judge.judge("run_terminal_cmd", {"command": line}).verdict


@pytest.mark.parametrize("line", READ)
def test_a_secret_is_asked_about_however_it_is_reached(searched: Path, line: str) -> None:
    said = subprocess.run(["bash", "-c", line], cwd=searched, capture_output=True, stdin=subprocess.DEVNULL).stdout
    subprocess.run(["rm", "-rf", "/tmp/etude-secret"], check=True)
    assert SECRET.encode() in said, "the line shows nothing"
    assert judged(Judge(PermissionConfig(), WorkspacePaths(searched), env={}), line) == "ask"


@pytest.mark.parametrize("line", HARMLESS)
def test_what_comes_to_no_secret_is_not_asked_about(searched: Path, line: str) -> None:
    said = subprocess.run(["bash", "-c", line], cwd=searched, capture_output=True, stdin=subprocess.DEVNULL).stdout
    assert SECRET.encode() not in said
    assert judged(Judge(PermissionConfig(), WorkspacePaths(searched), env={}), line) == "allow"


@pytest.mark.parametrize(
    "pattern", ["!.env", "!.e*", "/x\n!/.env ", "!\\.env", "!.{env,x}", "!.[e]nv", "!**/.env", "!*"]
)
@pytest.mark.parametrize("file", [".gitignore", ".ignore", ".rgignore", "../.ignore", ".git/info/exclude"])
def test_what_an_ignore_file_takes_back_is_read_by_ripgrep_and_asked_about(
    project: Path, file: str, pattern: str
) -> None:
    (project / "certs/server.key").unlink()
    (project / ".gitignore").write_text("!.env.example\n!sample/\n")
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={})
    assert judged(judge, "rg secret") == "allow"
    (project / file).write_text(f"{pattern}\n")
    said = subprocess.run(["rg", "secret"], cwd=project, capture_output=True).stdout
    if SECRET.encode() in said:
        assert judged(judge, "rg secret") == "ask"
    assert SECRET.encode() in said or file == "../.ignore", "the case shows nothing"


def test_who_said_yes_is_not_asked_again_and_what_is_hidden_is_not_there(project: Path) -> None:
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={})
    for _ in range(2):
        decision = judge.judge("run_terminal_cmd", {"command": "grep -r secret ."})
        assert decision.verdict == "ask" and len(decision.remember) == 1, decision.explain()
        judge.allow(decision.remember[0])
    assert judged(judge, "grep -r secret .") == "allow"
    gone = [str(project / ".env"), str(project / "certs")]
    assert (
        judged(Judge(PermissionConfig(), WorkspacePaths(project), env={}, hidden=gone), "grep -r secret .") == "allow"
    )
    assert (
        judged(Judge(PermissionConfig(deny=("read(.env)",)), WorkspacePaths(project), env={}, hidden=gone), "rg -. a")
        == "allow"
    )
    assert (
        judged(Judge(PermissionConfig(builtin=False, runs="allow"), WorkspacePaths(project), env={}), "rg -. a")
        == "allow"
    )


@pytest.mark.parametrize("tool", ["grep", "codebase_search"])
def test_a_tool_that_searches_is_asked_about_for_what_git_does_not_ignore(project: Path, tool: str) -> None:
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={})
    assert judge.judge(tool, {"pattern": "a", "path": "certs"}).verdict == "ask"
    assert judge.judge(tool, {"pattern": "a", "path": "src"}).verdict == "allow"
    (project / ".gitignore").write_text(".env\n*.key\n")
    assert judge.judge(tool, {"pattern": "a", "path": "."}).verdict == "allow", "they pass over what git ignores"
    git(project, "add", "-f", ".env")
    assert judge.judge(tool, {"pattern": "a", "path": "."}).verdict == "ask"
    (project / ".git").rename(project / "gone")
    git(project, "init", "-q", "--bare", "../x")
    assert judge.judge(tool, {"pattern": "a", "path": "certs"}).verdict == "ask"
