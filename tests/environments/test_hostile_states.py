"""Whatever a policy leaves, the outcome is a verdict; whatever we break, it is not. Ten thousand: tests/prove."""

import asyncio
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import prove.hostile_states as hostile
import pytest
from proofs import often, one_of_each

from etude.environments import guest_verbs
from etude.environments.archive import StorageFailed, take_out, unpack
from etude.environments.base import Resources, SandboxSpec
from etude.environments.client import RemoteBackend
from etude.environments.hosted import Hosted
from etude.environments.lives import NodeConfig
from etude.environments.namespace import NamespaceConfig
from etude.environments.node import Node
from etude.environments.trees import copy_upper, remove_tree
from etude.environments.wire import ExecBody, answer_of, error_of
from etude.errors import DeadlineExceeded, SandboxError, SandboxSpoiled
from etude.harness.session import SessionResult
from etude.records import InfraFailed
from etude.rewards.judgement import Judges
from etude.rewards.sealed import judge, run_to_seal
from etude.rewards.verifier import verify

DONE = SessionResult("s", (), (), "finished", {})
SLOW = ("inodes", "fill", "memory", "deep", "entries", "links_many")
"""Left to the proof."""
STATES = often(4, 50)
"""On each backend."""


def test_every_primitive_by_itself_has_a_verdict(run, monkeypatch):
    names = [name for name in hostile.PRIMITIVES if name not in SLOW]
    states = [([name], f"echo 42 > answer; ( {hostile.PRIMITIVES[name]}\n) > /dev/null 2>&1") for name in names]
    monkeypatch.setattr(hostile, "state_of", states.__getitem__)
    tally = run(lambda backend: hostile.many(range(len(states)), backend, 4, forks=3), deadline_s=240)
    assert tally.infra_failed == [] and tally.scored == len(names)
    assert tally.passed > len(names) / 2 and tally.blocked >= 8 and tally.forked > 10, tally


