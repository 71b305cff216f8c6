"""The server by plain HTTP: who is let in, what a request's key means, how output comes, what errors say."""

import asyncio
import base64
import json
import os
import stat

import httpx2
import pytest

from etude.errors import ConfigError
from etude.serving.token import own_token
from etude.serving.trust import trust


def over(server, scenario, deadline_s=120, **headers):
    """Run `scenario(http)` with the server's token, unless `headers` say otherwise."""

    async def whole():
        given = {"Authorization": f"Bearer {server.token}", **headers}
        calls = {"timeout": 60, "trust_env": False, "verify": trust(server.url)}
        async with httpx2.AsyncClient(base_url=server.url, headers=given, **calls) as http:
            async with asyncio.timeout(deadline_s):
                return await scenario(http)

    return asyncio.run(whole())


def refused(answer, status, kind, *words):
    """The error of an answer, which must be this one."""
    error = answer.json()["error"]
    assert (answer.status_code, error["kind"]) == (status, kind), answer.text
    assert all(word in error["message"] for word in words), error
    return error


async def create(http, **body):
    answer = await http.post("/sandboxes", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


@pytest.mark.parametrize(
    ("header", "value", "kind"),
    [
        ("Authorization", "Bearer wrong", "unauthorized"),
        ("Authorization", "", "unauthorized"),
        ("Host", "evil.example", "forbidden"),
        ("Host", "127.0.0.1.evil.example:80", "forbidden"),
        ("Origin", "https://evil.example", "forbidden"),
        ("Origin", "null", "forbidden"),
    ],
)
def test_strangers_are_refused_everywhere(server, header, value, kind):
    async def scenario(http):
        asked = [("GET", "/health"), ("GET", "/metrics"), ("POST", "/sandboxes"), ("GET", "/nothing")]
        for method, path in asked[1:] if (header, value) == ("Authorization", "") else asked:  # a probe has no token
            answer = await http.request(method, path)
            refused(answer, 401 if kind == "unauthorized" else 403, kind)
        assert server.token not in answer.text

    over(server, scenario, **{header: value})


def test_its_own_names_and_listed_origins_are_let_in(make_server):
    server = make_server(origins=["https://studio.example"])

    async def scenario(http):
        assert (await http.get("/health")).json()["alive"] == 0

    over(server, scenario, Host="localhost", Origin="https://studio.example")
    over(server, scenario, Host="[::1]:80")


def test_the_token_is_its_owners_alone(tmp_path):
    path = tmp_path / "token"
    token = own_token(path)
    assert own_token(path) == token and len(token) > 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        own_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ConfigError, match="no token"):
        own_token(path)


def test_a_key_is_one_sandbox_however_often_it_comes(server):
    async def scenario(http):
        send = {"headers": {"Idempotency-Key": "one"}, "json": {"labels": {"for": "keys"}}}
        together = await asyncio.gather(*(http.post("/sandboxes", **send) for _ in range(4)))
        later = await http.post("/sandboxes", **send)
        assert {answer.text for answer in (*together, later)} == {later.text}
        assert later.headers["Idempotency-Key"] == "one"
        alive = [box for box in (await http.get("/sandboxes")).json() if box["labels"] == {"for": "keys"}]
        assert [box["id"] for box in alive] == [later.json()["id"]]
        other = await http.post("/sandboxes", headers={"Idempotency-Key": "one"}, json={})
        refused(other, 422, "key_reused", "'one'")
        refused(await http.post("/sandboxes", headers={"Idempotency-Key": "a b"}), 400, "config", "Idempotency-Key")
        await http.delete(f"/sandboxes/{later.json()['id']}")
        assert (await http.post("/sandboxes", **send)).text == later.text  # the answer stays what it was

    over(server, scenario)


WAITS = "echo x >> n; until test -e go; do sleep 0.02; done"


