"""Servers that are killed, restarted and drained: nothing is done twice, and everybody is told. See test_kills too."""

import asyncio
import json

import httpx2
import pytest

from etude.environments.backends import open_backend, open_when_there
from etude.environments.base import SandboxSpec
from etude.environments.journal import Journal
from etude.environments.lives import NodeConfig
from etude.environments.node import Node
from etude.environments.wire import ServerError
from etude.errors import ConfigError, Unreachable
from etude.serving.wire import Answer


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


def test_who_comes_while_the_server_is_away_waits_for_it(make_server):
    server = make_server()
    config = server.remote()
    server.kill()
    with pytest.raises(Unreachable, match="etude environments serve"):
        open_backend(config)

    async def scenario():
        opening = asyncio.ensure_future(open_when_there(config))
        await asyncio.sleep(0.5)
        assert not opening.done()
        await asyncio.to_thread(server.start)
        backend = await opening
        assert (await (await backend.create(SandboxSpec())).exec("echo there")).output == b"there\n"
        await backend.close()

    asyncio.run(scenario())


def test_a_sandbox_whose_guest_is_killed_is_reported_and_ended(make_server):
    server = make_server()

    async def scenario():
        backend = server.client()
        box, other = await backend.create(SandboxSpec()), await backend.create(SandboxSpec())
        running = asyncio.ensure_future(box.exec("sleep 600", timeout_s=900))
        await box.exec("true")
        assert server.kill_guest(server.inner(box))
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
