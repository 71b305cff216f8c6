"""Nothing that a command writes in the workspace is obeyed by the user's own programs, which are the real ones here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest
from debian_packages import program
from guarded_workspace import within
from installed import npm
from planted_cases import ANOTHER_AGENT, CASES, Case, Project
from proofs import one_of_each

from etude.environments.base import Sandbox
from etude.environments.local.named import ReferencedPaths
from etude.environments.local.planted import rules
from etude.environments.local.workspace import ConfinedWorkspace
from etude.harness.permissions.store import load_permissions

_FIRST = "git init -q && git add -A && git commit -qm first"
_WORKTREE = f"mv project main && cd main && {_FIRST} && git worktree add -q --detach ../project && cp evil ../project"
_MADE: dict[Project, str] = {
    "none": "true",
    "plain": f"cd project && {_FIRST}",
    "bare git": f"cd project && {_FIRST} && rm -rf .git/hooks .git/info",
    "hookless": f"cd project && {_FIRST} && rm -rf .git/hooks .git/info",
    "nested": f"cd project && git init -q deps && git -C deps commit -q --allow-empty -m x && {_FIRST}",
    "worktree": _WORKTREE,
    "other worktree": f"{_WORKTREE} && git worktree add -q --detach ../second",
    "submodule": f"mkdir lib && (cd lib && touch l && {_FIRST}) && cd project && {_FIRST} && "
    "git submodule --quiet add ../lib sub && git commit -qm sub",
    "mercurial": "cd project && hg init && hg add -q a.txt && hg commit -qu a -m first",
}
_REFUSED = re.compile(r"only the user may write it: (.*)\. Below /tmp it may be written")
_USER = '[user]\nname = a\nemail = a@b\n[init]\ndefaultBranch = main\n[protocol "file"]\nallow = always\n'


@dataclass(frozen=True)
class Place:
    """One user with one project, and a program of theirs that leaves a trace when it is run."""

    root: Path

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def canary(self) -> Path:
        return self.root / "canary"

    def run(self, text: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        home = self.root / "home"
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb"}
        env |= {"GIT_CONFIG_NOSYSTEM": "1", "XDG_CONFIG_HOME": str(home / ".config")}
        return subprocess.run(
            ["sh", "-c", self.filled(text)], cwd=cwd or self.project, env=env, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip

    def filled(self, text: str) -> str:
        return text.replace("CANARY", str(self.canary)).replace("EVIL", str(self.root / "evil"))


def place(root: Path, case: Case) -> Place:
    made = Place(root)
    (root / "home" / ".config" / "direnv").mkdir(parents=True)
    (root / "home" / ".gitconfig").write_text(_USER)
    (root / "home" / ".vimrc").write_text("set exrc\n")
    (root / "home" / ".config" / "direnv" / "direnv.toml").write_text(f'[whitelist]\nprefix = ["{root}"]\n')
    (root / "evil").write_text(f"#!/bin/sh\ntouch {made.canary}\n")
    (root / "evil").chmod(0o755)
    made.project.mkdir()
    (made.project / "a.txt").write_text("a\n")
    shutil.copy(root / "evil", made.project)
    for text, cwd in ((_MADE[case.project], root), (case.given, made.project)):
        done = made.run(text, cwd)
        assert done.returncode == 0, done.stderr
    return made


def plant_outside(place: Place, case: Case) -> None:
    if case.way == "write_file":
        shutil.copy(place.root / "evil", place.project / "x")
        (place.project / case.plant).parent.mkdir(parents=True, exist_ok=True)
        (place.project / "x").rename(place.project / case.plant)
    elif case.way == "upload":
        place.run(f"({case.plant}) > {place.root}/tar; rm -rf x y; tar xf {place.root}/tar")
    else:
        place.run(f"{case.plant}\nwait")
    place.canary.unlink(missing_ok=True)  # where planting it already made it


async def plant_inside(place: Place, case: Case, workspace: Sandbox) -> None:
    """Asserts that the guard refused it, for the very path that is meant."""
    if case.way == "write_file":
        with pytest.raises(PermissionError, match=f"only the user may write it: .*{re.escape(case.refused)}'"):
            await workspace.write_file(f"/workspace/{case.plant}", (place.root / "evil").read_bytes())
    elif case.way == "upload":
        place.run(f"({case.plant}) > {place.root}/tar; rm -rf x y")
        with pytest.raises(PermissionError, match=f"only the user may write it: .*{re.escape(case.refused)}'"):
            await workspace.upload((place.root / "tar").read_bytes(), "/workspace")
    else:
        done = await workspace.exec(place.filled(case.plant))
        if case.way == "background":
            done = await workspace.exec("until [ -e done ]; do sleep 0.05; done", timeout_s=30)
            assert isinstance(workspace, ConfinedWorkspace) and (await workspace.guarded())[1] > 0
            assert b"only the user may write it" not in done.output, "a later call is told what it was refused itself"
            return
        said = _REFUSED.search(done.output.decode())
        assert said is not None, done.output.decode()
        named, meant = said[1].split(", "), case.refused.split(", ")
        assert all(any(fnmatch(path, each) for each in meant) for path in named), done.output.decode()
        assert any(fnmatch(path, meant[0]) for path in named), done.output.decode()


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    for name, package in (
        ("direnv", "direnv"),
        ("hg", "mercurial"),
        ("vim", "vim"),
        ("git", "git"),
        ("pre-commit",) * 2,
    ):
        program(name, package)


CHOSEN = one_of_each(0.4, CASES, lambda case: (case.way, case.project))


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_what_is_planted_is_obeyed_from_outside_and_never_from_inside(case: Case, outer: Path) -> None:
    is_obeyed_only_from_outside(case, outer)


def test_no_name_leaves_the_list_unseen() -> None:
    """What the guest is told, as it was checked in: most names have no case of their own. Who adds one to the list, or
    takes one away, does so here too."""
    told = rules((), (), ReferencedPaths()).decode().splitlines()
    assert told == Path(__file__).with_name("planted.txt").read_text().splitlines()


@pytest.mark.proof(12)
def test_what_another_agent_starts_is_not_planted(outer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = npm(outer / "npm", "@mariozechner/pi-coding-agent@0.73.1")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    is_obeyed_only_from_outside(ANOTHER_AGENT, outer)


def is_obeyed_only_from_outside(case: Case, outer: Path) -> None:
    (outer / "control").mkdir()
    control = place(outer / "control", case)
    plant_outside(control, case)
    said = control.run(case.obeyed)
    assert control.canary.exists(), f"the case shows nothing: {said.stdout}{said.stderr}"

    (outer / "held").mkdir()
    held = place(outer / "held", case)

    async def scenario(workspace: ConfinedWorkspace) -> None:
        await plant_inside(held, case, workspace)
        made, refused = await workspace.guarded()
        assert made >= refused > 0

    within(held.project, scenario)
    held.run(case.obeyed)
    assert not held.canary.exists()


def test_our_own_configuration_is_the_users(outer: Path) -> None:
    case = Case(
        "etude", "mkdir .etude; printf 'deny = [\"run(ls)\"]\\n' > .etude/permissions.toml", "", refused=".etude"
    )
    (outer / "control").mkdir()
    control = place(outer / "control", case)
    plant_outside(control, case)
    assert "run(ls)" in load_permissions(control.project, outer / "none").deny

    (outer / "held").mkdir()
    held = place(outer / "held", case)

    async def scenario(workspace: ConfinedWorkspace) -> None:
        await plant_inside(held, case, workspace)

    within(held.project, scenario)
    assert load_permissions(held.project, outer / "none").deny == ()


def test_a_rebase_that_was_left_is_obeyed_only_by_who_goes_on_with_it(outer: Path) -> None:
    """Git must write it, so it may be written; and git shows it to whoever looks."""
    side = "git checkout -q -b s && echo s > a.txt && git commit -qam s && git checkout -q main && echo m > a.txt"
    held = place(outer, Case("rebase", "", "", given=f"{side} && git commit -qam m"))

    async def scenario(workspace: ConfinedWorkspace) -> None:
        done = await workspace.exec("git -c user.name=a -c user.email=a@b rebase s")
        assert done.exit_code, "there is nothing to go on with"
        done = await workspace.exec(held.filled("echo exec EVIL > .git/rebase-merge/git-rebase-todo"))
        assert done.exit_code == 0, done.output.decode()

    within(held.project, scenario)
    shown = held.run("git status; git log; git diff; git stash list; git add a.txt; git commit -qm x; git branch")
    assert f"exec {outer}/evil" in shown.stdout and not held.canary.exists()
    held.run("git rebase --continue")
    assert held.canary.exists()
