"""Agents side by side on a real repository: what they start from, what stays the user's, who wins, and what is left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from users_git import git

from etude.environments.base import Sandbox
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.errors import ConfigError, SandboxError
from etude.harness.fleet import (
    Conflict,
    FleetConfig,
    Measurements,
    Ranked,
    RankingConfig,
    Result,
    Worktree,
    Worktrees,
    apply_result,
    rank,
    side_by_side,
    trial_merges,
)  # fmt: skip
from etude.harness.fleet.ranking import INTERRUPTED
from etude.harness.fleet.worktrees import SetupFailed


@pytest.fixture
def project(outer: Path) -> Path:
    """A repository whose tree is dirty in every way there is."""
    root = outer / "project"
    root.mkdir()
    git(root, "init", "-q")
    for name, text in {
        "a.py": "x = 1\ny = 2\nz = 3\n",
        "b.py": "b\n",
        "gone.py": "gone\n",
        ".gitignore": "ignored\nlibs\n",
    }.items():
        (root / name).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    (root / "b.py").write_text("b, staged\n")
    git(root, "add", "b.py")
    (root / "a.py").write_text("x = 1\ny = 2\nz = 3 # dirty\n")
    (root / "gone.py").unlink()
    (root / "new.py").write_text("new\n")
    (root / "ignored").write_text("mine\n")
    (root / "libs").mkdir()
    (root / "libs" / "lib").write_text("lib\n")
    return root


def state(root: Path) -> tuple[str, ...]:
    """What must stay the user's own: index, HEAD, refs, stash, and every file."""
    files = "".join(
        f"{path}:{path.read_bytes()!r}"
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    )
    return (
        git(root, "status", "--short"),
        git(root, "diff", "--cached"),
        git(root, "for-each-ref"),
        git(root, "rev-parse", "HEAD"),
        files,
    )


def config(project: Path, **more: object) -> FleetConfig:
    return FleetConfig(directory=project.parent / "trees", **more)  # ty: ignore[invalid-argument-type]


async def in_sandbox(path: Path) -> Sandbox:
    return await open_workspace(path, WorkspaceConfig(history="own"))


def with_trees(project: Path, scenario: Callable[[Worktrees], Awaitable[None]], **more: object) -> None:
    async def whole() -> None:
        async with asyncio.timeout(240), Worktrees.opened(project, config(project, **more)) as trees:
            await scenario(trees)

    asyncio.run(whole())


def test_agents_start_from_what_the_user_has_and_change_nothing_of_it(project: Path) -> None:
    before = state(project)

    async def scenario(trees: Worktrees) -> None:
        first, second = await trees.add("one"), await trees.add("two")
        for tree in (first, second):
            assert {path.name for path in tree.path.iterdir()} == {".git", ".gitignore", "a.py", "b.py", "new.py"}
            assert (tree.path / "a.py").read_text().endswith("# dirty\n") and (
                tree.path / "b.py"
            ).read_text() == "b, staged\n"
            assert git(tree.path, "status", "--short") == ""
            assert (await trees.result(tree)).empty
        (first.path / "a.py").write_text("changed\n")
        git(first.path, "add", "-A")
        git(first.path, "commit", "-qm", "committed by the agent")
        (first.path / "more.py").write_text("1\n2\n")
        (first.path / "ignored").write_text("the agent's\n")
        result = await trees.result(first)
        assert (result.files, result.added, result.removed) == (2, 3, 3)
        assert git(project, "show", f"{result.commit}:more.py") == "1\n2\n"
        assert git(project, "rev-parse", f"{result.commit}^") == f"{result.start}\n"
        assert git(second.path, "status", "--short") == "" and (await trees.result(second)).empty
        assert state(project) == before

    with_trees(project, scenario)
    assert state(project) == before
    assert git(project, "worktree", "list").count("\n") == 1 and list((project.parent / "trees").glob("*/[0-9]*")) == []


