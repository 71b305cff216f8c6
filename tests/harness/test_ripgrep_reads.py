"""Whatever the real ripgrep prints of a secret that a dot hides is asked about first: by options, and by ignore files.

Not the other way round: what the judge does not read exactly it asks about.
"""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import debian_packages
import pytest
from users_git import git

from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths

SECRET = "the secret itself"
SECRETS = (".env", ".env.yaml", ".env.sh", "src/.env", ".env.x\x0cy", ".env.\x1f", "src/.env.local")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    debian_packages.program("rg", "ripgrep")
    project = tmp_path / "project"
    for name in (*SECRETS, "src/a.py", "src/b.yaml"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"{SECRET}\n" if name in SECRETS else "a secret = 1\n")
    git(project, "init", "-q")
    return project


def printed(project: Path, *words: str) -> bool:
    done = subprocess.run(["rg", *words], cwd=project, capture_output=True, stdin=subprocess.DEVNULL)
    return SECRET.encode() in done.stdout


def judged(project: Path, line: str) -> str:
    judge = Judge(PermissionConfig(), WorkspacePaths(project), env={})
    return judge.judge("run_terminal_cmd", {"command": line}).verdict


@pytest.mark.parametrize(
    "line",
    [
        "rg -tyaml secret", "rg --type=sh secret", "rg secret -tall", "rg --type yaml secret", "rg -n -t all secret .",
        "rg -ntsh secret", "rg -t sh -g '!x' secret", "rg --iglob '.E*' secret", "rg -g'.env.*' secret",
        "rg -g'*' secret", "rg -g '**/*.yaml' secret", "rg -g 'src/.e*' secret", "rg -g '\\.env' secret",
        "rg --glob='[.]env' secret",
    ],
)  # fmt: skip
def test_an_option_that_takes_back_what_a_dot_hides(project: Path, line: str) -> None:
    done = subprocess.run(["bash", "-c", line], cwd=project, capture_output=True, stdin=subprocess.DEVNULL)
    assert SECRET.encode() in done.stdout, "the line shows nothing"
    assert judged(project, line) == "ask"


@pytest.mark.parametrize("line", ["rg secret", "rg -g '!*.lock' secret", "rg -g '*.py' secret", "rg -n -A3 secret src"])
def test_what_a_dot_hides_is_no_reason_to_ask(project: Path, line: str) -> None:
    (project / ".gitignore").write_text("# !.env\n\\!.env\n !.env\n!*.py\n!src/\n!sample.env\n*.log\n!keep.log\n")
    assert not printed(project, "secret")
    assert judged(project, line) == "allow"


FILES = (".gitignore", ".ignore", ".rgignore")
MARKS = ("!", "/", "\\", ".", "env", ".env", ".e*", "?env", "*", "**", "**/", "[.]", "{.env,x}", "src", "src/", " ")
ENDS = ("\n", "\r\n", "\t\n", " \t\n", "\\ \n", "\v\n", "\xa0\n", "\u2003\n", "\x1f\n", "\r", "\f", "\u2028", "")
KNOWN = (
    "!.env\t\n", "!.env \n", "!.env\v\n", "!.env\xa0\n", "!.env\u2003 \r\n", "\ufeff!.env\n", "!.env/\n!.env\n",
    "!.env.x\x0cy\n", "!.env.\x1f\n", "a\u2028!.env\n!/.env", "x\\\n!**/.env\t", "!src/.e**\n", "!**\n", "!src/**\n",
    "!/src/.env\t \n", "!.en?\n", "!.[e]nv\n", "!\\.env\n", "!{.env,x}\n", "\xff!.env\n!.env\n",
)  # fmt: skip


def made_up(count: int) -> Sequence[str]:
    chance = random.Random(17)
    lines = []
    for _ in range(count):
        pieces = [chance.choice(MARKS) for _ in range(chance.randint(1, 4))]
        lines.append("!" * (chance.random() < 0.8) + "".join(pieces) + chance.choice(ENDS))
    return lines


def test_ignore_files_are_never_read_as_taking_back_less_than_ripgrep_takes(project: Path) -> None:
    shown = 0
    for line, file in zip((*KNOWN, *made_up(300)), itertools.cycle(FILES), strict=False):
        (project / file).write_bytes(line.encode())
        if printed(project, "secret"):
            shown += 1
            assert judged(project, "rg secret") == "ask", repr(line)
        (project / file).unlink()
    assert shown > 50, "the lines show nothing"


@pytest.mark.parametrize("gitdir", ["{top}/planted", "planted"])
def test_a_git_file_leads_ripgrep_to_an_ignore_file(project: Path, gitdir: str) -> None:
    planted = project / "planted"
    (planted / "info").mkdir(parents=True)
    (planted / "commondir").write_text(f"{planted}\n")
    (planted / "info" / "exclude").write_text("!.env\n")
    (project / "src" / ".git").write_text(f"gitdir: {gitdir.format(top=project)}\n")
    assert printed(project, "secret", "src"), "the case shows nothing"
    assert judged(project, "rg secret src") == "ask"


def test_a_worktree_of_the_users_is_read_where_git_keeps_its_ignore_file(project: Path, tmp_path: Path) -> None:
    git(project, "commit", "-qm", "x", "--allow-empty")
    git(project, "worktree", "add", "-q", str(tmp_path / "tree"))
    (tmp_path / "tree" / ".env").write_text(SECRET)
    assert judged(tmp_path / "tree", "rg secret") == "allow"
    (project / ".git" / "info" / "exclude").write_text("!.env\n")
    assert printed(tmp_path / "tree", "secret"), "the case shows nothing"
    assert judged(tmp_path / "tree", "rg secret") == "ask"


@pytest.mark.parametrize("line", ["rg -t all K", "rg -tyaml K", "rg --type all K"])
def test_a_type_takes_back_what_a_dot_hides(tmp_path: Path, line: str) -> None:
    (tmp_path / ".env.yaml").write_text(SECRET)
    assert judged(tmp_path, "rg K") == "allow"
    assert judged(tmp_path, line) == "ask"


@pytest.mark.parametrize("file", [".rgignore", ".ignore", ".gitignore", "src/.ignore"])
def test_a_line_that_writes_what_ripgrep_obeys_and_runs_it_is_asked_about(tmp_path: Path, file: str) -> None:
    """Its words name no secret."""
    for name in (".env", "src/.env"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SECRET)
    assert judged(tmp_path, f"cat list > {file}; rg K") == "ask"
    assert judged(tmp_path, f"rg K; cat list > {file}") == "ask"
    assert judged(tmp_path, f"cat list > {file}") == judged(tmp_path, "cat list > kept; rg K") == "allow"
