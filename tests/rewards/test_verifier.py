"""Verdicts: what counts as solved, what as a failure of the code, what as a failure of ours."""

import marshal

import pytest

from etude.environments.archive import Archive, take_out
from etude.environments.base import WORKSPACE, Resources, SandboxSpec
from etude.records import InfraFailed, Task, Verifier
from etude.rewards.verifier import verify
from etude.tasks.verifiers import HeldOutCalls, calls_verifier, compiled_verifier, with_unseen

GOOD = {"m.py": b"def add(a, b):\n    return a + b\n"}
BAD = {"m.py": b"def add(a, b):\n    return a - b\n"}


def adding(timeout_s=10.0, files=GOOD, **more):
    calls = [("m", "add", [a, 2], a + 2) for a in range(5)]
    return Task("add", "Fix add.", files, calls_verifier(calls, timeout_s), **more)


def scripted(script, timeout_s=10.0):
    return Task("scripted", "", {}, Verifier({"/tests/test.sh": script.encode()}, timeout_s=timeout_s))


def test_right_and_wrong_code(run):
    async def scenario(backend):
        right, wrong = await verify(adding(), GOOD, backend), await verify(adding(), BAD, backend)
        assert (right.reward, right.reason) == (1.0, "passed")
        assert (wrong.reward, wrong.reason) == (0.0, "failed")
        assert "passed 0 of 5" in wrong.detail

    run(scenario)


@pytest.mark.parametrize("form", ["code", "source"])
@pytest.mark.parametrize("unseen", [(), (("m", "add", [3, 4], 7),)])
def test_a_verifier_runs_from_its_code_where_that_fits_the_interpreter_and_else_from_its_source(run, form, unseen):
    """Whichever is not to be run says nothing, so that no reward can have come of it."""
    verifier = compiled_verifier(with_unseen(adding().verifier, HeldOutCalls(unseen)))

    def one_form(magic, code, source):
        return (magic, code, "") if form == "code" else (b"none", marshal.dumps(compile("", "", "exec")), source)

    *guard, runs = marshal.loads(verifier.files["/tests/guard.code"])
    secret = marshal.loads(verifier.files["/tests/secret"][1:])
    for told in (secret, *([secret["unseen"]] if unseen else [])):
        told["program"] = one_form(*told["program"])
    assert runs == 1 + len(unseen)
    files = {**verifier.files, "/tests/guard.code": marshal.dumps((*one_form(*guard), runs))}
    files["/tests/secret"] = b"\0" + marshal.dumps(secret)

    async def scenario(backend):
        for state, reward in ((GOOD, b"1.0"), (BAD, b"0.0")):
            sandbox = await backend.create(SandboxSpec(state))
            for path, content in files.items():
                await sandbox.write_file(path, content)
            done = await sandbox.exec(verifier.command)
            assert done.exit_code == 0, done.output
            assert await sandbox.read_file("/logs/verifier/reward.txt") == reward

    run(scenario)


def test_what_the_agent_left_is_judged_and_nothing_is_left(run):
    async def scenario(backend):
        agent = await backend.create(SandboxSpec(files=BAD))
        await agent.exec("sed -i s/-/+/ m.py; echo 1 > /logs/planted; echo x > /tests/planted")
        final = await take_out(agent)
        await agent.destroy()
        task = adding()
        script = b"ls /logs /tests; exec python3 -I -S -B /tests/guard.py"
        look = Verifier({**task.verifier.files, "/tests/t.sh": script}, "exec sh /tests/t.sh")
        verdict = await verify(Task("add", "", GOOD, look), final, backend)
        assert verdict.reason == "passed"
        assert "planted" not in verdict.detail
        assert not list((backend.store.root / "b").iterdir())

    run(scenario)


