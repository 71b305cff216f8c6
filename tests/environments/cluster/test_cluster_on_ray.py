"""A cluster on Ray: sandboxes on two machines, a queue people can see, and every process of it killed in its turn."""

import asyncio
import contextlib
import os
import random
import signal

import pytest
from cluster_machines import SMALL, left_by, until
from proofs import one_of_each

from etude.environments.backends import open_backend
from etude.environments.base import SandboxSpec
from etude.environments.cluster.config import ClusterConfig
from etude.environments.wire import ServerError
from etude.errors import DeadlineExceeded, Overloaded, SandboxError

SPEC = SandboxSpec(files={"sub/a": b"1"}, resources=SMALL, labels={"who": "test"})


@pytest.fixture
def run(pair):
    """Run `scenario(backend, pair)`; afterwards nothing is alive, and nothing of dead processes is left."""

    def runner(scenario, deadline_s=120.0, **given):
        async def whole():
            backend = open_backend(pair.asking(**given))
            try:
                async with asyncio.timeout(deadline_s):
                    await scenario(backend, pair)
            finally:
                await backend.close()

            async def empty():
                return (await backend.figures())["memory_reserved"] == 0

            await until("every sandbox to be accounted for", empty)

        asyncio.run(whole())
        for name, config in pair.configs.items():
            assert left_by(config, pair.pids[name][:-1]) == []

    return runner


async def two_each(backend):
    return await asyncio.gather(*(backend.create(SPEC) for _ in range(4)))


def test_sandboxes_are_on_both_machines_and_work(run):
    async def scenario(backend, pair):
        assert (backend.capabilities.name, backend.capabilities.isolation) == ("namespace", "namespace")
        boxes = await two_each(backend)
        assert sorted(box.node for box in boxes) == ["left", "left", "right", "right"]
        box = boxes[0]
        result = await box.exec("cat sub/a; echo $A; exit 3", env={"A": "b"}, timeout_s=20)
        assert (result.exit_code, result.output) == (3, b"1b\n")
        await box.write_file("/workspace/new", bytes(200_000))
        assert len(await box.read_file("/workspace/new")) == 200_000
        with pytest.raises(FileNotFoundError):
            await box.read_file("/workspace/not there")
        assert [entry.name for entry in await box.list_dir("/workspace")] == ["new", "sub"]
        process = await box.start("for i in 1 2 3; do echo $i; sleep 0.05; done; sleep 60")
        pieces, seen = aiter((await box.connect(process.id)).output()), b""
        while seen != b"1\n2\n3\n":
            seen += await anext(pieces)
        with pytest.raises(DeadlineExceeded, match="to end"):
            await process.wait(0.1)
        await process.kill()
        assert [piece async for piece in pieces] == [] and (await process.wait(120)).exit_code == 137
        await box.pause()
        with pytest.raises(ServerError, match="paused"):
            await box.exec("true")
        await box.resume()
        assert (await box.metrics()).memory_bytes > 0

    run(scenario)