def test_a_command_runs_once_and_its_waiting_can_be_taken_up_again(server):
    async def scenario(http):
        box = await create(http)
        send = {"headers": {"Idempotency-Key": "slow", "Prefer": "wait=0"}, "json": {"command": WAITS}}
        assert (await http.post(f"/sandboxes/{box}/exec", **send)).status_code == 202
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):  # a client that goes away
                await http.post(f"/sandboxes/{box}/exec", headers={"Idempotency-Key": "slow"}, json=send["json"])
        assert (await http.put(f"/sandboxes/{box}/files", params={"path": "/workspace/go"})).status_code == 200
        done = await http.post(f"/sandboxes/{box}/exec", headers={"Idempotency-Key": "slow"}, json=send["json"])
        assert done.json()["exit_code"] == 0
        assert (await http.get(f"/sandboxes/{box}/files", params={"path": "/workspace/n"})).content == b"x\n"

    over(server, scenario)


def test_a_request_can_be_cancelled_also_before_it_comes(server):
    async def scenario(http):
        box = await create(http)
        send = {
            "headers": {"Idempotency-Key": "stop"},
            "json": {"command": "echo $$ > pid; exec sleep 600", "timeout_s": 900},
        }
        running = asyncio.ensure_future(http.post(f"/sandboxes/{box}/exec", **send))
        while (await http.get(f"/sandboxes/{box}/files", params={"path": "/workspace/pid"})).status_code != 200:
            await asyncio.sleep(0.02)
        await http.delete("/requests/stop")
        refused(await running, 409, "cancelled")
        gone = await http.post(f"/sandboxes/{box}/exec", json={"command": "kill -0 $(cat pid)"})
        assert gone.json()["exit_code"] == 1
        await http.delete("/requests/early")
        late = await http.post(
            f"/sandboxes/{box}/exec", headers={"Idempotency-Key": "early"}, json={"command": "touch no"}
        )
        refused(late, 409, "cancelled", "before it came")
        refused(await http.get(f"/sandboxes/{box}/files", params={"path": "/workspace/no"}), 404, "os")

    over(server, scenario)


def test_output_comes_while_the_command_runs(server):
    async def scenario(http):
        box = await create(http)
        command = "echo one; until [ -e go ]; do sleep 0.02; done; echo two >&2; exit 3"
        send = {"json": {"command": command}, "headers": {"Idempotency-Key": "told"}}
        told = []
        async with http.sse(f"/sandboxes/{box}/exec", method="POST", **send) as source:
            async for event in source:
                told.append((event.event, event.data))
                if len(told) == 1:  # it waits for us: what we have been told came before its end
                    await http.put(f"/sandboxes/{box}/files?path=/workspace/go")
        assert [kind for kind, _ in told] == ["output", "output", "end"]
        assert [base64.b64decode(data) for _, data in told[:2]] == [b"one\n", b"two\n"]
        end = json.loads(told[-1][1])
        assert end["exit_code"] == 3 and base64.b64decode(end["output"]) == b"one\ntwo\n"
        async with http.sse(f"/sandboxes/{box}/exec", method="POST", **send) as source:
            assert [(event.event, event.data) async for event in source] == told[-1:]

    over(server, scenario)


def test_a_stream_from_where_it_broke_off(server):
    async def scenario(http):
        box = await create(http)
        started = await http.post(
            f"/sandboxes/{box}/exec",
            json={"command": "printf abcdef; sleep 600", "background": True, "timeout_s": None},
        )
        at = f"/sandboxes/{box}/processes/{started.json()['process']}"
        async with http.sse(f"{at}/output", params={"from": 4}) as source:
            async for event in source:
                assert base64.b64decode(event.data) == b"ef"
                break
        assert (await http.get(at, params={"wait_s": 0.1})).json() == {"result": None, "paused": False}
        assert [each["running"] for each in (await http.get(f"/sandboxes/{box}/processes")).json()] == [True]
        await http.delete(at)
        assert (await http.get(at, params={"wait_s": 20})).json()["result"]["exit_code"] == 137
        refused(await http.get(f"/sandboxes/{box}/processes/999"), 404, "os", "no background command")

    over(server, scenario)


