"""`etude init` before servers that are broken or hostile: it ends in one line, and no key is told."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from scripted_openai import ScriptedServer
from test_setup import Here

from etude.host.sockets import listening
from etude.product.setup.ask import Given
from etude.product.setup.found import candidates, looked_at

KEY = "sk-not-to-be-told-0123456789"
MIB = 1 << 20
DEEP = b"[" * 200_000


class Hostile(BaseHTTPRequestHandler):
    """`/KIND/…` is answered as KIND says. What never ends goes on until the client hangs up."""

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        with suppress(BrokenPipeError, ConnectionResetError):
            getattr(self, kind)()

    def _begin(self, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def deep(self) -> None:
        self._begin()
        self.wfile.write(DEEP)

    def endless(self) -> None:
        self._begin()
        self.wfile.write(b'{"data":"')
        while True:
            self.wfile.write(b"a" * MIB)

    def endless_refusal(self) -> None:
        self._begin(400)
        while True:
            self.wfile.write(b"a" * MIB)

    def endless_events(self) -> None:
        self._begin(content_type="text/event-stream")
        while True:
            self.wfile.write(b'data: {"choices": [{"delta": {"content": "' + b"a" * MIB + b'"}}]}\n\n')

    def bomb(self) -> None:
        body = gzip.compress(bytes(256 * MIB), 1)
        self._begin(content_encoding="gzip", content_length=str(len(body)))
        self.wfile.write(body)

    def echo(self) -> None:
        self._begin(401)
        self.wfile.write(f"bad key: {self.headers['authorization']}".encode())

    def echo_whole(self) -> None:
        self._begin()
        self.wfile.write(f"key: {self.headers['authorization']}".encode())

    def echo_event(self) -> None:
        self._begin(content_type="text/event-stream")
        self.wfile.write(f"data: key: {self.headers['authorization']}\n\n".encode())


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("deep", "no JSON object"),
        ("endless", "answers with more than 64 MiB"),
        ("endless_refusal", "does not take the request (400"),
        ("endless_events", "answers with more than 64 MiB"),
        ("bomb", "answers with more than 64 MiB"),
        ("echo", "refuses the key (401: bad key: Bearer (the key))"),
        ("echo_whole", "no JSON object (b'key: Bearer (the key)')"),
        ("echo_event", "no JSON object: 'key: Bearer (the key)'"),
    ],
)
def test_a_hostile_server_is_one_line(outer: Path, hostile: str, kind: str, said: str) -> None:
    here = Here(outer)
    url = f"{hostile}/{kind}/v1"
    done = here.etude("init", "--endpoint", url, "--model", "m", "--key-env", "MY_KEY", MY_KEY=KEY)
    [line] = done.stderr.strip().splitlines()
    assert (done.returncode, said in line, KEY in done.stdout + line) == (1, True, False), line
    assert not here.file.exists()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:99999/v1",
        "http://127.0.0.1:0/v1",
        "http://a b/v1",
        "http://127.0.0.1:80/\x01",
        "http://[::1/v1",
    ],
)
def test_an_address_that_is_none_is_bad_input_wherever_it_comes_from(outer: Path, url: str) -> None:
    here = Here(outer)
    for done in (here.etude("init", OPENAI_BASE_URL=url), here.etude("init", "--endpoint", url, "--model", "m")):
        [line] = done.stderr.strip().splitlines()
        assert done.returncode == 42, line


def test_a_host_that_no_name_can_have_is_an_endpoint_that_is_wrong(outer: Path) -> None:
    done = Here(outer).etude("init", "--endpoint", "http://xn--/v1", "--model", "m")
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 1 and "endpoint.url right?" in line


def test_a_server_of_another_users_on_the_endpoints_port_gets_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    class Refusing(Hostile):
        def do_GET(self) -> None:
            heard.append(self.headers.get("authorization", ""))
            self._begin(401)

    monkeypatch.setenv("ETUDE_HOME", str(tmp_path))
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "token").write_text(KEY)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    given = Given(f"http://127.0.0.1:{server.server_port}/v1").candidate()
    try:
        asyncio.run(looked_at(given))
        assert heard == ["", f"Bearer {KEY}"]
        monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
        assert asyncio.run(looked_at(given)).key_file is None and heard[2:] == [""]
    finally:
        server.shutdown()
        server.server_close()


def test_the_servers_token_is_sent_to_ones_own_server_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user of the machine may listen on the port where `etude serve` usually does."""
    monkeypatch.setenv("ETUDE_HOME", str(tmp_path))
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "token").write_text(KEY)
    with ScriptedServer([]) as server:
        port = int(server.url.removesuffix("/v1").rpartition(":")[2])
        assert port in listening(os.getuid()) and port not in listening(os.getuid() + 1)
        [ours] = asyncio.run(candidates({}, [("etude serve", port)]))
        monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
        [theirs] = asyncio.run(candidates({}, [("etude serve", port)]))
    assert ours.key_file is not None and theirs.key_file is None