def test_who_is_cancelled_has_stopped_its_command_where_it_ran(run):
    async def scenario(backend, pair):
        box = await backend.create(SPEC)
        running = asyncio.ensure_future(box.exec("touch begun; sleep 78.5", timeout_s=100))
        await until("the command", lambda: there(box, "/workspace/begun"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await box.exec("pgrep -fx 'sleep 78.5'")).exit_code == 1

    run(scenario)


async def there(box, path):
    with contextlib.suppress(FileNotFoundError):
        return await box.read_file(path) == b""


def test_forks_are_on_their_parents_machine_and_wait_for_room_there(run):
    async def scenario(backend, pair):
        box, other = await backend.create(SPEC), await backend.create(SPEC)
        if box.node == other.node:
            await other.destroy()  # forks need the room
        await box.exec("echo 2 > b")
        (fork,) = await box.fork(1)
        assert fork.node == box.node and (await fork.exec("cat sub/a b")).output == b"12\n"
        late = asyncio.ensure_future(box.fork(1))

        async def waits():
            return await backend.waiting()

        (line,) = await until("a line in the queue", waits)
        assert line.position == 0 and line.priority == "training" and line.waiting_s >= 0
        await fork.destroy()
        (forked,) = await late
        assert forked.node == box.node
        snapshot = await box.snapshot()
        await forked.destroy()
        old = await backend.create(SandboxSpec(base=snapshot, resources=SMALL))
        assert await old.read_file("/workspace/b") == b"2\n"
        await backend.release(snapshot)
        with pytest.raises(SandboxError, match="snapshot"):
            await backend.create(SandboxSpec(base=snapshot, resources=SMALL))

    run(scenario)


def test_the_queue_is_seen_the_interactive_go_first_and_too_many_are_refused(run):
    async def scenario(backend, pair):
        boxes = await two_each(backend)
        patient = [asyncio.ensure_future(backend.create(SPEC)) for _ in range(5)]

        async def all_five():
            return len(await backend.waiting("training")) == 5

        await until("five in the queue", all_five)
        lines = await backend.waiting("training")
        assert [line.position for line in lines] == [0, 1, 2, 3, 4] and lines[0].why.startswith("for a node")
        impatient = open_backend(pair.asking(start_s=0.5))
        with pytest.raises(Overloaded, match="wait already"):
            await impatient.create(SPEC)
        person = open_backend(pair.asking(priority="interactive", tenant="someone"))
        coming = asyncio.ensure_future(person.create(SPEC))

        async def a_person():
            return await backend.waiting("interactive")

        (line,) = await until("a person in the queue", a_person)
        assert line.tenant == "someone"
        await boxes.pop().destroy()
        box = await coming
        assert not any(start.done() for start in patient)
        await person.close()
        await asyncio.wait(patient, return_when=asyncio.FIRST_COMPLETED)
        for start in patient:
            start.cancel()  # who was waiting gives its place in the queue back
        ends = await asyncio.gather(*patient, return_exceptions=True)
        assert sum(isinstance(end, asyncio.CancelledError) for end in ends) == 4
        assert await backend.waiting("training") == []
        with pytest.raises(ServerError, match="destroyed"):
            await box.exec("true")
        too_large = SandboxSpec(resources=type(SMALL)(memory_mb=100_000))
        with pytest.raises(SandboxError, match="even when empty"):
            await backend.create(too_large)

    run(scenario)


@pytest.mark.parametrize("kind", one_of_each(2.5, ["exec", "create", "snapshot", "fork"]))
def test_a_killed_agent_costs_named_errors_and_leaves_nothing(run, kind):
    async def scenario(backend, pair):
        box = await backend.create(SPEC)
        await box.exec("(setsid sleep 600 &); echo x > c")
        doomed = box.node
        under_way = [asyncio.ensure_future(operation(backend, box, kind)) for _ in range(2)]
        await asyncio.sleep(random.uniform(0, 0.04))
        os.kill(pair.pids[doomed][-1], signal.SIGKILL)
        results = await asyncio.gather(*under_way)
        if kind == "exec":
            assert all(isinstance(result, ServerError) for result in results)

        pair.pids[doomed].append(await pair.pid_of_the_next(doomed))
        with pytest.raises(ServerError) as lost:
            await box.exec("true")
        assert lost.value.retryable
        for made in results:
            for each in made if isinstance(made, list) else [made]:
                if hasattr(each, "exec"):
                    end = await operation(backend, each, "exec")
                    assert isinstance(end, ServerError) or end.exit_code == 0
        assert left_by(pair.configs[doomed], pair.pids[doomed][:-1]) == []
        again = await backend.create(SPEC)
        assert (await again.exec("cat sub/a")).output == b"1"

    run(scenario)


async def operation(backend, box, kind):
    """One thing that takes a while; its result, or the named error, which may be tried again, that it ended in."""
    try:
        if kind == "create":
            return await backend.create(SPEC)
        if kind == "exec":
            return await box.exec("for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done")
        if kind == "snapshot":
            return await box.snapshot()
        return list(await box.fork(1))
    except ServerError as error:
        if not error.retryable:
            raise
        return error


def test_a_killed_scheduler_adopts_what_runs_and_serves_who_asked(run):
    async def scenario(backend, pair):
        boxes = [await backend.create(SPEC) for _ in range(3)]
        running = asyncio.ensure_future(boxes[0].exec("sleep 1; echo done", timeout_s=30))
        os.kill(await pair.launched.scheduler.pid.remote(), signal.SIGKILL)
        asked = asyncio.ensure_future(backend.create(SPEC))
        assert (await boxes[1].exec("cat sub/a")).output == b"1"  # which does not go through it
        assert (await running).output == b"done\n"
        made = await asked
        assert (await made.exec("cat sub/a")).output == b"1"
        assert (await backend.figures())["adopted"] >= 3
        for box in (*boxes, made):
            assert (await box.exec("true")).exit_code == 0
        await boxes[0].destroy()
        assert (await backend.figures())["requests_failed"] == 0

    run(scenario)


def test_a_cluster_that_is_not_there_or_offers_something_else_is_named(pair):
    with pytest.raises(SandboxError, match="no cluster 'nowhere' runs"):
        open_backend(ClusterConfig(name="nowhere"))
    with pytest.raises(DeadlineExceeded, match=r"isolation = 'vm'.*namespace"):
        open_backend(pair.asking(isolation="vm", open_s=0.5))
