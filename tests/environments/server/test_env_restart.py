"""Servers that are killed, restarted and drained: nothing is left, nothing is done twice, and everybody is told."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import time

import httpx2
import pytest

from etude.environments.base import SandboxSpec
from etude.environments.journal import Journal
from etude.environments.leftovers import leaks
from etude.environments.lives import NodeConfig
from etude.environments.node import Node
from etude.environments.wire import Answer, ServerError
from etude.errors import ConfigError

KILLS = int(os.environ.get("ETUDE_KILLS", "200"))
SEED = int(os.environ.get("ETUDE_SEED", str(time.time_ns() % 10_000)))
GUESTS_OF_FOUR = 3
"""How many of four kills hit a guest agent; the others hit the server, which is then started again."""


async def operation(backend, box, kind):
    """One thing that takes a while; its result, or the named error that it ended in."""
    try:
        if kind == "create":
            return await backend.create(SandboxSpec(files={"a": b"1"}))
        if kind == "exec":
            return await box.exec("(setsid sleep 600 &); for i in 1 2 3; do echo $i; sleep 0.02; done")
        if kind == "snapshot":
            return await box.snapshot()
        return await box.fork(3)
    except ServerError as error:
        if not error.retryable:
            raise
        return error


async def one_kill(server, backend, dice):
    """Kill something while two operations are under way; how many of them that cut."""
    kinds = dice.choices(("create", "exec", "snapshot", "fork"), k=2)
    box = await backend.create(SandboxSpec(files={"b": b"2"}))
    await box.exec("(setsid sleep 600 &); mkdir d; echo x > d/c")
    inner = inner_name(server, box)
    under_way = [asyncio.ensure_future(operation(backend, box, kind)) for kind in kinds]
    await asyncio.sleep(dice.uniform(0, 0.06))
    if dice.randrange(4) < GUESTS_OF_FOUR:
        kill_guest(inner)
    else:
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    results = await asyncio.gather(*under_way)
    with pytest.raises(ServerError) as lost:
        await box.exec("true")
    assert lost.value.kind == "lost" and lost.value.retryable
    gone = await asyncio.to_thread(left_of, server, inner)
    assert gone == [], gone
    assert server.left() == []
    made = [result for result in (*results, *_flat(results)) if hasattr(result, "exec")]
    for end in await asyncio.gather(*(operation(backend, each, "exec") for each in made)):
        assert isinstance(end, ServerError) or end.exit_code == 0  # lost with the server that made it, or there
    await asyncio.gather(*(each.destroy() for each in made))
    return sum(isinstance(result, ServerError) for result in results)


def _flat(results):
    return [each for result in results if isinstance(result, list) for each in result]


def inner_name(server, box):
    """What the backend calls a sandbox."""
    lines = map(json.loads, (server.directory / "state" / "events.jsonl").read_text().splitlines())
    return next(line["inner"] for line in lines if line["sandbox"] == box.id)


def kill_guest(inner):
    found = subprocess.run(["pgrep", "-f", f"serve .* {inner}$"], capture_output=True, timeout=10)
    assert found.stdout
    for pid in found.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def left_of(server, inner):
    """What is left of one sandbox, once what is ending has had its time."""
    end = time.monotonic() + 20
    while (found := leaks({inner}, server.sandboxes)) and time.monotonic() < end:
        time.sleep(0.02)
    return found


@pytest.mark.timeout(900)
def test_random_kills_leave_nothing_and_every_request_ends(make_server):
    """ETUDE_KILLS says how many, ETUDE_SEED which; the seed is printed where it fails."""
    print("seed", SEED)
    server, dice = make_server(), random.Random(SEED)

    async def scenario():
        backend, cut = server.client(unreachable_s=120), 0
        for _ in range(KILLS):
            async with asyncio.timeout(120):
                cut += await one_kill(server, backend, dice)
        await backend.close()
        assert cut or KILLS < 20, "no kill came while something was under way: the sleeps before it no longer fit"

    asyncio.run(scenario())
    server.stop()
    assert server.left() == []
    every_sandbox_is_accounted_for(server)


def every_sandbox_is_accounted_for(server):
    lines = [json.loads(line) for line in (server.directory / "state" / "events.jsonl").read_text().splitlines()]
    begun = [line["sandbox"] for line in lines if line["event"] in ("created", "forked")]
    ended = [line["sandbox"] for line in lines if line["event"] in ("destroyed", "expired", "failed")]
    assert len(begun) == len(set(begun)) >= KILLS
    assert len(ended) == len(set(ended)) and set(begun) <= set(ended)
    with sqlite3.connect(server.directory / "state" / "journal.sqlite") as db:
        assert db.execute("SELECT count(*) FROM requests WHERE status IS NULL").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM sandboxes WHERE state = 'alive'").fetchone() == (0,)


def test_a_key_outlives_the_server(make_server):
    server = make_server()

    async def scenario():
        headers = {"Authorization": f"Bearer {server.token}"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60, trust_env=False) as http:
            made = await http.post("/sandboxes", headers={"Idempotency-Key": "made"}, json={})
            box = f"/sandboxes/{made.json()['id']}"
            cut = {
                "headers": {"Idempotency-Key": "cut"},
                "json": {"command": "touch begun; sleep 600", "timeout_s": 900},
            }
            running = asyncio.ensure_future(http.post(f"{box}/exec", **cut))
            while (await http.get(f"{box}/files?path=/workspace/begun")).status_code != 200:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(server.kill)
            with pytest.raises(httpx2.TransportError):
                await running
            await asyncio.to_thread(server.start)
            assert (await http.post("/sandboxes", headers={"Idempotency-Key": "made"}, json={})).text == made.text
            assert (await http.get("/sandboxes")).json() == []
            for answer, status, kind in (
                (await http.post(f"{box}/exec", **cut), 503, "interrupted"),
                (await http.post(f"{box}/exec", json={"command": "true"}), 410, "lost"),
                (await http.get(box), 410, "lost"),
            ):
                error = answer.json()["error"]
                assert (answer.status_code, error["kind"], error["retryable"]) == (status, kind, True)
        return made.json()["id"]

    name = asyncio.run(scenario())
    lines = [json.loads(line) for line in (server.directory / "state" / "events.jsonl").read_text().splitlines()]
    assert [(line["event"], line.get("retryable")) for line in lines if line["sandbox"] == name] == [
        ("created", None),
        ("failed", True),
    ]


def test_a_sandbox_whose_guest_is_killed_is_reported_and_ended(make_server):
    server = make_server()

    async def scenario():
        backend = server.client()
        box, other = await backend.create(SandboxSpec()), await backend.create(SandboxSpec())
        running = asyncio.ensure_future(box.exec("sleep 600", timeout_s=900))
        await box.exec("true")
        kill_guest(inner_name(server, box))
        with pytest.raises(ServerError, match="ended") as lost:
            await running
        assert lost.value.kind == "lost" and lost.value.retryable
        assert (await other.exec("echo alive")).output == b"alive\n"
        await backend.close()

    asyncio.run(scenario())
    assert '"failed"' in (server.directory / "state" / "events.jsonl").read_text()


async def create_until_refused(backend):
    while True:
        await (await backend.create(SandboxSpec())).destroy()


@pytest.mark.parametrize(("drain_s", "ends"), [(60, "done"), (0.3, "interrupted")])
def test_stopping_lets_what_is_under_way_end_within_its_time(make_server, drain_s, ends):
    server = make_server(drain_s=drain_s)

    async def scenario():
        backend = server.client(busy_s=0.5)
        box = await backend.create(SandboxSpec())
        running = asyncio.ensure_future(box.exec("touch begun; until [ -e go ]; do sleep 0.02; done; echo done"))
        while (await box.exec("test -e begun")).exit_code:
            await asyncio.sleep(0.02)
        stopping = asyncio.get_running_loop().run_in_executor(None, server.stop)
        if ends == "done":
            with pytest.raises(ServerError) as draining:
                await create_until_refused(backend)
            assert draining.value.kind == "draining" and draining.value.retryable
            await box.write_file("/workspace/go", b"")
            assert (await running).output == b"done\n"
        else:
            with pytest.raises(ServerError) as cut:
                await running
            assert cut.value.kind == "interrupted" and cut.value.retryable
        await stopping
        await backend.connection.close()

    asyncio.run(scenario())
    assert server.left() == []


def test_a_state_directory_has_one_server(make_server):
    server = make_server()
    with pytest.raises(ConfigError, match="another environment server uses"):
        Node(NodeConfig(state_dir=server.directory / "state"))


def test_the_journal_forgets_by_age_and_by_size(tmp_path):
    journal = Journal(tmp_path, keep_s=3600, keep_mb=1)
    for number in range(300):
        journal.begin(f"k{number}", "d")
        journal.finish(f"k{number}", Answer(200, bytes(8192)))
    journal.begin("open", "d")
    assert journal.find("k0") is None and journal.find("k299").answer == Answer(200, bytes(8192))
    journal.close()
    journal = Journal(tmp_path, keep_s=0, keep_mb=1)
    assert journal.find("open").answer is None
    assert journal.recover() == []
    assert journal.find("k299") is None and journal.find("open") is None  # its age counts from its beginning
    journal.close()
