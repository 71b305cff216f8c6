"""`etude init` before servers that are broken or hostile: it ends in one line, and no key is told."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from test_setup import Here

from etude.host.sockets import is_noted, noted
from etude.product.setup.ask import Given
from etude.product.setup.found import candidates, looked_at

ROOT = Path(__file__).parents[2]
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


class Refusing(Hostile):
    """Such as what is behind a tunnel or a container's port: it asks for a key, and remembers what it got."""

    heard: list[str]

    def do_GET(self) -> None:
        self.heard.append(self.headers.get("authorization", ""))
        self._begin(401)


NOTES = """
import sys
from pathlib import Path
from etude.host.sockets import noted
with noted(Path(sys.argv[1]), int(sys.argv[2])):
    print("noted", flush=True)
    sys.stdin.read()
"""
LISTENS = """
import socket, sys
with socket.create_server(("::1", int(sys.argv[1])), family=socket.AF_INET6):
    print("listens", flush=True)
    sys.stdin.read()
"""


@contextmanager
def program(text: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, from when it has said that it is as far, until it is killed."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield process
        finally:
            process.kill()


@contextmanager
def refusing() -> Iterator[tuple[int, list[str]]]:
    """The port of one of this process's, and what it has heard."""
    heard: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Refusing,), {"heard": heard}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ETUDE_HOME", str(tmp_path))
    path = tmp_path / "engine" / "token"
    path.parent.mkdir()
    path.write_text(KEY)
    path.chmod(0o600)
    return path


def looked(port: int) -> None:
    """At an address that is given, and at the usual ports: that of `etude serve` and another's."""
    asyncio.run(looked_at(Given(f"http://localhost:{port}/v1").candidate()))
    asyncio.run(candidates({}, [("etude serve", port), ("vLLM", port)]))


def test_another_program_of_ones_own_gets_no_token(token: Path) -> None:
    with refusing() as (port, heard):
        with noted(token, port + 1):
            looked(port)
        assert heard == ["", "", ""]
        with noted(token, port):
            looked(port)
        assert f"Bearer {KEY}" in heard, "it is the port's very process that said so"
        assert list(token.parent.iterdir()) == [token]


def test_what_took_the_port_of_a_server_gets_no_token(token: Path) -> None:
    with refusing() as (port, heard):
        with program(NOTES, token, port) as server:
            looked(port)
            assert heard == ["", "", ""], "the process that said so lives, and is not the one that listens"
        looked(port)
        assert not any(heard), "it was killed, and what it said is there still"
        [left] = set(token.parent.iterdir()) - {token}
        left.rename(left.with_name(left.name.replace(f".{server.pid}.", f".{os.getpid()}.")))
        looked(port)
        assert not any(heard), "the process that listens has the number that it had"
        with noted(token, port):
            looked(port)
        assert any(heard) and list(token.parent.iterdir()) == [token]


def test_a_port_that_a_server_shares_with_another_program_gets_no_token(token: Path) -> None:
    """`localhost` may be either of the two."""
    with refusing() as (port, heard), noted(token, port), program(LISTENS, port):
        looked(port)
        assert heard == ["", "", ""]


def test_a_note_that_others_could_have_written_is_not_believed(token: Path) -> None:
    with refusing() as (port, heard), noted(token, port):
        [note] = set(token.parent.iterdir()) - {token}
        assert note.stat().st_mode & 0o777 == 0o600
        note.chmod(0o620)
        looked(port)
        assert heard == ["", "", ""]


def test_a_server_whose_token_lies_where_it_cannot_write_runs_all_the_same() -> None:
    """Such as a secret that is mounted to be read."""
    with refusing() as (port, _), noted(Path("/proc/token"), port):
        assert not is_noted(Path("/proc/token"), port)
