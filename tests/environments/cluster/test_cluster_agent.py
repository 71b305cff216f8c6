"""An agent with real sandboxes and a real scheduler in one process, and the line between them, which can be cut."""

import asyncio

import pytest
from cluster_machines import SMALL, kill_guest, machine, serving, until

from etude.environments.base import SandboxSpec
from etude.environments.cluster.agent import Agent
from etude.environments.cluster.service import ClusterMachine, Service
from etude.environments.leftovers import leaks
from etude.environments.scheduling.ledger import State
from etude.environments.scheduling.messages import (
    Ended,
    Heartbeat,
    Hello,
    KillSandbox,
    Placed,
    PlaceSandbox,
    Request,
    snapshot_key,
)
from etude.environments.wire import ExecBody, ServerError
from etude.errors import ConfigError, SandboxError


class Line:
    """One agent and the scheduler it reports to, in whichever life that is."""

    def __init__(self, directory, service=None):
        self.service = service
        self.up = True
        self.said = []
        self.agent = Agent("m", machine(directory), self.tell, self.unpack)
        self.sandboxes = self.agent.config.node.backends[0]

    async def tell(self, messages):
        if not self.up:
            raise SandboxError("the line is cut")
        self.said += messages
        if self.service is None:
            return "an ear"
        greets = any(isinstance(message, Hello) for message in messages)
        reached = ClusterMachine(self.agent, self.send, tuple(self.agent.node.capabilities)) if greets else None
        return self.service.receive("m", messages, reached)

    async def send(self, orders):
        if not self.up:
            raise SandboxError("the line is cut")
        self.agent.obey(orders)

    async def unpack(self, given):
        if isinstance(given, Exception):
            raise given
        return given

    def words(self, kind):
        return [message for message in self.said if isinstance(message, kind)]

    async def restart_scheduler(self):
        await self.service.stop()
        self.service = Service(self.service.config, restarted=True)
        self.service.start()

    async def ready(self, name, spec=None, **given):
        standing = await self.service.ask(request(name, **given), spec, 20)
        assert standing.state is State.READY, standing
        return standing

    async def runs(self, sandbox, command):
        return (
            await self.agent.call(sandbox, "exec", **ExecBody(command=command).model_dump(exclude={"background"}))
        ).output


def request(name, **given):
    return Request(name, "a", resources=SMALL, ttl_s=300.0, **given)


def place(sandbox, action="create", warm=False, **given):
    return PlaceSandbox(sandbox, "m", action, request(sandbox.partition(".")[0], **given), "namespace", warm=warm)


@pytest.fixture
def run(tmp_path):
    """Run `scenario(line)` with an agent, and a scheduler unless there is to be none, then close both."""

    def runner(scenario, scheduler=True, deadline_s=60.0, **given):
        async def whole():
            line = Line(tmp_path, Service(serving(**given), restarted=False) if scheduler else None)
            try:
                if line.service is not None:
                    line.service.start()
                line.agent.start()
                async with asyncio.timeout(deadline_s):
                    await scenario(line)
            finally:
                await line.agent.close()
                if line.service is not None:
                    line.service.scheduler.check()
                    await line.service.stop()

        asyncio.run(whole())

    return runner


def test_orders_are_carried_out_once_and_answered_each_time(run):
    async def scenario(line):
        order = place("r.0.1")
        line.agent.obey([(order, SandboxSpec(files={"a": b"1"}, labels={"who": "me"})), (order, None)])
        await until("the start", lambda: line.words(Placed))
        line.agent.obey([(order, None)])
        await until("the second answer", lambda: len(line.words(Placed)) == 2)
        (live,) = line.agent.node.sandboxes()
        assert live.spec.labels == {"who": "me", "sandbox": "r.0.1"}
        assert await line.runs("r.0.1", "cat a") == b"1"
        kill = KillSandbox("r.0.1", "m", "destroyed")
        line.agent.obey([(kill, None), (kill, None)])
        await until("the end", lambda: line.words(Ended))
        assert line.agent.node.sandboxes() == [] and leaks({live.sandbox.id}, line.sandboxes) == []
        line.agent.obey([(kill, None), (order, None)])
        await until("two more answers", lambda: len(line.words(Ended)) == 3)
        assert [word.failed for word in line.words(Placed)] == [None, None] and line.agent.node.sandboxes() == []

    run(scenario, scheduler=False)