def test_an_explicit_commit_without_what_is_uncommitted(project: Path) -> None:
    async def scenario(trees: Worktrees) -> None:
        tree = await trees.add("one")
        assert (tree.path / "a.py").read_text() == "x = 1\ny = 2\nz = 3\n" and not (tree.path / "new.py").exists()
        assert trees.start == git(project, "rev-parse", "HEAD").strip()

    with_trees(project, scenario, commit="main", uncommitted=False)
    git(project, "commit", "-qam", "second")
    with pytest.raises(ConfigError, match="is not HEAD"):
        with_trees(project, scenario, commit="HEAD~1")


def test_what_git_ignores_is_linked_or_copied_and_not_in_the_result(project: Path) -> None:
    async def scenario(trees: Worktrees) -> None:
        tree = await trees.add("one")
        assert (tree.path / "libs").is_symlink() and (tree.path / "libs" / "lib").read_text() == "lib\n"
        assert not (tree.path / "ignored").is_symlink() and (tree.path / "ignored").read_text() == "mine\n"
        assert (await trees.result(tree)).empty

    with_trees(project, scenario, link=("libs", "none"), copy_in=("ignored",))


def test_a_link_that_is_copied_in_brings_nothing_from_outside(project: Path) -> None:
    (project.parent / "keys").mkdir()
    (project.parent / "keys" / "id").write_text("secret\n")
    (project / "libs" / "id").symlink_to("../../keys/id")
    (project / "ignored").unlink()
    (project / "ignored").symlink_to("../keys/id")
    (project / "dir").symlink_to("../keys")

    async def scenario(trees: Worktrees) -> None:
        tree = await trees.add("one")
        found = [path for path in tree.path.parent.rglob("*") if path.is_file() and not path.is_symlink()]
        assert not [path for path in found if b"secret" in path.read_bytes()]
        assert (tree.path / "libs" / "lib").read_text() == "lib\n" and (tree.path / "libs" / "id").is_symlink()

    with_trees(project, scenario, copy_in=("ignored", "libs", "dir/id"))


def test_a_result_is_brought_through_no_link_of_the_users_tree(project: Path) -> None:
    outside = project.parent / "outside"
    outside.mkdir()
    (outside / "kept.py").write_text("mine\n")
    (project / ".gitignore").write_text("ignored\nlibs\nlinked\n")

    async def scenario(trees: Worktrees) -> None:
        tree = await trees.add("one")
        (tree.path / "linked").mkdir()
        (tree.path / ".gitignore").write_text("")
        (tree.path / "linked" / "new.py").write_text("new\n")
        result = await trees.result(tree)
        (project / "linked").symlink_to(outside)
        with pytest.raises(ConfigError, match="move it away first"):
            await apply_result(trees.repository, result)

    with_trees(project, scenario)
    assert (project / "linked").is_symlink() and [path.name for path in outside.iterdir()] == ["kept.py"]


def test_a_set_up_command_makes_each_ready_or_says_why_not(project: Path) -> None:
    async def scenario(trees: Worktrees) -> None:
        tree = await trees.add("one", in_sandbox)
        assert (tree.path / "made").read_text() == "ready\n"

    with_trees(project, scenario, setup="echo ready > made")

    async def failing(trees: Worktrees) -> None:
        with pytest.raises(SetupFailed, match="ended with 3 in worktree one: no such package"):
            await trees.add("one", in_sandbox)
        assert git(project, "worktree", "list").count("\n") == 1
        with pytest.raises(ConfigError, match="needs a sandbox"):
            await trees.add("two")

    with_trees(project, failing, setup="echo no such package; exit 3")


def test_there_are_so_many_and_each_has_its_name(project: Path) -> None:
    async def scenario(trees: Worktrees) -> None:
        await asyncio.gather(*(trees.add(f"agent-{number}") for number in range(3)))
        with pytest.raises(ConfigError, match="3 agents already"):
            await trees.add("one-more")
        await trees.remove("agent-1")
        with pytest.raises(ConfigError, match="once"):
            await trees.add("agent-2")
        with pytest.raises(ConfigError, match="small letters"):
            await trees.add("../x")
        await trees.add("agent-1")

    with_trees(project, scenario, max_agents=3)