def test_states_at_random_have_a_verdict_and_touch_nothing_outside():
    script = Path(hostile.__file__)
    done = subprocess.run(
        [sys.executable, script, "--states", "30", "--seed", str(os.getpid()), "--forks", "3"],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["failures"] == [] and said["scored"] == 30 and said["forked"] == 10
    assert (
        not said["outside_touched"]
        and not said["strays"]
        and not said["unearned"]
        and not said["outside_read"]
        and said["left_over"] == []
    )
    assert said["max_rss_mb"] <= said["budget_mb"] < 1000


def test_a_state_that_passes_without_the_answer_is_told(run, monkeypatch):
    states = [(["drawn"], f"{hostile.ANSWER}; true"), (["forged"], "printf '42\\n' > answer"), (["none"], "true")]
    monkeypatch.setattr(hostile, "state_of", states.__getitem__)
    tally = run(lambda backend: hostile.many(range(3), backend, 1, forks=3))
    assert tally.passed == 2 and tally.unearned == ["1 ['forged']"] and "unearned" in hostile.FAULTS


def test_an_outcome_that_the_primitives_do_not_leave_open_is_told(run, monkeypatch):
    answered = f"{hostile.ANSWER}; "
    states = [(["loop"], answered), (["loop"], "true"), (["loop"], f"{answered}rm given"), (["fill"], answered)]
    monkeypatch.setattr(hostile, "state_of", states.__getitem__)
    tally = run(lambda backend: hostile.many(range(4), backend, 1, forks=4))
    assert [told.split(": ")[:2] for told in tally.unexpected] == [
        ["2 ['loop']", "failed in place of passed"],
        ["3 ['fill']", "passed in place of blocked"],
    ]
    assert tally.expected == 4 and "unexpected" in hostile.FAULTS


def test_a_judge_that_does_not_fail_where_its_sandboxes_die_is_told(run):
    async def scenario(backend):
        async with Judges(audited=True) as judges:
            [told] = await hostile.first(backend, backend, judges)
            assert "held against a policy" in told

    run(scenario)


def test_what_a_state_made_outside_is_found():
    """Every state has a file of this name; also where it was to be emptied, or forked."""
    assert f"echo > {hostile.MARK}" in hostile.state_of(3)[1] and "strays" in hostile.FAULTS
    assert hostile.strays() == []
    place = Path(tempfile.mkdtemp(prefix="etude-stray-", dir="/var/tmp"))
    try:
        (place / hostile.MARK).touch()
        assert hostile.strays() == [str(place / hostile.MARK)]
    finally:
        shutil.rmtree(place)


def test_the_largest_states_are_judged_within_the_budget():
    """Five files of 49 MB each: what is laid down and what is audited is not copied beside what was taken out."""
    command = [sys.executable, hostile.__file__, "--only", "fragmented", "--states", "2", "--at-once", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["scored"] == 2 and said["blocked"] == 0 and said["kinds"] == {"fragmented": 2}
    assert 250 < said["max_rss_mb"] <= said["budget_mb"] < 450


def test_a_few_from_afar(from_afar):
    async def scenario(backend):
        tally = await hostile.many(range(40, 52), backend, 2)
        assert tally.infra_failed == [] and tally.scored == 12

    from_afar(scenario, deadline_s=200)


@pytest.mark.timeout(300 + 30 * STATES)
@pytest.mark.parametrize(
    "everywhere", one_of_each(4, ("namespaces", "without_root", "containers", "machines")), indirect=True
)
def test_a_few_on_every_backend(everywhere):
    async def scenario(backend):
        tally = await hostile.many(range(60, 60 + STATES), backend, 2, forks=4)
        assert tally.infra_failed == [] and tally.scored == STATES

    everywhere(scenario, deadline_s=280 + 30 * STATES)


# --- each fault by itself ---------------------------------------------------------------------------------------------


def test_a_copy_takes_the_room_of_its_source(run):
    """Holes stay holes, and a file of many names one file, also where no path leads to it."""
    deep = "import os\nfor _ in range(30): os.mkdir('d' * 200); os.chdir('d' * 200)\n"
    deep += "for n in range(20): os.link('/workspace/big', f'l{n}')"

    async def scenario(backend):
        box = await backend.create(SandboxSpec())
        await box.exec("truncate -s 900G huge; printf end >> huge; yes | head -c 5000000 > big")
        assert (await box.exec(f'python3 -c "{deep}"')).exit_code == 0
        (fork,) = await box.fork(1)
        look = "stat -c '%s %h' huge big; tail -c 3 huge; du -sm . | cut -f 1"
        for each in (box, fork):
            size, names, end, room = (await each.exec(look)).output.decode().replace("end", "end\n").split("\n")[:4]
            assert (size, names, end) == (f"{900 * 2**30 + 3} 1", "5000000 21", "end") and int(room) < 12
        taken = [path for path in (backend.store.root / "s").iterdir() if path.name.endswith("links")]
        assert taken == []

    run(scenario)


def test_what_is_taken_out_has_a_budget_of_bytes_and_entries(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(resources=Resources(state_mb=30, state_entries=50)))
        for make in (
            "truncate -s 20M a; truncate -s 20M b",
            "mkdir d; touch d/$(seq -s ' d/' 1 60)",
            "mkfifo $(seq 1 90)",
        ):
            await box.exec(make)
            with pytest.raises(SandboxSpoiled, match="more is there than 30 MiB or 50 entries"):
                await take_out(box)
            await box.exec("rm -r *")
        await box.exec("yes | head -c 20000000 > a; for n in 1 2 3 4 5 6 7 8 9 10 11; do ln a $n; done")
        archive = await take_out(box)
        assert 20_000_000 < sum(len(tar) for _, tar in archive.parts) < 20_100_000
        other = await backend.create(SandboxSpec())
        await unpack(archive, other)
        assert (await other.exec("stat -c %h a 11")).output == b"12\n12\n"

    run(scenario)


def test_what_changes_while_it_is_taken_out_is_no_endless_stream(run, monkeypatch):
    async def scenario(backend):
        monkeypatch.setattr(guest_verbs, "ARCHIVE_MAX", 100_000)
        box = await backend.create(SandboxSpec(resources=Resources(state_mb=1)))
        await box.exec("for n in $(seq 10 30); do truncate -s 45000 f$n; done")

        async def all_parts():
            begin = 0
            for _ in range(100):  # what comes next seems to be what came last, as if it had been made anew
                begin = max((await box.part("/workspace", begin)).next - 2, 1)

        with pytest.raises(OSError, match="more is there"):
            await all_parts()

    run(scenario)


def test_what_is_shut_comes_along_and_stays_shut(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"f": b"1"}))
        await box.exec("mkdir -p d/e; echo 2 > d/e/g; chmod 0 d/e/g d/e; chmod 0444 d; chmod 0 f .")
        archive = await take_out(box)
        assert (await box.exec("stat -c %a /workspace", cwd="/")).output == b"0\n"
        other = await backend.create(SandboxSpec())
        await unpack(archive, other)
        assert (await other.exec("cat f d/e/g")).output == b"1\n2\n".replace(b"1\n", b"1")

    run(scenario)


