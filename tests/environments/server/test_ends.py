"""The end of a sandbox where it cannot be had at once: it is tried again until it is, and nobody is told otherwise."""

import asyncio
import base64
import contextlib
import json
import os
import resource
import signal
from pathlib import Path

import httpx2
import pytest
from proofs import one_of_each
from sick_disk import mounted

from etude.environments import store
from etude.environments.freezer import Freezer


async def until(happened, deadline_s=60.0):
    """Look until `await happened()` is true."""
    async with asyncio.timeout(deadline_s):
        while not await happened():
            await asyncio.sleep(0.02)


def over_http(server, scenario):
    async def whole():
        headers = {"Authorization": f"Bearer {server.token}"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60, trust_env=False) as http:
            async with asyncio.timeout(120):
                await scenario(http)

    asyncio.run(whole())


@pytest.fixture
def small(tmp_path):
    """The disk of a server's state directory."""
    with mounted(tmp_path / "state", "1m") as disk:
        yield disk


def test_on_a_full_disk_a_sandbox_ends_and_its_record_after_it(make_server, small):
    server = make_server(node={"state_dir": str(small.at)})

    async def scenario(http):
        kept = (await http.post("/sandboxes", json={"ttl_s": 3600})).json()["id"]
        brief = (await http.post("/sandboxes", json={"ttl_s": 6})).json()["id"]
        assert len(server.guests()) == 2
        small.fill()
        refused = (await http.post("/sandboxes", json={})).json()["error"]  # nobody would know of it afterwards
        assert refused["kind"] == "unwritable" and str(small.at) in refused["message"] and len(server.guests()) == 2

        async def all_gone():
            return not server.guests()

        said = await http.delete(f"/sandboxes/{kept}")
        assert said.status_code == 503 and said.json()["error"]["kind"] == "ending"
        assert str(small.at) in said.json()["error"]["message"] and "make room" in said.json()["error"]["message"]
        await until(all_gone)  # its time to live has run out as well
        for name, why in ((kept, "destroyed"), (brief, "to live ran out")):
            told = (await http.get(f"/sandboxes/{name}")).json()
            assert why in told["ending"]["why"]
            used = await http.post(f"/sandboxes/{name}/exec", json={"command": "true"})
            assert used.status_code in (410, 507)
        listed = {each["id"]: each["ending"] for each in (await http.get("/sandboxes")).json()}
        assert set(listed) == {kept, brief} and "make room" in listed[kept]["trouble"]
        small.clear()

        async def none_listed():
            return (await http.get("/sandboxes")).json() == []

        await until(none_listed)
        for name, kind in ((kept, "ended"), (brief, "expired")):
            assert (await http.delete(f"/sandboxes/{name}")).status_code == 200
            gone = (await http.get(f"/sandboxes/{name}")).json()["error"]
            assert gone["kind"] == kind
        assert (await http.post("/sandboxes", json={"ttl_s": 60})).status_code == 200

    over_http(server, scenario)
    lines = [json.loads(line) for line in (small.at / "events.jsonl").read_text().splitlines()]
    assert {line["event"] for line in lines} >= {"created", "destroyed", "expired"}
    server.stop()
    assert server.left() == []


@pytest.mark.proof(11)
def test_a_sandbox_that_is_not_removed_is_said_to_be_there_and_removed_later(make_server):
    server = make_server(constants={"stop_timeout_s": 0.9})

    async def scenario(http):
        made = (await http.post("/sandboxes", json={})).json()["id"]
        asleep = {"command": "sleep 600", "background": True, "timeout_s": None}  # only commands are in that group
        assert (await http.post(f"/sandboxes/{made}/exec", json=asleep)).status_code == 200
        groups = store.groups_by_instance(server.sandboxes.state_dir)
        mine = [path for name in groups if name.startswith(f"{server.process.pid}-") for path in groups[name]]
        frozen = [path for path in mine if os.access(path / "freezer.state", os.W_OK)]  # those of nobody beside us
        if not frozen:
            pytest.skip("needs a version 1 freezer: a process in it cannot be killed while one above stands still")
        try:
            for group in frozen:
                await Freezer.v1(group).freeze("the sandboxes of the server", 60)
            for _ in range(2):  # it is no less true the second time
                said = await http.delete(f"/sandboxes/{made}")
                assert said.status_code == 503 and said.json()["error"]["kind"] == "ending"
                assert said.json()["error"]["retryable"] and "processes of" in said.json()["error"]["message"]
                (listed,) = (await http.get("/sandboxes")).json()
                assert listed["id"] == made and listed["ending"]["why"] == "it has been destroyed"
                assert any(procs.read_text() for group in frozen for procs in group.rglob("cgroup.procs"))
        finally:
            for group in frozen:
                Freezer.v1(group).thaw()

        async def gone():
            return (await http.get("/sandboxes")).json() == []

        await until(gone)  # without being asked again
        assert server.leaked() == [] and (await http.delete(f"/sandboxes/{made}")).status_code == 200

    over_http(server, scenario)
    server.stop()


