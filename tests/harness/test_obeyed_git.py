"""A repository that makes git run a program, when it is only asked to show something, is asked about: with a real git.

Every plant is tried twice: git must run it, or the case shows nothing, and the judge must ask first.
"""

# ruff: noqa: E501  (a config is read best on one line)
from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import debian_packages
import pytest

from etude.harness.permissions import Judge, PermissionConfig, WorkspacePaths
from etude.harness.permissions.gitconfig import FOREIGN


def verdict(judge: Judge, line: str) -> str:
    return judge.judge("run_terminal_cmd", {"command": line}).verdict


PLANTED: dict[str, tuple[str, Callable[[Path, str], None]]] = {}


def plant(line: str) -> Callable[[Callable[[Path, str], None]], Callable[[Path, str], None]]:
    def keep(function: Callable[[Path, str], None]) -> Callable[[Path, str], None]:
        PLANTED[function.__name__] = (line, function)
        return function

    return keep


def git(directory: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=directory, check=True)


@plant("git diff")
def external_diff(project: Path, program: str) -> None:
    git(project, "config", "diff.external", program)


@plant("git diff")
def text_conversion(project: Path, program: str) -> None:
    (project / ".git" / "info").mkdir(exist_ok=True)
    (project / ".git" / "info" / "attributes").write_text("*.py diff=x\n")
    git(project, "config", "diff.x.textconv", program)


@plant("git status")
def file_system_monitor(project: Path, program: str) -> None:
    with (project / ".git" / "config").open("a") as file:
        file.write(f"[Core] FSMonitor = {program}\n")


@plant("git diff")
def clean_filter(project: Path, program: str) -> None:
    (project / ".gitattributes").write_text("*.py filter=x\n")
    git(project, "config", "filter.x.clean", f"{program} && cat")


@plant("git status")
def included(project: Path, program: str) -> None:
    (project / "more").write_text(f"[core]\nfsmonitor = {program}\n")
    git(project, "config", "include.path", "../more")


@plant("git status")
def hook(project: Path, program: str) -> None:
    (project / ".git" / "hooks").mkdir(exist_ok=True)
    (project / ".git" / "hooks" / "post-index-change").symlink_to(program)
    os.utime(project / "src" / "b.py", (1, 1))  # so that git looks again, and writes down what it saw


@plant("cd src/bare && git status --short || git ls-files")
def bare_repository_among_the_files(project: Path, program: str) -> None:
    git(project, "clone", "-q", "--bare", ".", "src/bare")
    git(project / "src" / "bare", "config", "core.bare", "false")
    git(project / "src" / "bare", "config", "core.worktree", str(project))
    git(project / "src" / "bare", "config", "core.fsmonitor", program)


@plant("git status")
def repository_in_the_repository(project: Path, program: str) -> None:
    git(project, "clone", "-q", ".", "inner")
    git(project / "inner", "config", "core.fsmonitor", program)
    git(project, "-c", "advice.addEmbeddedRepo=false", "add", "inner")


def config(text: str, line: str = "git status", name: str = ".git/config") -> tuple[str, Callable[[Path, str], None]]:
    def planted(project: Path, program: str) -> None:
        (project / "more").write_text(f"[core]\nfsmonitor = {program}\n")
        with (project / name).open("a") as file:
            file.write(text.replace("EVIL", program))

    return line, planted


