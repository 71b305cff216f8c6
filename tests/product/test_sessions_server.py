"""`etude sessions serve`, as a process, over a real socket: everything a page asks, kill -9 and restart included."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from schema_fuzz import MODES, fuzz, name_of
from scripted_openai import Reply, ScriptedServer

from etude.product.sessions.routes import OPERATIONS, Routes, openapi

Json = dict[str, Any]
WRITE = ("write_file", {"path": "new.txt", "content": "hello\n"})


def run(command: str) -> tuple[str, Json]:
    return "run_terminal_cmd", {"command": command}


class Serving:
    """A server in a process of its own, and a client with its token."""

    def __init__(self, root: Path, server: ScriptedServer, *more: str) -> None:
        self.root = root
        line = [sys.executable, "-m", "etude.cli.main", "sessions", "serve", "--json", "--set", "port=0", *more]
        agent = ["--agent-set", f'endpoint.url="{server.url}"', "--agent-set", 'endpoint.model="m"']
        agent += ["--agent-set", "workspace.start_timeout_s=180"]  # a machine that is busy with other tests is no fault
        env = {**os.environ, "ETUDE_HOME": str(root / "home"), "XDG_CONFIG_HOME": str(root / "config")}
        self.process = subprocess.Popen([*line, *agent], stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.url, self.token = said["url"], Path(said["token_file"]).read_text().strip()
        self.http = httpx2.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=200, trust_env=False
        )

    def ask(self, method: str, path: str, status: int = 200, **body: Any) -> Json:
        answer = self.http.request(method, path, json=body if method == "POST" else None)
        assert answer.status_code == status, answer.text
        return answer.json()

    def begin(self, **body: Any) -> str:
        return self.ask("POST", "/sessions", 201, directory=str(self.root / "project"), **body)["id"]

    @contextlib.contextmanager
    def listening(self, session: str, after: int = 0, **headers: str) -> Iterator[Iterator[tuple[str, int, Json]]]:
        """(name, id, data) of each event, as it comes; lines of the log have the name `message`."""
        with self.http.stream("GET", f"/sessions/{session}/events?after={after}", headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield _events(response)

    def until(self, session: str, name: str, after: int = 0) -> list[tuple[str, int, Json]]:
        """All that is told, to the first of this name or kind."""
        told = []
        with self.listening(session, after) as events:
            for event in events:
                told.append(event)
                if name in (event[0], event[2].get("kind")):
                    return told
        raise AssertionError(f"no {name} in {told}")

    def asked(self, session: str) -> tuple[list[tuple[str, int, Json]], Json]:
        """All that is told until something is asked, and that; it may have been asked before we listen."""
        told = []
        with self.listening(session) as events:
            for event in events:
                told.append(event)
                if event[0] == "asked":
                    return told, event[2]
                if event[2].get("questions"):
                    return told, event[2]["questions"][0]
        raise AssertionError(f"nothing is asked in {told}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.http.close()
        self.process.send_signal(number)
        code = self.process.wait(100)
        self.process.stdout.close()
        return code


def _events(response: httpx2.Response) -> Iterator[tuple[str, int, Json]]:
    name, id, data = "message", 0, ""
    for line in response.iter_lines():
        key, _, value = line.partition(": ")
        if key == "event":
            name = value
        elif key == "id":
            id = int(value)
        elif key == "data":
            data = value
        elif not line and data:
            yield name, id, json.loads(data)
            name, data = "message", ""


@pytest.fixture
def root() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="etude-test-", dir="/var/tmp"))  # the sandbox has a /tmp of its own
    (root / "project").mkdir()
    yield root
    shutil.rmtree(root)


@contextlib.contextmanager
def serving(root: Path, script: list[Reply], *more: str) -> Iterator[Serving]:
    with ScriptedServer(script) as server:
        serving = Serving(root, server, *more)
        serving.model = server
        try:
            yield serving
        finally:
            if serving.process.poll() is None:
                assert serving.stop() == 0


def kinds(told: list[tuple[str, int, Json]]) -> list[str]:
    return [data["kind"] for name, _, data in told if name == "message"]


def test_a_session_from_beginning_to_end(root: Path) -> None:
    script = [
        Reply("I write.", [WRITE]),
        Reply("", [run("cat new.txt; make all"), run("pr -t new.txt")]),
        Reply("Done."),
        Reply("Two."),
        Reply("A summary."),
        Reply("Forked."),
    ]
    with serving(root, script) as here:
        id = here.begin(prompt="Write it.")
        told, asked = here.asked(id)
        assert [id for name, id, _ in told if name == "message"] == list(range(1, len(kinds(told)) + 1))
        assert [question["arguments"]["command"] for question in asked["questions"]] == [
            "cat new.txt; make all",
            "pr -t new.txt",
        ]
        assert "make" in asked["questions"][0]["why"] and asked["questions"][0]["rules"]
        shown = here.ask("GET", f"/sessions/{id}")
        assert shown["working"] and shown["now"]["questions"] == [asked], "who comes later is told what is asked"
        here.ask("POST", f"/sessions/{id}/prompt", 409, text="Meanwhile.")
        here.ask("POST", f"/sessions/{id}/undo", 409)
        answers = [{"allowed": False, "words": "Not make."}, {"allowed": True, "remember": "session"}]
        path = f"/sessions/{id}/permissions/{asked['request']}"
        here.ask("POST", path, 400, answers=answers[:1])
        here.ask("POST", path, answers=answers)
        here.ask("POST", path, 404, answers=answers)
        ended = here.until(id, "end")
        results = [data["text"] for _, _, data in ended if data.get("kind") == "tool_result"]
        assert "Not make." in results[1] and "hello" in results[2] and (root / "project/new.txt").exists()
        assert "+hello" in here.ask("GET", f"/sessions/{id}/diff")["diff"]

        here.ask("POST", f"/sessions/{id}/resume", 409)
        after = here.ask("GET", f"/sessions/{id}")["lines"]
        here.ask("POST", f"/sessions/{id}/prompt", 202, text="Again.", after=after, model="another")
        second = here.until(id, "end", after)
        here.ask("POST", f"/sessions/{id}/prompt", 409, text="Again.", after=after)
        assert here.model.bodies[-1]["model"] == "another" and kinds(second)[0] == "model"
        assert here.ask("POST", f"/sessions/{id}/undo")["removed"] == []
        assert here.ask("GET", f"/sessions/{id}")["prompts"] == ["Write it."]
        assert here.ask("POST", f"/sessions/{id}/undo", turns=3)["removed"] == ["new.txt"]
        assert not (root / "project/new.txt").exists()
        assert here.ask("POST", f"/sessions/{id}/redo")["written"] == ["new.txt"]

        shown = here.ask("GET", f"/sessions/{id}")
        here.ask("POST", f"/sessions/{id}/compact", 202)
        summary = here.until(id, "segment_sealed", shown["lines"])
        assert "summary" in kinds(summary) and shown["model"] == "another" and shown["spent"]["requests"] == 4
        forked = here.ask("POST", f"/sessions/{id}/fork", 201)
        assert forked["parent"] == id and forked["prompts"] == ["Write it."] and not forked["open"]
        here.ask("POST", f"/sessions/{forked['id']}/prompt", 202, text="Otherwise.")
        here.until(forked["id"], "end", forked["lines"])
        listed = here.ask("GET", f"/sessions?directory={root / 'project'}&limit=1")
        assert [each["id"] for each in listed["sessions"]] == [forked["id"]] and listed["total"] == 2


@pytest.mark.proof(2)
def test_what_the_guard_refuses_is_no_question(root: Path) -> None:
    plant = ("write_file", {"path": ".idea/workspace.xml", "content": "x"})
    with serving(root, [Reply("", [plant, run("echo x > .idea/y")]), Reply("Well.")]) as here:
        told = here.until(here.begin(prompt="Set it up."), "end")
    assert [name for name, _, _ in told if name == "asked"] == []
    results = [data["text"] for _, _, data in told if data.get("kind") == "tool_result"]
    assert len(results) == 2 and all('unguarded = [".idea"]' in text for text in results)


def test_words_and_output_as_they_come_and_for_latecomers(root: Path) -> None:
    script = [
        Reply("Look here.", [run("echo begun; sleep 60")], reasoning="Hm.", piece=3),
        Reply("Stopped.", stall_s=0.0),
    ]
    (root / "config/etude").mkdir(parents=True)
    (root / "config/etude/permissions.toml").write_text('[permissions]\nallow = ["run"]\n')
    with serving(root, script) as here:
        id = here.begin()
        with here.listening(id) as events:
            told = [next(events) for _ in range(2)]
            assert [name for name, _, _ in told] == ["message", "now"] and told[1][2]["state"] == "resting"
            here.ask("POST", f"/sessions/{id}/prompt", 202, text="Go.")
            for event in events:
                told.append(event)
                if event[0] == "printed":
                    break
            words = [data["text"] for name, _, data in told if name == "words" and data["kind"] == "text"]
            assert "".join(words) == "Look here." and len(words) > 2
            names = [name if name != "message" else data["kind"] for name, _, data in told]
            last_word = max(at for at, name in enumerate(names) if name in ("words", "call"))
            assert last_word < names.index("completion"), "words come before the message that they became"
            assert told[-1][2] == {"index": 0, "text": "begun\n"}
            late = here.until(id, "now")[-1][2]
            assert late["state"] == "working" and late["printed"] == {"0": "begun\n"} and late["message"]["text"] == ""
            assert here.ask("POST", f"/sessions/{id}/cancel") == {"cancelled": True}
            assert next(data for name, _, data in events if name == "state")["ended"] == "cancelled"
        assert here.ask("POST", f"/sessions/{id}/cancel") == {"cancelled": False}
        lines = here.ask("GET", f"/sessions/{id}")["lines"]
        here.ask("POST", f"/sessions/{id}/resume", 202)
        assert kinds(here.until(id, "end", lines))[0] == "resumed"


def test_killed_and_started_again(root: Path) -> None:
    script = [
        Reply("", [run("echo one >> ledger; echo begun; sleep 60; echo two >> ledger")]),
        Reply("I looked."),
        Reply("Done."),
    ]
    with ScriptedServer(script) as server:
        first = Serving(root, server)
        id = first.begin(prompt="Go.", mode="auto")
        with first.listening(id) as events:
            seen = []
            for event in events:
                if event[0] == "printed" or event[2].get("printed"):
                    break
                seen += [event] if event[0] == "message" else []
            first.process.kill()
            with contextlib.suppress(httpx2.TransportError):
                seen += [event for event in events if event[0] == "message"]
        first.stop(signal.SIGKILL)
        second = Serving(root, server)
        [listed] = second.ask("GET", "/sessions")["sessions"]
        assert listed["id"] == id and listed["task"] == "Go." and not listed["open"]
        last = seen[-1][1]
        whole = second.until(id, "now")
        assert [data for _, _, data in whole[: len(seen)]] == [data for _, _, data in seen], "what was told stands"
        with second.listening(id, **{"Last-Event-ID": str(last)}) as events:
            second.ask("POST", f"/sessions/{id}/resume", 202)
            more = []
            for event in events:
                more.append(event)
                if event[2].get("kind") == "end":
                    break
        assert next(at for name, at, _ in more if name == "message") == last + 1, "and nothing is told twice"
        [result] = [data for _, _, data in more if data.get("kind") == "tool_result"]
        assert "interrupted" in result["text"] and (root / "project/ledger").read_text() == "one\n"
        second.ask("POST", f"/sessions/{id}/prompt", 202, text="And now?")
        assert second.until(id, "end", more[-1][1])[-1][2]["stop"] == "finished"
        assert second.stop() == 0


def test_stopping_ends_what_is_under_way_where_it_can_be_gone_on_with(root: Path) -> None:
    with serving(root, [Reply("Too late.", stall_s=60)], "--set", "drain_s=0.1") as here:
        id = here.begin(prompt="Go.")
        with here.listening(id) as events:
            next(event for event in events if event[2].get("kind") == "prompt")
            here.process.send_signal(signal.SIGTERM)
            told = list(events)  # the stream ends by itself
        assert [data["ended"] for name, _, data in told if name == "state"][-1] == "cancelled"
        assert here.process.wait(100) == 0


def test_who_may_come_in_and_what_is_refused(root: Path) -> None:
    with serving(
        root,
        [Reply(status=401, body={"error": {"message": "no key"}})],
        "--set",
        "max_open=1",
        "--set",
        f'directories=["{root}/project"]',
    ) as here:
        health = f"{here.url}/health"
        bearer = {"Authorization": f"Bearer {here.token}"}
        for headers, status in [
            ({"Authorization": "Bearer wrong"}, 401),
            ({**bearer, "Host": "evil.example"}, 403),
            ({**bearer, "Origin": "https://evil.example"}, 403),
            (bearer, 200),
        ]:
            assert httpx2.get(health, headers=headers, trust_env=False).status_code == status
        probed = httpx2.get(health, trust_env=False)
        assert (probed.status_code, probed.json()) == (200, {"status": "ok"})
        assert httpx2.get(f"{here.url}/sessions", trust_env=False).status_code == 401
        assert here.url.startswith("http://127.0.0.1:") and (root / "home/token").stat().st_mode & 0o77 == 0
        refused = [
            ("POST", "/sessions", {"directory": "project"}, 400),
            ("POST", "/sessions", {"directory": "/var"}, 400),
            ("POST", "/sessions", {"directory": str(root / "project"), "colour": 1}, 400),
            ("GET", "/sessions/gone", {}, 404),
            ("GET", "/sessions/..%2Fx", {}, 404),
            ("POST", "/sessions/gone/prompt", {"text": "x"}, 404),
            ("GET", "/sessions?limit=x", {}, 400),
            ("GET", "/nowhere", {}, 404),
            ("POST", "/health", {}, 405),
        ]
        for method, path, body, status in refused:
            assert here.ask(method, path, status, **body)["error"]["message"], path
        id = here.begin(prompt="Go.")
        while here.until(id, "now")[-1][2]["state"] == "working":
            pass
        assert "no key" in here.ask("GET", f"/sessions/{id}")["now"]["error"], "a prompt that fails says why"
        assert here.http.get(f"/sessions/{id}/events?after=999").status_code == 409
        another = here.begin()
        shown = here.ask("GET", "/sessions")["sessions"]
        assert [each["id"] for each in shown if each["open"]] == [another], "one that rests makes room"
        assert here.ask("POST", f"/sessions/{another}/close") == {"closed": True}


def test_the_document_says_what_there_is(root: Path) -> None:
    told = {(path, method.upper()) for path, methods in openapi()["paths"].items() for method in methods}
    table = {(route.path, method) for route in Routes(None).table() for method in route.methods - {"HEAD"}}
    assert told == table


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[tuple[Serving, str]]:
    """A server whose model always has something to say, and a session of it."""
    root = Path(tempfile.mkdtemp(prefix="etude-test-", dir="/var/tmp"))
    (root / "project").mkdir()
    try:
        with serving(root, [Reply("Yes.") for _ in range(20_000)], "--set", "max_open=2") as server:
            yield server, server.begin()
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_every_answer_is_one_the_document_describes(fuzzed, operation, mode) -> None:
    serving, session = fuzzed

    def before(case: Any) -> None:
        """Most are about a session and a directory that are there; its stream does not end, and is left out."""
        if operation.answer != "events" and "session" in (case.path_parameters or {}) and len(str(case.body)) % 4:
            case.path_parameters["session"] = session
        if isinstance(case.body, dict) and isinstance(case.body.get("directory"), str) and len(str(case.body)) % 4:
            case.body["directory"] = str(serving.root / "project")

    fuzz(openapi(), operation, mode, serving.url, serving.token, before)


@pytest.mark.parametrize("directory", ["/" + "x" * 5000, "/a\0b", "/\ud800", "", "relative", "/dev/null", "/proc/self"])
def test_no_directory_is_a_bug(fuzzed, directory: str) -> None:
    body = json.dumps({"directory": directory})
    answer = fuzzed[0].http.post("/sessions", content=body)
    assert answer.status_code in (400, 502), answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("text", ["\ud83d", "a\0b", "".join(map(chr, range(0xE000, 0xF900))), "x" * 4_000_000])
def test_no_prompt_is_a_bug(fuzzed, text: str) -> None:
    serving, _ = fuzzed
    id = serving.begin()

    def told(text: str) -> str | None:
        answer = serving.http.post(f"/sessions/{id}/prompt", content=json.dumps({"text": text}))
        assert answer.status_code == (400 if text == "\ud83d" else 202), answer.text[:500]
        while (now := serving.ask("GET", f"/sessions/{id}")["now"])["state"] == "working":
            pass
        return now["error"]

    error = told(text)
    assert error is None if len(text) < 4_000_000 else error.startswith("no room for a single turn: the prompt takes")
    assert told("And this?") is None, "the session goes on"


@pytest.mark.parametrize(
    "body",
    [
        b'{"answers":[' + b"0," * 300_000 + b"0]}",
        b"{" + b",".join(b'"k%d":1' % at for at in range(300_000)) + b"}",
        b"[" * 100_000,
        b'{"answers":' + b"9" * 5000 + b"}",
    ],
)
def test_very_many_things_wrong_are_told_in_a_line(fuzzed, body: bytes) -> None:
    serving, session = fuzzed
    answer = serving.http.post(f"/sessions/{session}/permissions/1", content=body)
    assert answer.status_code == 400 and len(answer.text) < 2000, answer.text[:500]


def test_a_repositorys_rules_stop_no_server(root: Path) -> None:
    rules = root / "project/.etude/permissions.toml"
    rules.parent.mkdir()
    (root / "project" / ("a" * 250)).touch()
    with serving(root, []) as server:
        rules.write_text("deny = " + "[" * 2_000)
        refused = server.http.post("/sessions", json={"directory": str(root / "project")})
        assert 400 <= refused.status_code < 500 and str(rules) in refused.text
        for kind in ("deny", "ask"):
            rules.write_text(f"{kind} = ['read(*a*a*a*a*a*a*a*a*b)']\n")
            server.begin()


def test_a_server_answers_while_a_sessions_rules_are_read(root: Path) -> None:
    """They come by a pipe, into which nothing is written until it has answered."""
    (root / "config/etude").mkdir(parents=True)
    os.mkfifo(root / "config/etude/permissions.toml")
    with serving(root, []) as server, ThreadPoolExecutor(1) as beside:
        began = beside.submit(server.begin)
        other = httpx2.Client(base_url=server.url, timeout=100, trust_env=False)
        with (root / "config/etude/permissions.toml").open("w"), other:  # it is read by now
            answered = other.get("/health").status_code
        assert answered == 200 and began.result()