def test_what_is_wrong_is_named(server):
    async def scenario(http):
        box = f"/sandboxes/{await create(http)}"
        refused(await http.post("/sandboxes", json={"bogus": 1}), 400, "config", "bogus")
        refused(await http.post("/sandboxes", content=b"{"), 400, "config", "JSON")
        refused(await http.post("/sandboxes", json={"isolation": "vm"}), 400, "config", "'vm'", "namespace", "doctor")
        refused(await http.post("/sandboxes", json={"backend": "qemu"}), 400, "config", "'qemu'", "namespace")
        refused(await http.post("/sandboxes", json={"backend": "namespace", "isolation": "vm"}), 400, "config", "'vm'")
        refused(await http.post("/sandboxes", json={"resources": {"memory_mb": 0}}), 400, "config", "memory_mb")
        refused(await http.post("/sandboxes", json={"files": {"../up": "eA=="}}), 400, "config", "..")
        refused(await http.post("/sandboxes", json={"base": "snap-none"}), 404, "not_found", "snap-none")
        refused(await http.get("/sandboxes/box-none"), 404, "not_found", "box-none")
        refused(await http.get("/nothing"), 404, "no_route", "/nothing")
        refused(await http.put("/sandboxes"), 405, "no_route")
        refused(await http.get(f"{box}/files", params={"path": "relative"}), 400, "config", "absolute")
        error = refused(await http.get(f"{box}/files", params={"path": "/workspace/none"}), 404, "os")
        assert error["errno"] == 2 and error["filename"] == "/workspace/none" and not error["retryable"]
        refused(
            await http.post(f"{box}/exec", json={"command": "true", "timeout_s": None}), 400, "config", "background"
        )
        refused(await http.post(f"{box}/fork", json={"n": 0}), 400, "config", "n:")
        await http.delete(box)
        refused(await http.post(f"{box}/exec", json={"command": "true"}), 410, "ended", "destroyed")
        assert (await http.delete(box)).status_code == 200  # again is fine

    over(server, scenario)


def test_bodies_have_a_limit_said_or_not(make_server):
    server = make_server(max_body_mb=1)

    async def scenario(http):
        box = await create(http)
        put = f"/sandboxes/{box}/files?path=/workspace/big"
        refused(await http.put(put, content=bytes(2 << 20)), 413, "too_large")

        async def pieces():
            for _ in range(40):
                yield bytes(64 << 10)

        refused(await http.put(put, content=pieces()), 413, "too_large")
        refused(await http.get(f"/sandboxes/{box}/files", params={"path": "/workspace/big"}), 404, "os")
        assert (await http.put(put, content=bytes(1 << 19))).status_code == 200

    over(server, scenario)


def test_too_many_starts_are_told_to_come_again(server):
    async def scenario(http):
        answers = await asyncio.gather(*(http.post("/sandboxes", json={}) for _ in range(16)))
        busy = [answer for answer in answers if answer.status_code == 429]
        made = [answer.json()["id"] for answer in answers if answer.status_code == 200]
        assert len(busy) + len(made) == 16 and busy and len(made) >= 6
        error = refused(busy[0], 429, "busy", "waiting")
        assert error["retryable"] and int(busy[0].headers["Retry-After"]) >= 1
        key = busy[0].headers["Idempotency-Key"]
        again = await http.post("/sandboxes", json={}, headers={"Idempotency-Key": key})  # nothing had been done by it
        assert again.status_code == 200
        for name in (*made, again.json()["id"]):
            await http.delete(f"/sandboxes/{name}")

    over(server, scenario)