_PROMISED = "[extensions]\n\tpartialClone = far\n[core]\n\trepositoryFormatVersion = 1\n"
_MISSING = "git cat-file -p 0123456789012345678901234567890123456789"
PLANTED |= {
    # as only git reads its own language
    "two headers in a line": config("[x][core]fsmonitor = EVIL\n"),
    "a header behind a value": config("[x] y\n[core] ; x\n\tfsmonitor = EVIL\n"),
    "a line that goes on": config("[core]\n\tfsmonitor = \\\nEVIL\n"),
    "a value in pieces": config('[core]\n\tfsmonitor = ""EVIL"" ; x\n'),
    "a subsection": config('[core ""][core]fsmonitor=EVIL\n'),
    "a value behind a harmless one": config("[core]\n\tfsmonitor = false\n\tfsmonitor = EVIL\n"),
    "a comment in an include's header": config("[include] ;x\n\tpath = ../more\n"),
    "an include on one line": config("[include]path = ../more\n"),
    "an include for every place": config('[includeIf "gitdir:/"]path = ../more\n'),
    # when an object is missing it is fetched
    "a transport that is a command": config(f'{_PROMISED}[remote "far"]\n\turl = ext::EVIL\n[protocol "ext"]\n\tallow = always\n', _MISSING),
    "a remote's program": config(f'{_PROMISED}[remote "far"]\n\turl = .\n\tuploadpack = EVIL\n', _MISSING),
    "a promisor by its own word": config('[core]\n\trepositoryFormatVersion = 1\n[remote "far"]\n\tpromisor\n\turl = .\n\tuploadpack = EVIL\n', _MISSING),
    "a command for ssh": config(f'{_PROMISED}[remote "far"]\n\turl = ssh://far/x\n[core]\n\tsshCommand = EVIL\n', _MISSING),
    "a proxy of git's": config(f'{_PROMISED}[remote "far"]\n\turl = git://far/x\n[core]\n\tgitProxy = EVIL\n', _MISSING),
    "an address put in place of another": config(f'{_PROMISED}[remote "far"]\n\turl = ssh://far/x\n[url "ext::EVIL #"]\n\tinsteadOf = ssh:\n[protocol "ext"]\n\tallow = always\n', _MISSING),
    "a remote that is an address": config("[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tpartialClone = ext::EVIL\n[protocol]\n\tallow = always\n", _MISSING),
}  # fmt: skip


@plant("git log -1")
def a_program_for_signatures(project: Path, program: str) -> None:
    git(project, "config", "gpg.program", program)
    git(project, "config", "log.showSignature", "true")  # as `--format=%G?` does, which always asks
    signed = subprocess.run(["git", "cat-file", "-p", "HEAD"], cwd=project, capture_output=True, check=True).stdout
    text = signed.replace(
        b"\n\n", b"\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n", 1
    )
    write = ["git", "hash-object", "-t", "commit", "-w", "--stdin"]
    name = subprocess.run(write, cwd=project, input=text, capture_output=True, check=True).stdout.decode().strip()
    git(project, "reset", "-q", name)


@plant("git log --alternate-refs")
def refs_of_elsewhere(project: Path, program: str) -> None:
    git(project, "clone", "-q", "--bare", ".", "lent")
    (project / ".git" / "objects" / "info" / "alternates").write_text(f"{project}/lent/objects\n")
    git(project, "config", "core.alternateRefsCommand", program)


@plant("git status")
def a_head_that_leads_to_no_file(project: Path, program: str) -> None:
    """To git it is a branch that is not born yet."""
    git(project, "config", "core.fsmonitor", program)
    (project / ".git" / "HEAD").unlink()
    (project / ".git" / "HEAD").symlink_to("refs/heads/later")


@plant("git status")
def a_link_to_a_file_that_leads_to_a_repository(project: Path, program: str) -> None:
    git(project, "config", "core.fsmonitor", program)
    (project / ".git").rename(project / "store")
    (project / "leads").write_text("gitdir: store\n")
    (project / ".git").symlink_to("leads")


@plant("git status")
def a_common_directory_by_a_link(project: Path, program: str) -> None:
    git(project, "config", "core.fsmonitor", program)
    common = project / "store"
    (project / ".git").rename(common)
    (project / ".git").mkdir()
    (common / "HEAD").rename(project / ".git" / "HEAD")
    (common / "HEAD").write_text("ref: refs/heads/main\n")
    (project / "leads").write_text("../store\n")
    (project / ".git" / "commondir").symlink_to("../leads")


