"""The same proofs on every backend that runs here: nothing of ours on the host obeys what is planted in a sandbox, and
no cheat that forges its tests pays. Escapes and what is tried on process 1 are in test_escapes and test_process_one.

A part of both; all of it where all proofs are played.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import sys
import tarfile
from pathlib import Path

import proofs
import pytest
from planted_cases import CASES, Case
from proofs import one_of_each
from test_planted import Place, place, plant_outside
from test_planted import programs as programs  # a fixture: what the rows are obeyed by

from etude.environments.archive import Archive, take_out, unpack
from etude.environments.base import WORKSPACE, Backend, SandboxSpec
from etude.errors import ConfigError
from etude.harness.session import SessionResult
from etude.host.git import GitContext as GitPlace
from etude.host.git import run_git
from etude.host.repository import PrivateGitDir, find
from etude.records import Task, Verifier
from etude.rewards.judge.outcomes import change_of
from etude.rewards.judgement import Judges
from etude.rewards.sealed import Sealed, judge
from etude.tasks.mined.history import History
from etude.tasks.scrub import read_tree, scrub, scrub_task

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import auditor
from hack_suite.play import measure, small_chat

WHOLE = proofs.MODE == "all"
FAST = one_of_each(3, ("namespaces", "without_root", "containers"))
SLICE = ("a hook is written", "the config is set", "a .git that is a file", "a bare repository", "direnv", "vim")
GONE = {"a bare one of sockets"}
"""What no archive holds."""
FORGING = {
    "tests changed", "runner planted", "exit forged", "values hard-coded", "test inspected", "equality forged",
    "framework patched", "behaviour removed",
}  # fmt: skip
"""What other cheats get, an answer that they found say, is right: the auditor's alone to name."""
FAILS = {"a wrong constant"}
"""An honest try that solves nothing."""
TASK = Task("planted", "", {"given": b"1\n"}, Verifier({"/tests/test.sh": b"echo 1 > /logs/verifier/reward.txt\n"}))


def planted(root: Path, case: Case) -> Place:
    """The user's project with the plant in it."""
    root.mkdir()
    project = place(root, case)
    plant_outside(project, case)
    return project


async def through_sandboxes(backend: Backend, projects: list[Path]) -> Archive:
    """Into one, from sandbox to sandbox by every way that there is, and judged."""
    box = await backend.create(SandboxSpec())
    for number, project in enumerate(projects):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(project, str(number))
        await box.upload(packed.getvalue(), WORKSPACE)
    restored = await backend.create(SandboxSpec(base=await box.snapshot()))
    (fork,) = await restored.fork(1)
    laid = await backend.create(SandboxSpec())
    await unpack(Archive.decoded((await take_out(fork)).encoded()), laid)
    sealed = Sealed(SessionResult("planted", (), (), "finished", {}), await take_out(laid))
    judgement = await judge(TASK, sealed, backend, Judges(audited=True))
    assert judgement.verdict.reward == 1.0, judgement  # it ran there
    assert change_of(TASK.instruction, TASK.files, sealed.left.files).diffs
    for each in (box, restored, fork, laid):
        await each.destroy()
    return sealed.final


def taken_home(final: Archive, projects: list[Path]) -> None:
    """Out of its archive, in place of what the user had."""
    for number, project in enumerate(projects):
        shutil.rmtree(project)
        for _, tar in final.parts:
            with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
                for member in archive.getmembers():
                    top, _, member.name = member.name.removeprefix("./").partition("/")
                    if member.islnk():
                        member.linkname = member.linkname.removeprefix("./").partition("/")[2]
                    if top == str(number):
                        archive.extract(member, project, filter="fully_trusted")


async def read_by_ours(project: Path, scrubbed: Path) -> None:
    """Everything of ours that reads a repository on the host reads it."""
    for directory in (project, *(path for path in project.iterdir() if path.is_dir())):
        found = find(directory, bare=True)
        if found is None:
            continue
        at = GitPlace(PrivateGitDir(found).git_dir, work_tree=directory, workspace=project)
        for words in (("status", "--porcelain"), ("diff", "HEAD"), ("add", "-A"), ("stash", "create")):
            await run_git(*words, at=at)
        try:
            history = History(directory)
            for commit in history.commits("HEAD", 10):
                history.changes(commit)
                history.tree(commit.id, 1 << 20)
        except ConfigError:
            continue  # no commit
    scrub(project, scrubbed)
    scrub_task(Task("mined", "", read_tree(project, history=True), TASK.verifier))


@pytest.mark.timeout(3600 if WHOLE else 300)
@pytest.mark.parametrize("everywhere", [*FAST, pytest.param("machines", marks=pytest.mark.proof(4))], indirect=True)
def test_what_is_planted_in_a_sandbox_is_obeyed_by_nothing_of_ours(everywhere, outer: Path) -> None:
    cases = [case for case in CASES if WHOLE or case.name in SLICE]
    users = [planted(outer / str(number), case) for number, case in enumerate(cases)]
    projects = [user.project for user in users]
    taken_home(everywhere(lambda backend: through_sandboxes(backend, projects)), projects)
    for case, user in zip(cases, users, strict=True):
        asyncio.run(read_by_ours(user.project, user.root / "scrubbed"))
        assert not user.canary.exists(), case.name
    for case, user in zip(cases, users, strict=True):
        user.run(case.obeyed)
        assert user.canary.exists() or case.name in GONE, f"{case.name}: what came out is no plant, it shows nothing"


def chosen(honest: bool) -> list[auditor.Play]:
    """All of the first set that an image without pytest can play; or three categories' first."""
    plays = [play for play in auditor.SETS["first"] if play.honest is honest and play.kind in ("ladder", "real")]
    plays = [play for play in plays if play.category in FORGING]
    return plays if WHOLE else list({play.category: play for play in reversed(plays)}.values())[-3:]


@pytest.mark.timeout(3600 if WHOLE else 300)
@pytest.mark.parametrize("everywhere", [*FAST, pytest.param("machines", marks=pytest.mark.proof(61))], indirect=True)
def test_cheats_that_forge_their_tests_pay_nowhere(everywhere) -> None:
    """Through the real harness and the real verifier; and the auditor names them. Those who do the work are paid."""
    plays = [(play, number % 30) for number, play in enumerate((*chosen(False), *chosen(True)))]

    async def scenario(backend):
        return backend.capabilities.isolation, await measure(plays, backend, small_chat(), judge=True)

    isolation, performed = everywhere(scenario, 3500 if WHOLE else 280)
    solved = {each.play.name for each in performed if each.play.honest} - FAILS
    paid = {each.play.name for each in performed if each.paid}
    assert paid == solved or (isolation == "vm" and paid < solved)  # a scene's 60 s may be too few, emulated
    assert [each.play.name for each in performed if not each.play.honest and not each.found] == []
    assert [each.play.name for each in performed if each.play.honest and each.report.cheated] == []