KILLED = """
    import asyncio, os, sys
    from pathlib import Path
    from etude.harness.fleet import FleetConfig, Worktrees

    async def main(project):
        async with Worktrees.opened(project, FleetConfig(directory=project.parent / "trees")) as trees:
            for name in ("busy", "idle"):
                tree = await trees.add(name)
                print(tree.path, flush=True)
            sys.stdin.readline()
            os._exit(9)

    asyncio.run(main(Path(sys.argv[1])))
"""


def test_what_a_killed_run_left_is_pruned_and_its_work_kept(project: Path) -> None:
    before = state(project)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(project)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdin is not None
        busy, idle = (Path(run.stdout.readline().strip()) for _ in range(2))
        (busy / "work.py").write_text("half done\n")

        async def living(trees: Worktrees) -> None:
            assert trees.orphans == () and busy.exists() and idle.exists()

        with_trees(project, living)
        run.stdin.write("\n")

    async def scenario(trees: Worktrees) -> None:
        [ref] = trees.orphans
        assert ref.startswith("refs/etude/orphans/") and "-busy-" in ref
        assert git(project, "show", f"{ref}:work.py") == "half done\n"
        assert not busy.exists() and not idle.exists()
        git(project, "update-ref", "-d", ref)

    with_trees(project, scenario)
    assert state(project) == before and git(project, "worktree", "list").count("\n") == 1


def test_nothing_an_agent_puts_into_its_worktree_runs_outside(project: Path) -> None:
    proof = project.parent / "proof"

    async def scenario(trees: Worktrees) -> None:
        tree = await trees.add("one")
        (tree.path / ".git").unlink()
        git(tree.path, "init", "-q")
        for key in ("core.fsmonitor", "filter.x.clean", "core.sshCommand", "diff.x.textconv", "diff.external"):
            git(tree.path, "config", key, f"touch {proof}; cat")
        hook = tree.path / ".git" / "hooks" / "post-checkout"
        hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
        hook.chmod(0o755)
        (tree.path / ".gitattributes").write_text("* filter=x diff=x\n")
        (tree.path / "a.py").write_text("changed\n")
        result = await trees.result(tree)
        assert git(project, "show", f"{result.commit}:a.py") == "changed\n"

    with_trees(project, scenario)
    assert not proof.exists() and git(project, "worktree", "list").count("\n") == 1


def test_conflicts_between_agents_are_told_early(project: Path) -> None:
    async def scenario(trees: Worktrees) -> None:
        texts = {
            "one": "x = 10\ny = 2\nz = 3 # dirty\n",
            "two": "x = 20\ny = 2\nz = 3 # dirty\n",
            "three": "x = 1\ny = 2\nz = 30\n",
        }
        results = []
        for name, text in texts.items():
            tree = await trees.add(name)
            (tree.path / "a.py").write_text(text)
            results.append(await trees.result(tree))
        results.append(await trees.result(await trees.add("idle")))
        before = state(project)
        assert await trial_merges(trees.repository, results) == [Conflict("one", "two", ("a.py",))]
        assert state(project) == before

    with_trees(project, scenario)