@plant("cd src && git status")
def a_directory_that_is_nearly_a_repository(project: Path, program: str) -> None:
    """git passes over it."""
    git(project, "config", "core.fsmonitor", program)
    (project / "src" / "objects").mkdir()
    (project / "src" / "HEAD").write_text("nothing\n")


@plant("git -C src -C bare status")
def directories_one_after_the_other(project: Path, program: str) -> None:
    bare_repository_among_the_files(project, program)


@plant("git diff")
def an_extension_of_a_filter_that_is_known(project: Path, program: str) -> None:
    """git-lfs itself is known, what its own keys have it run is not."""
    debian_packages.program("git-lfs", "git-lfs")
    git(project, "config", "filter.lfs.clean", "git-lfs clean -- %f")
    git(project, "config", "lfs.extension.x.clean", program)
    git(project, "config", "lfs.extension.x.priority", "0")
    (project / ".gitattributes").write_text("*.py filter=lfs\n")


@pytest.fixture
def repository(outer: Path) -> Path:
    project = outer / "repository"
    (project / "src").mkdir(parents=True)
    for name in ("a.py", "b.py"):
        (project / "src" / name).write_text("a = 1\n")
    git(project, "init", "-qb", "main")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    return project


@pytest.mark.parametrize("name", PLANTED)
def test_git_that_would_run_something_is_asked_about(repository: Path, outer: Path, name: str) -> None:
    program = outer / "program"
    program.write_text(f"#!/bin/sh\necho sang >> {outer}/sang\n")
    program.chmod(0o755)
    line, planted = PLANTED[name]
    judge = Judge(PermissionConfig(), WorkspacePaths(repository), env={})
    assert verdict(judge, line.replace("src/bare", "src")) == "allow"
    planted(repository, str(program))
    (repository / "src" / "a.py").write_text("a = 2 + 2\n")
    assert verdict(judge, line) == "ask"
    subprocess.run(["sh", "-c", line], cwd=repository, capture_output=True)
    assert (outer / "sang").read_text(), "git does run it: there was something to ask about"


_USUAL = """[remote "far"] ; a partial clone
\turl = git@example.invalid:x/y.git
\tfetch = +refs/heads/*:refs/remotes/far/*
\tpromisor = true
\tpartialclonefilter = blob:none
[branch "main"]
\tremote = far
\tmerge = refs/heads/main
[user]
\tname = "Ada; L."
[alias]
\tst = status
[diff "py"]
\txfuncname = "^def .*"
[submodule]
\tactive = .
[lfs "https://example.invalid/x/info/lfs"]
\taccess = basic
"""


def test_what_only_fetching_obeys_is_no_question_where_nothing_is_fetched(repository: Path) -> None:
    judge = Judge(PermissionConfig(), WorkspacePaths(repository), env={})
    git(repository, "config", "core.sshCommand", "ssh -i ~/.ssh/work")
    git(repository, "config", "remote.origin.uploadpack", "/opt/pack")
    assert verdict(judge, "git status") == "allow"
    git(repository, "config", "remote.origin.url", "git@example.invalid:x")
    git(repository, "config", "remote.origin.promisor", "true")
    assert verdict(judge, "git status") == "ask"


@pytest.mark.parametrize(
    "text", ["[core\n", '[core]\n\tfilemode = tr"ue\n', "[core]\n\tx = \0\n", "[later]\n\tkey = x\n"]
)
def test_a_config_that_is_not_understood_is_asked_about(repository: Path, text: str) -> None:
    judge = Judge(PermissionConfig(), WorkspacePaths(repository), env={})
    with (repository / ".git" / "config").open("a") as file:
        file.write(text)
    assert verdict(judge, "git status") == "ask"