@pytest.mark.parametrize(
    ("script", "reward", "reason"),
    [
        ("mkdir -p /logs/verifier; echo 0.25 > /logs/verifier/reward.txt", 0.25, "failed"),
        ("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt", 1.0, "passed"),
        ("mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt; exit 1", 0.0, "failed"),
        ("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; exit 1", 0.0, "crashed"),
        ("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; kill -9 $$", 0.0, "crashed"),
        ("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; sleep 60", 0.0, "timeout"),
        ("mkdir -p /logs/verifier; echo nan > /logs/verifier/reward.txt", 0.0, "no_reward"),
        ("mkdir -p /logs/verifier; echo 2 > /logs/verifier/reward.txt", 0.0, "no_reward"),
        ("mkdir -p /logs/verifier; echo pass > /logs/verifier/reward.txt", 0.0, "no_reward"),
        ("mkdir -p /logs/verifier; head -c 1000000 /dev/zero > /logs/verifier/reward.txt", 0.0, "no_reward"),
        ("mkdir -p /logs/verifier/reward.txt", 0.0, "no_reward"),
        ("mkdir -p /logs/verifier; mkfifo /logs/verifier/reward.txt", 0.0, "no_reward"),
        ("true", 0.0, "no_reward"),
        ("exit 3", 0.0, "crashed"),
    ],
)
def test_every_end_of_a_command_has_its_reason(run, script, reward, reason):
    async def scenario(backend):
        limit_s = 0.5 if reason == "timeout" else 1.5
        verdict = await verify(scripted(script, limit_s), {}, backend)
        assert (verdict.reward, verdict.reason) == (reward, reason), verdict

    run(scenario)


def test_a_sandbox_that_cannot_be_made_is_infrastructure(run):
    async def scenario(backend):
        torn = Archive(parts=((WORKSPACE, b"no tar"),))
        failed = await verify(adding(), torn, backend)
        assert isinstance(failed, InfraFailed)
        assert WORKSPACE in failed.what
        await backend.close()
        assert isinstance(await verify(adding(), GOOD, backend), InfraFailed)

    run(scenario)


@pytest.mark.parametrize("always", [False, True])
def test_a_sandbox_that_dies_every_time_is_the_codes_doing(run, always):
    """But not where one without the code dies too."""
    deaths = []

    async def scenario(backend):
        create = backend.create

        async def doomed(spec):
            sandbox = await create(spec)
            execute = sandbox.exec

            async def dying(command, **options):
                if always or "/tests/" in command:
                    deaths.append(command)
                    await sandbox.destroy()
                return await execute(command, **options)

            sandbox.exec = dying
            return sandbox

        backend.create = doomed
        verdict = await verify(adding(), GOOD, backend)
        if always:
            assert isinstance(verdict, InfraFailed) and "fares no better" in verdict.what
        else:
            assert (verdict.reward, verdict.reason) == (0.0, "crashed")
            assert "2 sandboxes failed with it" in verdict.detail

    run(scenario)
    assert len(deaths) == 2 + always


def test_memory_eaten_by_the_code_is_not_infrastructure(run):
    eater = {"m.py": b"def add(a, b):\n    x = [bytearray(1 << 20) for _ in range(4000)]\n    return a + b\n"}

    async def scenario(backend):
        verdict = await verify(adding(), eater, backend, Resources(memory_mb=96))
        assert not isinstance(verdict, InfraFailed)
        assert verdict.reward == 0.0

    run(scenario)


def test_changed_protected_files_are_counted_not_judged(run):
    files = {**GOOD, "check.py": b"print('visible')\n", "also.py": b""}
    task = adding(files=files, provenance={"protected": ["check.py", "also.py"]})

    async def scenario(backend):
        untouched = await verify(task, files, backend)
        changed = await verify(task, {**files, "check.py": b"print('passed')\n"}, backend)
        gone = await verify(task, GOOD, backend)
        assert (untouched.touched, changed.touched) == ((), ("check.py",))
        assert (gone.touched, gone.reason) == (("also.py", "check.py"), "passed")

    run(scenario)


def test_files_put_back_over_what_the_agent_left(run):
    verifier = Verifier(
        {"/workspace/conf.txt": b"1", "/tests/test.sh": b"mkdir /logs/verifier; cp conf.txt /logs/verifier/reward.txt"}
    )
    task = Task("restore", "", {"conf.txt": b"1"}, verifier)

    async def scenario(backend):
        assert (await verify(task, {"conf.txt": b"0"}, backend)).reason == "passed"
        assert (await verify(task, {"conf.txt/in/the/way": b"0"}, backend)).reason == "blocked"

    run(scenario)


@pytest.mark.parametrize(("script", "reason"), [("sleep 1", "passed"), ("while :; do :; done", "timeout")])
def test_a_run_that_was_kept_from_computing_has_patience(run, script, reason):
    """Waiting looks like a machine that is busy with others: the limit is met, and little was computed."""

    async def scenario(backend):
        task = scripted(f"{script}; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt", timeout_s=0.5)
        verdict = await verify(task, {}, backend)
        assert verdict.reason == reason, verdict

    run(scenario)