def test_a_policy_that_spoils_its_linters_is_scored(run):
    from etude.records import Task, Verifier
    from etude.rewards.judgement import Judges
    from etude.rewards.quality import QualityConfig

    reward = b"mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"
    task = Task("t", "", {"pyproject.toml": b"[tool.ruff]\n", "a.py": b"x = 1\n"}, Verifier({"/tests/test.sh": reward}))
    judges = Judges(quality=QualityConfig(lint_penalty=0.1))

    async def scenario(backend):
        async def session(sandbox):
            await sandbox.exec("rm pyproject.toml; mkdir -p pyproject.toml/in; echo 'y = 2' > a.py")
            return DONE

        verdict = (await judge(task, await run_to_seal(task, backend, session), backend, judges)).verdict
        assert not isinstance(verdict, InfraFailed), verdict
        assert (verdict.reward, verdict.reason) == (0.0, "blocked") and "pyproject.toml back" in verdict.detail

    run(scenario)


def test_spoiled_crosses_the_wire_and_processes():
    error = SandboxSpoiled("process 1 was ended")
    for other in (error_of(answer_of(error).body, "there"), pickle.loads(pickle.dumps(error))):
        assert type(other) is SandboxSpoiled and str(other) == str(error)
    assert type(error_of(answer_of(SandboxError("x")).body, "there")) is not SandboxSpoiled


@pytest.mark.parametrize("error", [SandboxSpoiled, SandboxError])
def test_a_server_remembers_how_a_sandbox_ended(tmp_path, error):
    """What the agent says of its end stands here for what commands did."""

    async def scenario():
        node = Node(NodeConfig(state_dir=tmp_path / "node"))
        try:
            live = await node.create(SandboxSpec())

            async def dying(command, **options):
                await live.sandbox.destroy()
                raise error("process 1 has ended")

            live.sandbox.exec = dying
            for _ in range(2):
                with pytest.raises(SandboxError, match="process 1 has ended") as caught:
                    await Hosted(node).call(
                        live.id, "exec", **ExecBody(command="true").model_dump(exclude={"background"})
                    )
                assert isinstance(caught.value, SandboxSpoiled) is (error is SandboxSpoiled)
            await node.destroy(live.id)
        finally:
            await node.close()

    asyncio.run(scenario())


# --- what is ours is never held against a policy ----------------------------------------------------------------------