def test_a_result_is_taken_over_whole_or_not_at_all(project: Path) -> None:
    async def scenario(trees: Worktrees) -> None:
        tree = await trees.add("one")
        (tree.path / "a.py").write_text("x = 10\ny = 2\nz = 3 # dirty\n")
        (tree.path / "b.py").unlink()
        (tree.path / "deep" / "er").mkdir(parents=True)
        (tree.path / "deep" / "er" / "c.py").write_text("c\n")
        (tree.path / "deep" / "run").write_text("#!/bin/sh\n")
        (tree.path / "deep" / "run").chmod(0o755)
        result = await trees.result(tree)
        staged = git(project, "diff", "--cached")

        (project / "a.py").write_text("x = 99\ny = 2\nz = 3\n")
        before = state(project)
        with pytest.raises(ConfigError, match=r"conflicts with your changes to a\.py"):
            await apply_result(trees.repository, result)
        assert state(project) == before

        (project / "a.py").write_text("x = 1\ny = 2\nz = 3 # mine since\n")
        (project / "new.py").write_text("new, and mine since\n")
        assert await apply_result(trees.repository, result) == ["a.py", "b.py", "deep/er/c.py", "deep/run"]
        assert (project / "a.py").read_text() == "x = 10\ny = 2\nz = 3 # mine since\n" and not (
            project / "b.py"
        ).exists()
        assert (project / "new.py").read_text() == "new, and mine since\n" and os.access(
            project / "deep" / "run", os.X_OK
        )
        assert (project / "deep" / "er" / "c.py").read_text() == "c\n" and git(project, "diff", "--cached") == staged
        assert await apply_result(trees.repository, result) == []

    with_trees(project, scenario)


def test_a_result_does_not_write_over_what_git_ignores(project: Path) -> None:
    async def scenario(trees: Worktrees) -> None:
        tree = await trees.add("one")
        (tree.path / ".gitignore").write_text("")
        (tree.path / "ignored").write_text("the agent's\n")
        with pytest.raises(ConfigError, match="ignored, which you have too"):
            await apply_result(trees.repository, await trees.result(tree))
        assert (project / "ignored").read_text() == "mine\n"

    with_trees(project, scenario)


def test_the_best_of_several_comes_first_and_a_failed_one_last(project: Path) -> None:
    """Five agents: right and small, right and large, right with a lint, wrong, and broken."""
    answers = {
        "agent-1": ("x = 2  # long\n" * 9, ""),
        "agent-2": ("x = 3\n", ""),
        "agent-3": ("x = 2\n", "a.py:3: new\n"),
        "agent-4": None,
        "agent-5": ("x = 2\n", ""),
    }

    async def play(tree: Worktree) -> None:
        answer = answers[tree.name]
        (tree.path / "b.py").write_text("half done\n" if answer is None else "b, staged\n")
        if answer is None:
            raise SandboxError("the model's endpoint is gone")
        text, finding = answer
        (tree.path / "a.py").write_text(text)
        (tree.path / "ignored").write_text(f"b.py:7: old\n{finding}1 error\n")

    async def scenario(trees: Worktrees) -> None:
        ranking = RankingConfig(tests="grep -q 'x = 2' a.py || { echo x is wrong; exit 1; }", lints="cat ignored")
        phases: list[tuple[str, str]] = []
        told: list[str] = []

        async def on_done(entry: Ranked) -> None:
            told.append(entry.name)

        plays = dict.fromkeys(answers, play)
        entries = await side_by_side(
            plays, trees, in_sandbox, ranking, on_phase=lambda *each: phases.append(each), on_done=on_done
        )
        assert [entry.name for entry in entries] == list(answers) and sorted(told) == sorted(answers)
        assert {name for name, phase in phases if phase == "measured"} == answers.keys() - {"agent-4"}
        ranked = rank(entries)
        assert [entry.name for entry in ranked] == ["agent-5", "agent-1", "agent-3", "agent-2", "agent-4"]
        by_name = {entry.name: entry for entry in ranked}
        assert by_name["agent-2"].marks.tests_pass is False and by_name["agent-2"].marks.output == "x is wrong\n"
        assert by_name["agent-1"].marks.tests_pass is True
        assert [entry.marks.lints for entry in ranked] == [0, 0, 1, 0, None]
        broken = by_name["agent-4"]
        assert broken.error == "the model's endpoint is gone" and broken.why() == "failed: the model's endpoint is gone"
        assert broken.result is not None, "what it had done until then is not lost"
        assert git(project, "show", f"{broken.result.commit}:b.py") == "half done\n"
        with pytest.raises(ConfigError, match="9 agents"):
            await side_by_side({f"agent-{n}": play for n in range(9)}, trees, in_sandbox)

    (project / "ignored").write_text("b.py:1: old\n")
    with_trees(project, scenario, copy_in=("ignored",))


