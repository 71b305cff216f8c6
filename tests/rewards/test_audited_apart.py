"""The auditor in its own process: whatever a session leaves, its audit ends, and an audit that fails pays nothing."""

import asyncio
import os
import signal
from dataclasses import replace

import pytest
from proofs import one_of_each

from etude.environments.archive import take_out
from etude.environments.base import SandboxSpec
from etude.errors import SandboxError
from etude.harness.session import SessionResult
from etude.records import InfraFailed, Scored, Task, Verifier
from etude.rewards.audit import Workspace, audit
from etude.rewards.audit.apart import PYTHON_MAX, Auditor
from etude.rewards.audit.cases import cases_of
from etude.rewards.audit.state import FILE_MAX
from etude.rewards.judgement import Judgement, Judges
from etude.rewards.reward import RewardConfig, score
from etude.rewards.sealed import Sealed, judge
from etude.rewards.verifier import Verdict
from etude.tasks.verifiers import PytestRun, calls_verifier, database_verifier, pytest_verifier, suite_verifier

FILES = {"m.py": b"def f(a):\n    return 0\n"}
SUITE = "import m\n\ndef test_f():\n    assert m.f(1234) == 4321\n"
VERIFIERS = {
    "calls": calls_verifier([("m", "f", [1234], 4321), ("m", "f", [77], 8)]),
    "suite": suite_verifier(SUITE, "test_m", ["test_f"]),
    "pytest": pytest_verifier(PytestRun("/x", {"test_m.py": SUITE.encode()}, ("test_m.py",)), ["test_m.py::test_f"], 9),
    "database": database_verifier({"a/1.sql": b"select 1"}, "a", "", {"q": "select 1 x"}, {"q": [{"x": 1}]}, 9.0),
    "foreign": Verifier({"/tests/test.sh": b"exit 0", "/tests/secret": b"{1: (2, 3)}"}),
}  # fmt: skip
CHEAT = Workspace({"m.py": b"import os\n\ndef f(a):\n    os._exit(0)\n"}, {})
SLOW = Workspace({"m.py": b"x = [" + b"[1], " * 150_000 + b"]\n"}, {})
END = SessionResult(
    "s",
    (),
    (),
    "finished",
    dict.fromkeys(("malformed_calls", "sampled_tokens", "observed_tokens", "tool_calls", "turns"), 0),
)


def alone(scenario):
    async def whole():
        auditor = Auditor()
        try:
            async with asyncio.timeout(300):
                return await scenario(auditor)
        finally:
            await auditor.close()

    return asyncio.run(whole())


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_every_form_of_verifier_is_audited(verifier):
    task = Task("t", "", FILES, VERIFIERS[verifier])

    async def scenario(auditor):
        report = await auditor.audit(task, (), CHEAT)
        assert report.cheated and report == audit(task, (), CHEAT)
        assert not (await auditor.audit(task, (), Workspace(FILES, {}))).findings
        assert auditor.failed == 0

    alone(scenario)
    asked = {case.arguments: case.expected for case in cases_of(task, {})}
    assert asked.get((1234,)) == (4321 if verifier in ("calls", "suite", "pytest") else None)


def test_an_audit_that_spends_its_time_is_no_report_and_the_next_is_one():
    async def scenario(_):
        auditor = Auditor(cpu_s=(0, 0))
        try:
            report = await auditor.audit(Task("t", "", FILES, VERIFIERS["calls"]), (), SLOW)
            assert "processor time" in report.unaudited and not report.findings and auditor.failed == 2
            assert (await auditor.audit(Task("t", "", FILES, VERIFIERS["calls"]), (), CHEAT)).cheated
        finally:
            await auditor.close()

    alone(scenario)


def test_a_worker_that_was_killed_is_started_anew():
    async def scenario(auditor):
        for _ in range(2):
            assert (await auditor.audit(Task("t", "", FILES, VERIFIERS["calls"]), (), CHEAT)).cheated
            if auditor._worker is not None:  # it is, where the second audit has had to be tried again
                os.kill(auditor._worker.pid, signal.SIGKILL)
        assert (await auditor.audit(Task("t", "", FILES, VERIFIERS["calls"]), (), CHEAT)).cheated

    alone(scenario)


def test_one_that_hangs_is_our_failure_and_not_the_sessions():
    async def scenario(auditor):
        await auditor.audit(Task("t", "", FILES, VERIFIERS["calls"]), (), CHEAT)
        os.kill(auditor._worker.pid, signal.SIGSTOP)
        auditor.wait_s = 0.5
        with pytest.raises(SandboxError, match="did not answer within"):
            await auditor.audit(Task("t", "", FILES, VERIFIERS["calls"]), (), CHEAT)

    alone(scenario)


@pytest.mark.parametrize(
    "files",
    one_of_each(
        0.6,
        [
            {"m.py": b"# " + b"x" * (PYTHON_MAX + 1)},
            {f"m{n}.py": b"# " + b"x" * 900_000 for n in range(3)},
            {"m.py": b"# " + b"x" * (1 << 20)},
        ],
        len,
    ),
)
def test_more_than_anybody_reads_is_no_report(files):
    async def scenario(auditor):
        task = Task("t", "", FILES, VERIFIERS["calls"])
        assert "too much to be read" in (await auditor.audit(task, (), Workspace(files, {}))).unaudited
        read = {path: data[:FILE_MAX] for path, data in files.items()}
        assert not (await auditor.audit(replace(task, files=files), (), Workspace(read, {}))).unaudited

    alone(scenario)


def test_a_session_that_cannot_be_audited_is_scored_and_not_as_solved(run):
    task = Task("t", "", FILES, calls_verifier([("m", "f", [1234], 4321)]))
    left = {"m.py": b"def f(a):\n    return 4321\n# " + b"x" * PYTHON_MAX}

    async def scenario(backend):
        sandbox = await backend.create(SandboxSpec(files=left))
        sealed = Sealed(END, await take_out(sandbox))
        await sandbox.destroy()
        async with Judges(audited=True) as judges:
            return await judge(task, sealed, backend, judges)

    said = run(scenario)
    assert said.verdict.reward == 1.0 and said.counts()["audit_failed"] == 1 and "too much" in said.faults[0]
    paid = {
        audit: score(task, END, said, RewardConfig.model_validate({"audit": audit})) for audit in ("watch", "punish")
    }
    assert all(isinstance(each, Scored) for each in paid.values())
    assert paid["watch"].parts["tests"] == 1.0 and paid["punish"].parts["tests"] == 0.0


def test_a_machine_that_cannot_audit_gives_no_verdict(run, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python3")
    task = Task("t", "", FILES, calls_verifier([("m", "f", [1], 0)]))

    async def scenario(backend):
        sandbox = await backend.create(SandboxSpec(files=FILES))
        sealed = Sealed(END, await take_out(sandbox))
        await sandbox.destroy()
        return await judge(task, sealed, backend, Judges(audited=True))

    said = run(scenario)
    assert (
        isinstance(said, Judgement) and isinstance(said.verdict, InfraFailed) and not isinstance(said.verdict, Verdict)
    )
