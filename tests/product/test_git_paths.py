"""git commands that the sandbox's guard would stop halfway are denied before they begin; all others are let be."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from proofs import one_of_each
from users_git import git

from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.permissions import Decision, PermissionConfig
from etude.product.agent import _judge

LISTED = ".vscode/settings.json"
WRITES = [
    "git checkout vs",
    "git switch -q vs",
    "cd src && git checkout -q vs; cd ..",
    "git -C src checkout vs",
    "git merge vs",
    "git merge --no-ff -m 'a b' vs",
    "git rebase vs",
    "git cherry-pick vs",
    "git cherry-pick main..vs",
    "git reset --hard vs",
    "git pull -q . vs",
    "git -C /workspace merge vs",
    "git apply vs.patch",
    "git apply /workspace/vs.patch",
    "git am -q < vs.patch",
    "git checkout -q -b new vs",
    "git checkout -q other && git merge -q vs",
]  # fmt: skip
STASHES = [
    "git stash",
    "git stash push -m x",
    "git rebase -q --autostash other",
    "git merge --autostash -q other",
    "git reset -q --hard",
    "git checkout -q -f other",
]  # fmt: skip
FINE = [
    "git checkout -q other",
    "git switch -q -c new",
    "git checkout -q -b new other",
    "git merge -q other",
    "git rebase -q other",
    "git cherry-pick other",
    "git commit -q --allow-empty -m vs",
    "git stash list",
    "git stash push -q -- a.txt",
    "git apply other.patch",
    "git apply --check vs.patch",
    "cd src && git apply ../vs.patch; cd ..",
    "git reset -q other",
    "git merge -q -s ours vs",
    "git checkout vs -- b.txt",
    "git log vs",
    "git branch x vs",
]  # fmt: skip


@pytest.fixture
def project() -> Iterator[Path]:
    outer = Path(tempfile.mkdtemp(prefix="etude-test-", dir="/var/tmp"))  # the sandbox has a /tmp of its own
    root = outer / "project"
    (root / ".vscode").mkdir(parents=True)
    (root / "src").mkdir()
    (root / "src" / "c.txt").write_text("c\n")
    (root / LISTED).write_text("{}\n")
    (root / "a.txt").write_text("a\n")
    git(root, "init", "-q")
    git(root, "config", "user.name", "a")
    git(root, "config", "user.email", "a@b")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    git(root, "checkout", "-qb", "vs")
    (root / LISTED).write_text('{"a": 1}\n')
    (root / "b.txt").write_text("b\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "vs")
    (outer / "vs.patch").write_text(git(root, "format-patch", "-1", "--stdout"))
    git(root, "checkout", "-qb", "other", "main")
    (root / "d.txt").write_text("d\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "other")
    (outer / "other.patch").write_text(git(root, "format-patch", "-1", "--stdout"))
    git(root, "checkout", "-q", "main")
    for name in ("vs.patch", "other.patch"):
        (outer / name).rename(root / name)
    yield root
    shutil.rmtree(outer)


def asked_and_run(project: Path, line: str) -> tuple[Decision, str, int]:
    """What the judge says of it, and what it prints when it is run all the same."""

    async def scenario() -> tuple[Decision, str, int]:
        config = WorkspaceConfig()
        workspace = await open_workspace(project, config)
        try:
            rules = PermissionConfig(allow=("run",))
            decision = _judge(rules, project, config, (), workspace).judge("run_terminal_cmd", {"command": line})
            done = await workspace.exec(line)
            return decision, done.output.decode(), done.exit_code
        finally:
            await workspace.destroy()

    return asyncio.run(scenario())


def verb(line: str) -> str:
    """What git is asked to do."""
    found = re.search(r"git (?:-C \S+ )?(\S+)", line)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("line", one_of_each(0.45, WRITES, verb))
def test_what_would_write_a_listed_file_is_denied_before_it_begins(project: Path, line: str) -> None:
    decision, printed, _ = asked_and_run(project, line)
    assert f"only the user may write it: {LISTED}" in printed, "the guard does stop it"
    assert decision.verdict == "deny" and LISTED in decision.explain(), decision.explain()


@pytest.mark.parametrize("line", one_of_each(0.45, STASHES, verb))
def test_what_would_put_back_a_change_of_the_users_is_denied_before_it_begins(project: Path, line: str) -> None:
    (project / LISTED).write_text('{"mine": 1}\n')
    (project / "a.txt").write_text("mine\n")
    decision, printed, _ = asked_and_run(project, line)
    assert f"only the user may write it: {LISTED}" in printed, "the guard does stop it"
    assert decision.verdict == "deny" and "not committed" in decision.explain(), decision.explain()


@pytest.mark.parametrize(
    "line",
    one_of_each(
        0.45,
        ["git stash pop stash@{1}", "git stash apply -q 1", "git stash pop --index 1", "git stash branch b stash@{1}"],
    ),
)
def test_any_stash_that_holds_a_listed_file_is_looked_at(project: Path, line: str) -> None:
    for name in (LISTED, "a.txt"):
        (project / name).write_text("stashed\n")
        git(project, "stash")
    decision, printed, _ = asked_and_run(project, line)
    assert f"only the user may write it: {LISTED}" in printed, "the guard does stop it"
    assert decision.verdict == "deny" and LISTED in decision.explain(), decision.explain()


@pytest.mark.parametrize(
    "line",
    one_of_each(
        0.45, ["git merge -q", "git rebase -q", "git rebase -q -f", "git pull -q", "git pull -q --rebase"], verb
    ),
)
@pytest.mark.parametrize(("follows", "verdict"), [("vs", "deny"), ("other", "allow")])
def test_what_a_branch_follows_is_looked_at_where_none_is_named(
    project: Path, line: str, follows: str, verdict: str
) -> None:
    git(project, "branch", "-q", f"--set-upstream-to={follows}", "main")
    decision, printed, _ = asked_and_run(project, line)
    assert ("only the user may write it" in printed) is (verdict == "deny"), printed
    assert decision.verdict == verdict, decision.explain()


@pytest.mark.parametrize("line", one_of_each(0.4, FINE, verb))
def test_what_writes_no_listed_file_is_let_be(project: Path, line: str) -> None:
    decision, printed, code = asked_and_run(project, line)
    assert decision.verdict == "allow", decision.explain()
    assert code == 0 and "only the user may write it" not in printed, printed


def test_a_commit_is_denied_where_a_hook_would_stash(project: Path) -> None:
    (project / LISTED).write_text('{"mine": 1}\n')
    (project / "a.txt").write_text("mine\n")
    hook = project / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n# pre-commit by hand\ngit diff --check\n")
    hook.chmod(0o755)
    line = "git add a.txt && git commit -qm x"
    assert asked_and_run(project, line)[0].verdict == "allow"
    git(project, "reset", "-q", "--soft", "HEAD^")
    hook.write_text("#!/bin/sh\nset -e\ngit stash -q --keep-index\ngit stash pop -q\n")
    for fine in ("git commit -qnm x", "git commit -qam x", "git add -A && git commit -qm x"):
        git(project, "read-tree", "HEAD")
        assert asked_and_run(project, f"true || {fine}")[0].verdict == "allow", fine
    decision, printed, _ = asked_and_run(project, line)
    assert f"only the user may write it: {LISTED}" in printed
    assert decision.verdict == "deny" and LISTED in decision.explain()