def test_agents_that_are_stopped_hand_over_what_they_had(project: Path) -> None:
    """One has ended, one works, one is still being made: nothing of what was done is lost, and no worktree stays."""
    entries: dict[str, Ranked] = {}
    both = asyncio.Event()

    async def on_done(entry: Ranked) -> None:
        entries[entry.name] = entry

    async def quick(tree: Worktree) -> None:
        (tree.path / "a.py").write_text("done\n")

    async def slow(tree: Worktree) -> None:
        (tree.path / "a.py").write_text("half done\n")
        both.set()
        await asyncio.Event().wait()

    async def scenario(trees: Worktrees) -> None:
        task = asyncio.create_task(side_by_side({"quick": quick, "slow": slow}, trees, in_sandbox, on_done=on_done))
        await both.wait()
        while "quick" not in entries:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_trees(project, scenario)
    assert entries["quick"].error == "" and entries["slow"].error == INTERRUPTED
    for name, text in {"quick": "done\n", "slow": "half done\n"}.items():
        result = entries[name].result
        assert result is not None and git(project, "show", f"{result.commit}:a.py") == text
    assert git(project, "worktree", "list").count("\n") == 1


def test_a_removal_that_is_cancelled_is_made_up_for(project: Path) -> None:
    async def scenario(trees: Worktrees) -> None:
        for steps in range(4):
            await trees.add(f"after-{steps}")
            removing = asyncio.create_task(trees.remove(f"after-{steps}"))
            for _ in range(steps):
                await asyncio.sleep(0)
            removing.cancel()
            await asyncio.wait([removing])

    with_trees(project, scenario)
    assert git(project, "worktree", "list").count("\n") == 1 and not list((project.parent / "trees").glob("*/[0-9]*"))


def test_what_was_half_made_or_half_removed_is_cleared_up(project: Path) -> None:
    async def scenario(trees: Worktrees) -> None:
        home = (await trees.add("one")).path.parents[1]
        removed = home / "1-0-killed"
        removed.mkdir()
        (removed / "start").write_text(trees.start)
        for name, age_s in {"new-old": 3600, "new-young": 0, "etude-index-old": 3600}.items():
            (home / name).mkdir()
            (home / name / "file").touch()
            os.utime(home / name, (time.time() - age_s,) * 2)
        assert await trees.prune() == []
        left = {path.name for path in home.iterdir()}
        assert "new-young" in left and not left & {"new-old", "etude-index-old"} and len(left) == 2

    with_trees(project, scenario)


def entry(name: str, tests: bool | None, lints: int | None, lines: int, files: int = 1) -> Ranked:
    return Ranked(name, Result(name, "s", "s" if not lines else name, files, lines, 0), Measurements(tests, lints))


def test_tests_go_before_lints_before_size() -> None:
    entries = [
        entry("nothing", True, 0, 0),
        entry("failing", False, 0, 1),
        entry("linty", True, 2, 1),
        entry("large", True, 0, 50),
        entry("small", True, 0, 3),
        entry("spread", True, 0, 3, files=2),
        Ranked("broken", error="gone"),
    ]
    assert [each.name for each in rank(entries)] == [
        "small",
        "spread",
        "large",
        "linty",
        "failing",
        "nothing",
        "broken",
    ]
    assert entries[2].why() == "tests pass, 2 new lints, 1 file, +1 -0"
    assert entries[0].why() == "tests pass, 0 new lints, nothing changed" and entries[-1].why() == "failed: gone"


def test_what_is_no_repository_is_refused(outer: Path) -> None:
    async def scenario(trees: Worktrees) -> None: ...

    with pytest.raises(ConfigError, match="git init"):
        with_trees(outer, scenario)
    git(outer, "init", "-q")
    with pytest.raises(ConfigError, match="git init"):
        with_trees(outer, scenario)
