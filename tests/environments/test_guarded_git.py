"""git in a guarded workspace: what it cannot do, and what is not made for the user's to read."""

from __future__ import annotations

from pathlib import Path

import pytest
from guarded_workspace import repository, said, within
from users_git import git

from etude.environments.local.workspace import ConfinedWorkspace


@pytest.fixture
def project(outer: Path) -> Path:
    return repository(outer)


def test_what_git_cannot_do_leaves_what_the_documentation_says(project: Path) -> None:
    """docs/agent.md, "What git cannot do inside"."""
    git(project, "update-ref", "refs/remotes/o/b", "HEAD")
    git(project, "config", "remote.o.fetch", "+refs/heads/*:refs/remotes/o/*")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        for step, left in {
            "git branch one; git branch -m one two": "main two",
            "git branch -D two": "main",
            "git checkout -q --track o/b": "b main",
            "git worktree add tree": "b main tree",
            "git submodule add ./ sub; git remote add p x; git init deps || rmdir deps": "b main tree",
        }.items():
            shown = (await workspace.exec(step)).output.decode()
            assert "If git stopped halfway, ask the user to look at `git status`" in shown, step
            shown = await said(workspace, "git for-each-ref --format='%(refname:short)' refs/heads; git remote; ls")
            assert shown.split() == [*left.split(), "o", "a.txt"], step

    within(project, scenario)


def test_no_pipe_is_made_where_git_reads(project: Path) -> None:
    """The user's git, and undo, would wait for ever for somebody to write it."""
    ways = ("mkfifo {}", "mkfifo p; mv p {}; rm p", "mkfifo p; ln p {}; rm p", "mknod {} p")

    async def scenario(workspace: ConfinedWorkspace) -> None:
        await said(workspace, "mkdir -p b; git branch other; mkfifo b/plain b/index; mv b/plain c; ln c d; rm b/index")
        for name in ("b/.gitignore", ".GITATTRIBUTES", ".gitmodules", ".git/refs/heads/p", ".git/packed-refs"):
            for way in ways:
                shown = (await workspace.exec(way.replace("{}", name))).output.decode()
                assert f"only the user may write it: {name}." in shown, (way, shown)

    within(project, scenario)


def test_what_is_listed_is_not_lost_to_git(project: Path) -> None:
    """git checks a file out by removing it first: it could not put a listed one back, and would commit the loss."""
    listed = (".husky/pre-commit", ".tool-versions", ".vscode/settings.json", ".envrc")
    for branch in ("main", "other"):
        git(project, "checkout", "-q", "-B", branch)
        for name in listed:
            (project / name).parent.mkdir(exist_ok=True)
            (project / name).write_text(f"{branch}\n")
        (project / "plain").write_text(f"{branch}\n")
        git(project, "add", "-A", "-f")
        git(project, "commit", "-qm", branch)

    async def scenario(workspace: ConfinedWorkspace) -> None:
        await workspace.exec("git checkout -q main; git stash -q; git reset -q --hard; rm -rf .vscode .envrc")

    within(project, scenario)
    assert all((project / name).is_file() for name in listed)
    assert (project / "plain").read_text() in ("main\n", "other\n")