def test_a_start_that_is_killed_leaves_nothing_and_was_never_there(run):
    async def scenario(line):
        for number in range(5):
            line.agent.obey([(place(f"r.0.{number}"), None)])
            await asyncio.sleep(0.005 * number)
            line.agent.obey([(KillSandbox(f"r.0.{number}", "m", "cancelled"), None)])
        await until("five ends", lambda: len(line.words(Ended)) == 5)
        assert line.agent.node.sandboxes() == []
        with pytest.raises(ServerError, match="cancelled") as ended:
            await line.runs("r.0.4", "true")
        assert ended.value.kind == "ended"

    run(scenario, scheduler=False)


def test_a_failed_start_says_why_and_whether_to_try_again(run):
    async def scenario(line):
        line.agent.obey([
            (place("wrong.0.1", image="no such image"), None),
            (place("late.0.1"), SandboxError("its caller is gone")),
            (place("moved.0.1", action="fork", snapshot="elsewhere/snap-1"), None),
            (place("warm.0.1", action="resume"), None),
        ])  # fmt: skip
        await until("four failures", lambda: len(line.words(Placed)) == 4)
        failed = {word.sandbox.partition(".")[0]: word for word in line.words(Placed)}
        assert "no such image" in failed["wrong"].failed and not failed["wrong"].retryable
        assert "its caller is gone" in failed["late"].failed and failed["late"].retryable
        assert "elsewhere" in failed["moved"].failed and "kept warm" in failed["warm"].failed

    run(scenario, scheduler=False)


def test_a_warm_sandbox_is_handed_over_with_the_files_of_its_request(run):
    async def scenario(line):
        line.agent.obey([(place("warm.0.1", warm=True), None)])
        await until("the warm one", lambda: line.words(Placed))
        given = SandboxSpec(files={"sub/a": b"1"})
        line.agent.obey([(PlaceSandbox("warm.0.1", "m", "resume", request("r"), "namespace"), given)])
        await until("the handing over", lambda: len(line.words(Placed)) == 2)
        assert await line.runs("warm.0.1", "cat sub/a") == b"1"
        line.agent.reporter.send_hello()
        await until("a second greeting", lambda: len(line.words(Hello)) == 2)
        (order,) = line.words(Hello)[1].sandboxes
        assert order.request.id == "r" and not order.warm
        (live,) = line.agent.node.sandboxes()
        assert live.spec.ttl_s == pytest.approx(360.0)

    run(scenario, scheduler=False)


def test_nothing_said_is_lost_with_the_line(run):
    async def scenario(line):
        await until("the greeting", lambda: line.words(Hello))
        line.up = False
        line.agent.obey([(place("there.0.1"), None), (place("wrong.0.1", image="no such image"), None)])
        await until("the start", line.agent.node.sandboxes)
        await asyncio.sleep(0.5)
        said, line.said, line.up = line.said, [], True
        await until("the word of the failure", lambda: line.words(Placed))
        first = line.said[0]
        assert isinstance(first, Hello) and [order.sandbox for order in first.sandboxes] == ["there.0.1"]
        assert [word.sandbox for word in line.words(Placed)] == ["wrong.0.1"]
        assert len([word for word in said if isinstance(word, Hello)]) == 1 and line.agent.reporter.unheard
        numbers = [word.seq for word in said + line.said if isinstance(word, Hello | Heartbeat)]
        assert numbers == sorted(set(numbers))

    run(scenario, scheduler=False)