def kill(box):
    """As the host would: the guest program and all with it."""
    children = Path(f"/proc/{box._pid}/task/{box._pid}/children").read_text().split()
    for pid in (*map(int, children), box._pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def _outcome(backend, session=None):
    async def nothing(sandbox):
        await sandbox.exec("echo 42 > answer")
        return DONE

    try:
        sealed = await run_to_seal(hostile.TASK, backend, session or nothing)
        return (await judge(hostile.TASK, sealed, backend)).verdict
    except SandboxSpoiled:
        raise
    except (SandboxError, DeadlineExceeded, OSError) as error:
        return InfraFailed(str(error))


def test_a_sandbox_that_the_host_kills_is_ours(run):
    async def scenario(backend):
        async def session(sandbox):
            await sandbox.exec("truncate -s 900G huge")
            kill(sandbox)
            return DONE

        assert isinstance(await _outcome(backend, session), InfraFailed)

    run(scenario)


@pytest.mark.parametrize("deaths", [1, 99])
def test_verifying_sandboxes_that_the_host_kills_are_ours(run, deaths):
    """One that dies once is no verdict of 0 either: the second attempt counts."""
    left = [deaths]

    async def scenario(backend):
        create = backend.create

        async def doomed(spec):
            box = await create(spec)
            if left[0] and spec.files != hostile.TASK.files:
                left[0] -= 1
                upload = box.upload

                async def dying(*arguments):
                    kill(box)
                    return await upload(*arguments)

                box.upload = dying
            return box

        backend.create = doomed
        verdict = await _outcome(backend)
        if deaths == 1:
            assert (verdict.reward, left[0]) == (1.0, 0)
        else:
            assert isinstance(verdict, InfraFailed) and "fares no better" in verdict.what

    run(scenario)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_of_ours_is_ours(run, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], check=True)
    try:

        async def scenario(backend):
            box = await backend.create(SandboxSpec())
            await box.exec("yes | head -c 9000000 > big; truncate -s 900G huge")
            with pytest.raises(SandboxError, match="No space left") as caught:
                await box.fork(1)
            assert not isinstance(caught.value, SandboxSpoiled)
            await box.exec("rm big")
            (fork,) = await box.fork(1)  # nothing of the first is left
            assert (await fork.exec("ls")).output == b"huge\n"

        run(scenario, NamespaceConfig(state_dir=small / "state"))
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_server_that_is_away_is_ours(served):
    async def scenario():
        backend = RemoteBackend(served.client().config)
        try:

            async def session(sandbox):
                await sandbox.exec("truncate -s 900G huge")
                await backend.connection.close()
                return DONE

            assert isinstance(await _outcome(backend, session), InfraFailed)
            assert isinstance(await verify(hostile.TASK, {}, backend), InfraFailed)
        finally:
            await backend.connection.close()

    asyncio.run(scenario())


def test_a_start_that_cannot_be_taken_out_is_ours(run):
    """However little the policy did: the budget is too small for the task."""
    files = {**hostile.FILES, "large": b"x" * 2_000_000}
    task = type(hostile.TASK)("large", "", files, hostile.TASK.verifier)

    async def scenario(backend):
        create = backend.create

        async def small(spec):
            return await create(type(spec)(spec.files, spec.image, spec.base, Resources(state_mb=1)))

        backend.create = small

        async def session(sandbox):
            return DONE

        with pytest.raises(SandboxError, match="fares no better") as caught:
            await run_to_seal(task, backend, session)
        assert not isinstance(caught.value, SandboxSpoiled)

    run(scenario)


def test_a_place_that_takes_no_trees_is_told_from_a_bad_tree(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "f").write_text("x")
    monkeypatch.setattr("etude.environments.trees._Copy._content", _refused)
    with pytest.raises(SandboxSpoiled):
        copy_upper(tmp_path / "source", tmp_path / "target")
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]
    with pytest.raises(OSError, match="No such file") as caught:
        copy_upper(tmp_path / "source", tmp_path / "nowhere" / "target")
    assert not isinstance(caught.value, SandboxError)
    remove_tree(tmp_path / "target")


def _refused(*_):
    raise OSError(36, "File name too long")


def test_a_torn_archive_is_ours(run):
    async def scenario(backend):
        box = await backend.create(SandboxSpec(files={"a": b"1"}))
        archive = await take_out(box)
        torn = type(archive)(archive.places, ((archive.parts[0][0], archive.parts[0][1][:700]),))
        with pytest.raises(StorageFailed):
            await unpack(torn, box)
        assert isinstance(await verify(hostile.TASK, torn, backend), InfraFailed)

    run(scenario)


def test_a_tree_that_is_gone_spoils_no_sandbox(tmp_path):
    """It is seen by way of the agent, which may be killed while its files are copied."""
    with pytest.raises(FileNotFoundError):
        copy_upper(tmp_path / "gone", tmp_path / "target")