_OTHERS = """[remote "origin"]
\tgh-resolved = base
\tannex-uuid = 1
\tmirror = true
[branch "main"]
\tgithub-pr-owner-number = a#b#1
[gitflow "branch"]
\tmaster = main
[gitflow "path"]
\thooks = .git/hooks
[annex]
\tuuid = 1
[jj]
\tx = y
[stgit]
\tautosign = x
[cz]
\tname = x
[svn-remote "svn"]
\turl = x
"""


def test_what_other_programs_keep_in_a_configuration_is_no_question(repository: Path) -> None:
    with (repository / ".git" / "config").open("a") as file:
        file.write(_OTHERS)
    judge = Judge(PermissionConfig(), WorkspacePaths(repository), env={})
    assert [line for line in ("git status", "git diff", "git log -p") if verdict(judge, line) != "allow"] == []
    for key in (
        "annex.freezecontent-command",
        "delta.pager",
        "lfs.extension.x.clean",
        "remote.origin.later",
        "hook.x.command",
    ):
        git(repository, "config", key, "program")
        assert verdict(judge, "git status") == "ask", key
        git(repository, "config", "--unset", key)


def test_no_section_and_no_variable_of_git_s_own_is_taken_for_another_program_s() -> None:
    def told(what: str) -> list[str]:
        asked = ["git", "help", what]
        return subprocess.run(asked, capture_output=True, check=True, text=True).stdout.lower().split()

    sections, variables = told("--config-sections-for-completion"), told("--config-for-completion")
    assert "core" in sections and "remote.pushdefault" in variables
    assert set(FOREIGN).isdisjoint(sections)
    assert [name for name in variables if "-" in name.rpartition(".")[2]] == []


def test_the_list_of_submodules_is_looked_at_unasked_where_they_run_nothing(repository: Path) -> None:
    judge = Judge(PermissionConfig(), WorkspacePaths(repository), env={})
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "./", "inner")
    lines = ("git submodule", "git submodule status", "git submodule status --recursive")
    assert [line for line in lines if verdict(judge, line) != "allow"] == []
    for line in ("git submodule update", "git submodule status; git submodule sync", "git submodule foreach ls"):
        assert verdict(judge, line) == "ask", line
    git(repository / "inner", "config", "core.fsmonitor", "program")
    assert [line for line in lines if verdict(judge, line) != "ask"] == []


def test_git_of_an_ordinary_repository_is_not_asked_about(repository: Path) -> None:
    git(repository, "config", "core.fsmonitor", "false")
    git(repository, "config", "remote.origin.url", "https://example.invalid/x")
    with (repository / ".git" / "config").open("a") as file:
        file.write(_USUAL)
    git(repository, "worktree", "add", "-q", "--detach", "tree")
    judge = Judge(PermissionConfig(), WorkspacePaths(repository), env={})
    for line in ("git status", "git diff", "cd tree && git status", "git -C tree log -p", "git show HEAD:src/a.py"):
        assert verdict(judge, line) == "allow", line


def test_a_repository_with_hooks_of_its_own_is_looked_at_unasked(tmp_path):
    """As husky and `git lfs install --local` leave it: reading runs none of its hooks, and no program but git-lfs."""
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "core.hooksPath", ".husky/_")
    git(tmp_path, "config", "filter.lfs.clean", "git-lfs clean -- %f")
    git(tmp_path, "config", "filter.lfs.process", "git-lfs filter-process")
    judged = {"command": "git status --short"}
    assert Judge(PermissionConfig(), WorkspacePaths(tmp_path)).judge("run_terminal_cmd", judged).verdict == "allow"
    hook = tmp_path / ".husky" / "_" / "post-index-change"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    assert Judge(PermissionConfig(), WorkspacePaths(tmp_path)).judge("run_terminal_cmd", judged).verdict == "ask"
    theirs = PermissionConfig(allow=("run(git status *)",))
    assert Judge(theirs, WorkspacePaths(tmp_path)).judge("run_terminal_cmd", judged).verdict == "allow"