def test_a_request_is_placed_used_and_ended(run):
    async def scenario(line):
        standing = await line.ready("r", SandboxSpec(files={"a": b"1"}))
        assert standing.node == "m" and await line.runs(standing.sandbox, "cat a") == b"1"
        assert (await line.service.ask(request("r"), None, 5)) == standing  # the same id is the same sandbox
        line.service.end("r", "destroyed")
        await until("the end", lambda: not line.agent.node.sandboxes())
        await until("the room", lambda: not line.service.scheduler.fleet.leases)
        figures = line.service.figures()
        assert figures["requests_ended"] == 1 and figures["requests_failed"] == 0

    run(scenario)


def test_a_sandbox_that_fails_or_whose_time_is_up_is_told_at_once(run):
    async def scenario(line):
        failing, ending = await line.ready("failing"), await line.ready("ending")
        box = {live.spec.labels["sandbox"]: live for live in line.agent.node.sandboxes()}
        kill_guest(box[failing.sandbox].sandbox.id)
        with pytest.raises(ServerError) as lost:
            await line.runs(failing.sandbox, "true")
        assert lost.value.kind == "lost" and lost.value.retryable
        line.agent.node.set_ttl(box[ending.sandbox], 0.05)
        await until("both ends", lambda: len(line.words(Ended)) == 2)
        assert {(word.sandbox, word.why) for word in line.words(Ended)} == {
            (failing.sandbox, "crashed"),
            (ending.sandbox, "killed"),
        }
        failed, ended = [await line.service.ask(request(name), None, 5) for name in ("failing", "ending")]
        assert failed.state is State.FAILED and failed.failure.retryable and ended.state is State.ENDED
        with pytest.raises(ServerError) as expired:
            await line.runs(ending.sandbox, "true")
        assert expired.value.kind == "expired"

    run(scenario)


def test_a_scheduler_that_begins_anew_adopts_what_runs_and_kills_what_is_nobodys(run):
    async def scenario(line):
        kept, stray = await line.ready("kept"), await line.ready("stray")
        await line.restart_scheduler()
        again, other = await asyncio.gather(line.ready("kept"), line.ready("stray"))
        assert (again.sandbox, other.sandbox) == (kept.sandbox, stray.sandbox)
        assert line.service.figures()["adopted"] == 2
        assert await line.runs(kept.sandbox, "echo here") == b"here\n"
        line.agent.obey([(place("nobodys.0.1"), None)])
        await until("its end", lambda: "nobodys.0.1" in [word.sandbox for word in line.words(Ended)])
        assert "nobodys.0.1" in [word.sandbox for word in line.words(Placed)]
        assert len(line.agent.node.sandboxes()) == 2
        assert line.service.figures()["leaks_killed"]

    run(scenario)


def test_a_snapshot_is_known_when_it_is_there_and_its_forks_stay_with_it(run):
    async def scenario(line):
        standing = await line.ready("r", SandboxSpec(files={"a": b"1"}))
        await line.runs(standing.sandbox, "echo 2 > b")
        snapshot = await line.agent.snapshot(standing.sandbox)
        assert line.service.scheduler.fleet.held(snapshot_key(snapshot))
        fork = await line.ready("fork", snapshot=snapshot)
        assert await line.runs(fork.sandbox, "cat a b") == b"12\n"
        await line.agent.release(snapshot)
        await until("word of it", lambda: not line.service.scheduler.fleet.held(snapshot_key(snapshot)))
        gone = await line.service.ask(request("late", snapshot=snapshot), None, 20)
        assert gone.state is State.FAILED and not gone.failure.retryable

    run(scenario)


def test_what_callers_may_do_is_listed(run):
    async def scenario(line):
        standing = await line.ready("r")
        for verb in ("fork", "close"):
            with pytest.raises(ConfigError, match="no such call"):
                await line.agent.call(standing.sandbox, verb)
        with pytest.raises(ProcessLookupError):
            await line.agent.call(standing.sandbox, "wait", process=12345, wait_s=0.0)

    run(scenario)
