"""A state that comes again is not verified a third time, if two verifications agreed; in real sandboxes."""

import asyncio
import threading
from dataclasses import replace

from etude.environments.archive import take_out
from etude.environments.base import Resources, SandboxSpec
from etude.errors import SandboxError
from etude.harness.events import EventLog
from etude.harness.session import SessionResult
from etude.records import InfraFailed, Task, Verifier
from etude.rewards import verdicts as room
from etude.rewards.judgement import Judges
from etude.rewards.reward import RewardConfig
from etude.rewards.sealed import Sealed, judge
from etude.rewards.verdicts import Verdicts, key_of
from etude.rewards.verifier import verify
from etude.tasks.verifiers import calls_verifier

GOOD = {"m.py": b"def add(a, b):\n    return a + b\n"}
BAD = {"m.py": b"def add(a, b):\n    return a - b\n"}
TASK = Task("add", "Fix add.", BAD, calls_verifier([("m", "add", [1, 2], 3)]))
LOOK = b"mkdir -p /logs/verifier; test ! -e /tests/odd; echo $((1 - $?)) > /logs/verifier/reward.txt"
FLAKY = Task("flaky", "", {}, Verifier({"/tests/test.sh": LOOK}))


def counted(backend, before=None):
    """The backend, and a list with each sandbox that it makes from now on; `before` is called with each."""
    made, create = [], backend.create

    async def create_counted(spec):
        sandbox = await create(spec)
        made.append(sandbox)
        if before is not None:
            await before(len(made), sandbox)
        return sandbox

    backend.create = create_counted
    return made


async def left(backend, command):
    """What an agent left that ran this."""
    agent = await backend.create(SandboxSpec(files=BAD))
    assert (await agent.exec(command)).exit_code == 0
    final = await take_out(agent)
    await agent.destroy()
    return final


def test_a_state_that_was_verified_twice_alike_is_not_verified_again(run):
    async def scenario(backend):
        commands = ("sed -i s/-/+/ m.py", "sed 's/-/+/' m.py > x; cat x > m.py; rm x; touch -d '2001-01-01' m.py")
        same = [await left(backend, command) for command in commands]
        other = await left(backend, "sed -i s/-/+/ m.py; chmod 600 m.py")
        kept, made = Verdicts(100), counted(backend)
        found = [await verify(TASK, state, backend, verdicts=kept) for state in (same[0], same[1], same[1], same[0])]
        assert [(each.reward, each.reason, each.known) for each in found] == [
            (1.0, "passed", False), (1.0, "passed", False), (1.0, "passed", True), (1.0, "passed", True)
        ]  # fmt: skip
        assert len(made) == 2 and found[2].detail == found[0].detail
        stricter = replace(TASK, verifier=calls_verifier([("m", "add", [1, 2], 4)]))
        for task, state, where in [(TASK, other, None), (stricter, same[0], None), (TASK, same[0], Resources(300))]:
            assert not (await verify(task, state, backend, where, verdicts=kept)).known
        assert (await verify(stricter, same[0], backend)).reason == "failed" and len(made) == 6

    run(scenario)


def test_verdicts_that_differ_are_never_used_again(run):
    async def odd(number, sandbox):
        if number == 2:
            await sandbox.exec("touch /tests/odd")

    async def scenario(backend):
        kept, made = Verdicts(100), counted(backend, odd)
        found = [await verify(FLAKY, {}, backend, verdicts=kept) for _ in range(5)]
        assert [each.reward for each in found] == [1.0, 0.0, 1.0, 1.0, 1.0]
        assert len(made) == 5 and not any(each.known for each in found)

    run(scenario)


def test_what_is_not_the_states_doing_is_not_kept(run):
    """A failure of ours is no verdict; and what ran out of time may be the machine's doing."""
    slow = Task("slow", "", {}, Verifier({"/tests/test.sh": b"while :; do :; done"}, timeout_s=0.3))

    async def scenario(backend):
        kept, create = Verdicts(100), backend.create

        async def refused(spec):
            raise SandboxError("our machine is gone")

        said = []
        for works in (False, True, False, True, True):
            backend.create = create if works else refused
            found = await verify(TASK, GOOD, backend, verdicts=kept)
            said.append("failed" if isinstance(found, InfraFailed) else found.known)
        assert said == ["failed", False, "failed", False, True]
        backend.create = create
        for _ in range(3):
            found = await verify(slow, {}, backend, verdicts=kept)
            assert (found.reason, found.known) == ("timeout", False)

    run(scenario)


def test_only_so_many_are_kept_and_the_last_seen_go_first(run):
    async def scenario(backend):
        kept = Verdicts(2)
        states = [{**GOOD, "note": bytes([at])} for at in range(3)]

        async def known(at):
            return (await verify(TASK, states[at], backend, verdicts=kept)).known

        assert [await known(at) for at in (0, 0, 1, 1, 0, 2, 0, 1)] == [False] * 4 + [True, False, True, False]
        assert len(kept) == 2

    run(scenario)


def test_a_known_verdict_is_audited_all_the_same_and_counted(run):
    """Of three sessions that left the same the last has read the tests."""
    log = EventLog()
    log.add("prompt", user="Fix add.", system="", tokens=1)
    log.add("completion", turn=1, text="", tokens=1)
    log.add("tool_call", turn=1, index=0, name="run_terminal_cmd", arguments={"command": "cat /tests/secret"})
    log.add("tool_result", turn=1, index=0, name="run_terminal_cmd", text="{}", error=False)

    async def scenario(backend):
        final = await left(backend, "sed -i s/-/+/ m.py")
        async with RewardConfig(audit="punish").judges() as judges:
            for events in ((), (), log.events):
                sealed = Sealed(SessionResult("s", (), tuple(events), "finished", {}), final)
                judgement = await judge(TASK, sealed, backend, judges)
            counts = judgement.counts()
            assert (counts["verdicts_known"], counts["audited"], counts["cheats_found"]) == (1, 1, 1)
        assert RewardConfig(keep=0).judges().verdicts is None and Judges().verdicts is None

    run(scenario)


def test_a_large_state_is_read_beside_the_event_loop(run, monkeypatch):
    """Were it read on the loop, nothing could open the gate meanwhile."""
    gate = threading.Event()

    def waits(*about):
        assert gate.wait(20), "the event loop stood still"
        return key_of(*about)

    monkeypatch.setattr(room, "key_of", waits)

    async def scenario(backend):
        verifying = asyncio.create_task(verify(TASK, GOOD, backend, verdicts=Verdicts(1)))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.1, gate.set)
        assert (await verifying).reason == "passed"

    run(scenario)


def test_where_a_field_ends_is_part_of_the_key():
    where = ("namespace", Resources())
    assert key_of(TASK, {"a": b"bc"}, where) != key_of(TASK, {"ab": b"c"}, where)
