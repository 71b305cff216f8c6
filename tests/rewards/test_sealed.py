"""A session is sealed where it was played, and judged where the agent never was."""

import asyncio
from dataclasses import replace

import pytest

from etude.environments import guest_verbs
from etude.environments.archive import Archive, take_out, unpack
from etude.environments.base import SandboxSpec
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.harness.session import SessionResult
from etude.records import Scored, Task, Verifier
from etude.rewards.judgement import Judges
from etude.rewards.reward import RewardConfig, score
from etude.rewards.sealed import judge, run_to_seal

TEST = (
    b"mkdir -p /logs/verifier; ls -A . /tmp /logs; test -f kept && test ! -e gone && echo 1 > /logs/verifier/reward.txt"
)
TASK = Task("t", "", {"kept": b"", "gone": b""}, Verifier({"/tests/test.sh": TEST}))
DONE = SessionResult("s", (), (), "finished", {"malformed_calls": 0})


def worked(command):
    """A session that is this one command."""

    async def session(sandbox):
        await sandbox.exec(command)
        return DONE

    return session


def test_another_process_can_judge_what_one_has_sealed():
    """The backend that played is closed, with all that belonged to it, before there is one that judges."""

    async def in_turn():
        backend = NamespaceBackend(NamespaceConfig())
        try:
            sealed = await run_to_seal(TASK, backend, worked("rm gone; touch /tmp/planted /logs/planted"))
        finally:
            await backend.close()
        backend = NamespaceBackend(NamespaceConfig())
        try:
            first = await judge(TASK, sealed, backend, Judges(audited=True))
            again = await judge(TASK, sealed, backend)
        finally:
            await backend.close()
        return first, again

    first, again = asyncio.run(in_turn())
    assert first.verdict.reward == 1.0 and again.verdict.reward == 1.0
    assert "planted" not in first.verdict.detail and first.report is not None and again.report is None


@pytest.mark.parametrize(
    ("command", "reward", "reason"),
    [
        ("rm gone; mkdir -p shut/in; touch shut/in/x kept; chmod 0 shut/in shut kept", 1.0, "passed"),
        ("true", 0.0, "crashed"),
        ("rm gone; truncate -s 52000000 huge", 0.0, "blocked"),
    ],
)
def test_what_the_agent_shut_or_blew_up_is_judged_too(run, command, reward, reason):
    async def scenario(backend):
        sealed = await run_to_seal(TASK, backend, worked(command))
        verdict = (await judge(TASK, sealed, backend)).verdict
        assert (verdict.reward, verdict.reason) == (reward, reason), verdict

    run(scenario)


def test_what_nobody_could_take_out_was_not_deleted(run):
    """Nor is it a way to be unscored: a blocked session is scored as one that failed."""
    config = RewardConfig(audit="quarantine")

    async def scenario(backend):
        files = {"tools.py": b"def double(x):\n    return 2 * x\n", "test_tools.py": b"def test_it():\n    pass\n"}
        task = replace(TASK, files={**TASK.files, **files})
        for command in ("truncate -s 52000000 huge", "rm tools.py test_tools.py; truncate -s 52000000 huge"):
            sealed = await run_to_seal(task, backend, worked(command))
            found = await judge(task, sealed, backend, Judges(audited=True))
            assert found.verdict.reason == "blocked" and found.report.findings == ()
            outcome = score(task, sealed.result, found, config)
            assert isinstance(outcome, Scored) and outcome.reward <= 0.0

    run(scenario)


TREE = (
    "mkdir -p a/b/c empty; head -c 3000 /dev/zero > a/b/c/f; head -c 3000 /dev/zero > a/g; echo x > top; ln -s a way; "
    "ln -s nowhere/at/all lost; chmod 750 a/g; touch -d @1000000000 top"
)
LISTED = "find . -printf '%P %y %l\\n' | sort; stat -c '%a %Y' a/g top; sha256sum top a/g a/b/c/f"


def test_a_tree_too_large_for_one_archive_comes_in_parts(run, monkeypatch):
    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        before = (await box.exec(f"{TREE}; touch -d @1000000000 a/g; {LISTED}")).output
        whole = await take_out(box)
        monkeypatch.setattr(guest_verbs, "ARCHIVE_MAX", 6000)
        parts = await take_out(box)
        monkeypatch.undo()
        assert len(whole.parts) == 1 < len(parts.parts)
        for archive in (whole, parts):
            other = await backend.create(SandboxSpec(files={"stays": b"not"}))
            await unpack(archive, other)
            assert (await other.exec(LISTED)).output == before, "a" if archive is whole else "b"

    run(scenario)


def test_several_places_go_together(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"w": b"1"}))
        await box.exec("echo 2 > /tmp/t; mkdir -p ~/h; echo 3 > ~/h/f")
        archive = await take_out(box, "/workspace", "/tmp", "/home/agent")
        other = await backend.create(SandboxSpec())
        await unpack(archive, other)
        assert (await other.exec("cat w /tmp/t ~/h/f")).output == b"12\n3\n"
        await unpack(Archive(("/tmp",)), other)
        assert (await other.exec("ls -A /tmp; cat w")).output == b"1"

    run(scenario)
