"""What is told of the guard: before a call that it would refuse, and of what a command was refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from guarded_workspace import example, python, repository, said, within
from users_git import git

from etude.environments.local.planted import ANYWHERE, AT_ANY_DEPTH, AT_ROOTS, IN_PROJECTS
from etude.environments.local.workspace import ConfinedWorkspace


@pytest.fixture
def project(outer: Path) -> Path:
    return repository(outer)


def test_the_model_is_told_what_was_refused_once(project: Path) -> None:
    async def scenario(workspace: ConfinedWorkspace) -> None:
        shown = await said(workspace, "for i in 1 2 3; do echo > .envrc; done; mkdir .vscode; true")
        assert shown.count("only the user may write it: .envrc, .vscode.") == 1
        assert "only the user" not in await said(workspace, "echo fine")
        shown = await said(workspace, "for i in $(seq 9); do mkdir n$i; mkdir n$i/.git; done; true")
        assert "n5/.git and 4 more" in shown
        assert await workspace.guarded() == (pytest.approx(13, abs=30), 13)
        with pytest.raises(PermissionError, match="only the user may write it"):
            await workspace.write_file("/workspace/.vscode/tasks.json", b"{}")
        await said(workspace, "git init -q /tmp/own && cd /tmp/own && git config a.b c && mkdir .vscode")

    within(project, scenario)


def test_each_call_is_told_what_it_was_refused_itself(project: Path) -> None:
    """Not what another was: one that runs beside it, what an earlier one has left running, a tool that writes."""
    late = "(until [ -e go ]; do sleep 0.02; done; echo > .envrc; touch done) > /dev/null 2>&1 &"

    async def scenario(workspace: ConfinedWorkspace) -> None:
        with pytest.raises(PermissionError):
            await workspace.write_file("/workspace/.exrc", b"")
        assert "only the user" not in await said(workspace, "echo fine")
        assert "only the user" not in await said(workspace, late)
        shown = await said(workspace, "mkdir .idea; touch go; until [ -e done ]; do sleep 0.02; done")
        assert "only the user may write it: .idea." in shown
        names = (".vscode", ".zed", ".fleet", ".helix")
        meet = "mkdir -p met; touch met/x{0}; until [ $(ls -A met | wc -l) = 4 ]; do sleep 0.02; done; mkdir {0}; true"
        both = await asyncio.gather(*(said(workspace, meet.format(name)) for name in names))
        assert [f"write it: {name}." in shown for name, shown in zip(names, both, strict=True)] == [True] * 4
        assert "write it: .vscode." in await said(workspace, "setsid mkdir .vscode; true"), "a session of its own"
        shown = await said(workspace, python(r"import os; os.mkdir('a\nb'); os.mkdir('a\nb/.git')"), 1)
        assert "write it: a?b/.git." in shown, "a name writes no lines of its own"

    within(project, scenario)


def test_what_git_makes_for_a_moment_is_told_by_the_name_it_was_to_have(project: Path) -> None:
    async def scenario(workspace: ConfinedWorkspace) -> None:
        assert "write it: .git/config." in await said(workspace, "git config a.b c; git remote add o /x; true")
        shown = await said(workspace, "git gc -q; git repack -adq; git update-server-info; git pack-refs --all; true")
        assert "only the user" not in shown, shown
        await said(workspace, "echo > .git/hooks.lock", 2)
        await said(workspace, "mkdir -p .git/objects/info; echo > .git/objects/info/alternates.lock", 2)
        await said(workspace, "echo > .git/config.lock", 2)
        await said(workspace, "echo > .git/index.lock; rm .git/index.lock")

    within(project, scenario)


_TRIED = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        new = not os.path.exists(path)
        open(path, "a").close()
        verdict = "written"
        if new:
            os.unlink(path)
    except (PermissionError, IsADirectoryError):
        verdict = "refused"
    print(verdict, path)
"""


def test_what_is_said_before_a_write_is_what_the_guard_does(project: Path) -> None:
    """The list is read twice, here and in the guest: of the same paths both say the same."""
    (project / "deps" / ".git").mkdir(parents=True)
    git(project / "deps", "init", "-q")
    (project / "conf").mkdir()
    (project / ".zed").symlink_to("conf")
    names = [
        *(example(name) for name in (*ANYWHERE, *AT_ANY_DEPTH, *IN_PROJECTS, *AT_ROOTS)),
        "plain",
        "vscode",
        "README.md",
    ]
    inside = (
        "config", "config.lock", "hooks/x", "HEAD", "index.lock", "objects/info/alternates", "refs/heads/x",
        "info/exclude", "COMMIT_EDITMSG", "modules/x/config", "worktrees/x", "ORIG_HEAD.lock", "other",
    )  # fmt: skip
    below = [
        f"{root}{name}{more}"
        for root in ("", "deps/", "src/p/", "node_modules/q/")
        for name in names
        for more in ("", "/x")
    ]
    paths = [*below, *(f"{root}.git/{name}" for root in ("", "deps/") for name in inside), "conf/x", ".ZED/x", "own/k"]

    async def scenario(workspace: ConfinedWorkspace) -> None:
        expected = {path: workspace.refuses(path) for path in paths}
        await workspace.write_file("/tmp/t.py", _TRIED.encode())
        await said(workspace, f"python3 -S /tmp/t.py {' '.join(paths)} > /tmp/done")  # more than is shown of an output
        done = dict(reversed(line.split()) for line in (await workspace.read_file("/tmp/done")).decode().splitlines())
        assert {path: "written" if name is None else "refused" for path, name in expected.items()} == done
        assert expected[".vscode/x"] == ".vscode" and expected["src/p/.envrc"] == ".envrc"
        assert expected[".aiderx"] == ".aider*" and expected[".git/hooks/x"] == "" and expected["own/k"] == ""
        assert workspace.refuses(".git/hooks/x", removed=True) is None
        assert workspace.refuses(".vscode/x", removed=True) == ".vscode"

    within(project, scenario, protected=(".vscode", "own"))
    for config in ({"guard": "existing"}, {"unguarded": (".vscode",)}):

        async def given_up(workspace: ConfinedWorkspace) -> None:
            assert workspace.refuses(".vscode/x") is None

        within(project, given_up, **config)


PROMISED = (
    ".git", ".hg", ".envrc", ".vscode", ".idea", ".zed", ".devcontainer", ".vimrc", ".exrc", ".nvim.lua",
    ".dir-locals.el", ".gdbinit", ".lldbinit", ".pdbrc", ".Rprofile", ".RData", ".irbrc", ".claude", ".mcp.json",
    ".cursor", ".gemini", ".codex", "opencode.json", ".amp", ".qwen", ".junie", ".crush.json", ".mise.toml",
    ".pi", ".theia", ".prototools", ".mvn/jvm.config",
    ".tool-versions", "rust-toolchain", ".npmrc", ".yarnrc.yml", ".pnpmfile.cjs", ".etude", ".helix", ".husky",
    ".bashrc", ".gitconfig", ".ssh",
)  # fmt: skip
"""Not made from the list: a name that is lost there is missed here."""


def test_the_names_that_the_pages_promise_are_refused(project: Path) -> None:
    async def scenario(workspace: ConfinedWorkspace) -> None:
        await said(workspace, f"for name in {' '.join(PROMISED)}; do mkdir -p x/$name; done > /tmp/said 2>&1; true")
        for name in PROMISED[:-6]:
            assert not (project / "x" / name).exists(), name
        for name in PROMISED:
            assert workspace.refuses(name) is not None, name

    within(project, scenario)