def test_figures_and_events_tell_what_happened(make_server):
    server = make_server()

    async def scenario(http):
        box = f"/sandboxes/{await create(http, labels={'task': 't'})}"
        await http.post(f"{box}/exec", json={"command": "exit 4"})
        kept = (await http.post(f"{box}/snapshot")).json()
        assert [each["id"] for each in (await http.get("/snapshots")).json()] == [kept["id"]]
        (fork,) = (await http.post(f"{box}/fork", json={"n": 1})).json()
        await http.post(f"{box}/pause")
        refused(await http.post(f"{box}/exec", json={"command": "true"}), 409, "paused", "resume")
        await http.post(f"{box}/resume")
        await http.delete(box)
        await http.delete(f"/snapshots/{kept['id']}")
        assert (await http.get("/snapshots")).json() == []
        text = (await http.get("/metrics")).text
        for line in (
            'etude_environments_alive{backend="namespace"} 1.0',
            'etude_environments_create_seconds_count{backend="namespace"} 1.0',
            'etude_environments_exec_seconds_count{backend="namespace"} 1.0',
            'etude_environments_fork_seconds_count{backend="namespace"} 1.0',
            'etude_environments_steps_total{step="forked"} 1.0',
            "etude_environments_starts_waiting 0.0",
            "etude_environments_leaks 0.0",
        ):
            assert line in text, text
        if os.path.exists("/proc/pressure/cpu"):
            assert 'etude_environments_pressure{kind="some",resource="cpu"}' in text
        return box.rpartition("/")[2], fork["id"]

    box, fork = over(server, scenario)
    server.stop()
    lines = [json.loads(line) for line in (server.directory / "state" / "events.jsonl").read_text().splitlines()]
    steps = [(line["event"], line["sandbox"]) for line in lines]
    mine = ["created", "exec", "snapshot", "paused", "resumed", "destroyed"]
    assert [step for step, name in steps if name == box] == mine
    assert [step for step, name in steps if name == fork] == ["forked", "destroyed"]
    assert lines[0]["labels"] == {"task": "t"} and lines[1]["exit_code"] == 4
    assert lines[-1]["why"] == "the server was stopped" and all("timestamp" in line for line in lines)
    assert server.left() == []


def test_what_no_request_has_is_refused(server):
    """Keys of a body, parameters, and values of them; also where a route has none of these."""

    async def scenario(http):
        box = f"/sandboxes/{await create(http)}"
        for way in ("snapshot", "pause", "resume"):
            refused(await http.post(f"{box}/{way}", json={"bogus": 1}), 400, "config", "bogus")
            refused(await http.post(f"{box}/{way}", content=b"x"), 400, "config", "not JSON")
            refused(await http.post(f"{box}/{way}", params={"n": "2"}), 400, "config", "n: unknown parameter")
        refused(await http.request("DELETE", box, json={"force": True}), 400, "config", "force")
        for method, path, query, word in (
            ("GET", f"{box}/files", "path=/a&max_byte=3", "max_byte: unknown parameter; known here: max_bytes, path"),
            ("GET", f"{box}/files", "path=/a&path=/b", "path: given twice"),
            ("GET", f"{box}/files", "path=/a&max_bytes=", "max_bytes"),
            ("GET", f"{box}/files", "path=/a%00b", "path"),
            ("GET", f"{box}/files/list", "path=a", "path"),
            ("GET", f"{box}/archive/part", "path=/a&skip=-1", "skip"),
            ("DELETE", f"{box}/files", "path=/workspace&recursive=yes", "recursive"),
            ("PUT", f"{box}/files", "path=/a&recursive=true", "recursive: unknown parameter"),
            ("GET", f"{box}/processes/1", "wait=3", "wait: unknown parameter; known here: wait_s"),
            ("GET", "/sandboxes", "label=a", "label: unknown parameter; known here: none"),
            ("DELETE", box, "now=1", "now: unknown parameter"),
        ):
            refused(await http.request(method, f"{path}?{query}"), 400, "config", word)
        assert (await http.get(box)).json()["paused"] is False
        assert (await http.get("/snapshots")).json() == []
        for way in ("pause", "resume"):
            assert (await http.post(f"{box}/{way}", json={})).status_code == 200
        await http.delete(box)

    over(server, scenario)


def test_a_snapshot_that_is_not_there_cannot_be_released(server):
    async def scenario(http):
        box = f"/sandboxes/{await create(http)}"
        kept = (await http.post(f"{box}/snapshot")).json()["id"]
        assert (await http.delete(f"/snapshots/{kept}")).status_code == 200
        for name in ("nope", kept):
            refused(await http.delete(f"/snapshots/{name}"), 404, "not_found", f"no snapshot {name}", "released")
        await http.delete(box)

    over(server, scenario)