def test_a_fork_that_cannot_be_written_down_leaves_none(make_server, small):
    server = make_server(node={"state_dir": str(small.at)})

    async def scenario(http):
        made = (await http.post("/sandboxes", json={"ttl_s": 3600})).json()["id"]
        for spare in range(0, 20):  # room for the request, or for some of the forks as well
            small.fill(leave=spare * 4096)
            forked = await http.post(f"/sandboxes/{made}/fork", json={"n": 3})
            listed = [each["id"] for each in (await http.get("/sandboxes")).json() if not each["ending"]]
            if forked.status_code == 200:
                assert len(listed) == len(server.guests()) == 4
                break
            assert forked.json()["error"]["kind"] == "unwritable" and listed == [made]
            small.clear()

            async def settled():
                return len((await http.get("/sandboxes")).json()) == len(server.guests()) == 1

            await until(settled)
        small.clear()
        assert forked.status_code == 200

    over_http(server, scenario)
    server.stop()
    assert server.left() == []


def test_answers_that_could_not_be_written_down_are_given_again(make_server, small):
    """The same key is the same request, also where the disk was full when it ended."""
    server = make_server(node={"state_dir": str(small.at)})

    async def scenario(http):
        made = (await http.post("/sandboxes", json={"ttl_s": 3600})).json()["id"]
        command = {"command": "echo once >> marks; until test -e go; do sleep 0.02; done; cat marks"}
        keyed = {"headers": {"Idempotency-Key": "mine"}, "json": command}
        running = asyncio.ensure_future(http.post(f"/sandboxes/{made}/exec", **keyed))

        async def begun():
            return (await http.get(f"/sandboxes/{made}/files?path=/workspace/marks")).status_code == 200

        await until(begun)
        small.fill()
        (guests,) = server.guests().values()
        inside = [Path(f"/proc/{pid}/root/workspace") for pid in guests]
        next(path for path in inside if (path / "marks").exists()).joinpath("go").touch()
        first = await running
        again = await http.post(f"/sandboxes/{made}/exec", **keyed)
        assert first.status_code == again.status_code == 200 and first.json() == again.json()
        assert base64.b64decode(first.json()["output"]) == b"once\n"

    over_http(server, scenario)
    server.stop()


def test_without_descriptors_a_start_is_refused_in_one_line_and_the_next_works(make_server):
    server = make_server()

    async def scenario(http):
        first = (await http.post("/sandboxes", json={})).json()["id"]
        pid = server.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 16, before[1]))
        made = []
        while (answer := await http.post("/sandboxes", json={})).status_code == 200:
            made.append(answer.json()["id"])
        said = answer.json()["error"]
        assert "Too many open files" in said["message"] and "\n" not in said["message"], said
        assert len(server.guests()) == 1 + len(made)  # nothing of the one refused
        done = await http.delete(f"/sandboxes/{made.pop() if made else first}")
        if done.status_code != 200:  # it is tried again, and there are descriptors once it is gone
            assert done.json()["error"]["kind"] == "ending"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

        async def as_said():
            return len((await http.get("/sandboxes")).json()) == len(server.guests())

        await until(as_said)
        assert (await http.post("/sandboxes", json={})).status_code == 200

    over_http(server, scenario)
    server.stop()
    assert server.left() == []


@pytest.mark.parametrize("seed", one_of_each(0.7, range(6)))
def test_bubblewrap_killed_at_any_moment_of_a_start(make_server, seed):
    """The start fails with an error that may be tried again, or the sandbox turns out to be lost; nothing is left."""
    server = make_server()

    async def scenario(http):
        starting = asyncio.ensure_future(http.post("/sandboxes", json={}))
        for _ in range(seed):
            await asyncio.sleep(0)
        while not (found := children(server.process.pid)) and not starting.done():
            await asyncio.sleep(0)
        for _ in range(seed * 40):  # further and further into it
            await asyncio.sleep(0)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        answer = await starting
        if answer.status_code == 200:
            at = f"/sandboxes/{answer.json()['id']}"
            lost = await http.post(f"{at}/exec", json={"command": "true"})
            assert lost.status_code in (200, 410)
            assert (await http.delete(at)).status_code == 200
        else:
            assert answer.json()["error"]["retryable"], answer.text
        assert (await http.get("/sandboxes")).json() == []

        async def nothing_runs():
            return not children(server.process.pid)

        await until(nothing_runs)
        assert server.leaked() == []

    over_http(server, scenario)
    server.stop()


def children(pid):
    """The processes it has started itself: launchers, which become bubblewrap."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in tasks for child in path.read_text().split()]
