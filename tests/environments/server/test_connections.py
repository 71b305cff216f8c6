"""Clients that are slow, half there or too many: real sockets against a real server; every wait is for an event."""

import asyncio
import json
import resource
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from etude.serving.connections import HttpLimits
from etude.serving.openapi import OURS
from etude.serving.process import Server, listening

DEADLINE_S = 60
LONG = 1000.0
"""Of a clock that must not decide."""


class Small:
    """A server of three routes, on a thread of its own."""

    def __init__(self, limits: HttpLimits) -> None:
        self.lengths, self.gone = [], threading.Event()
        self.loop, self._ready, self._stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
        routes = [
            Route("/", self.root),
            Route("/upload", self.upload, methods=["POST"]),
            Route("/long", self.long),
        ]
        self.socket = listening("127.0.0.1", 0, ("127.0.0.1",))
        self.server = Server(Starlette(routes=routes), self.drain, lambda url: self._ready.set(), limits)
        self.server.capture_signals = lambda: contextmanager(lambda: (yield))()  # signals are for the main thread
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        self.loop.run_until_complete(self.server.serve(sockets=[self.socket]))

    async def drain(self):
        pass

    async def root(self, request: Request):
        return Response(b"here")

    async def upload(self, request: Request):
        try:
            self.lengths.append(len(await request.body()))
        except ClientDisconnect:
            self.gone.set()
        return Response(b"taken")

    async def long(self, request: Request):
        async def pieces():
            try:
                while True:
                    yield b"x" * 65536
                    await asyncio.sleep(0)
            finally:
                self.gone.set()

        return StreamingResponse(pieces())

    def connect(self) -> socket.socket:
        made = socket.create_connection(self.socket.getsockname(), timeout=DEADLINE_S)
        return made


@pytest.fixture
def serve():
    made = []

    def start(**limits):
        small = Small(HttpLimits(**limits))
        small.thread.start()
        assert small._ready.wait(DEADLINE_S)
        made.append(small)
        return small

    yield start
    for small in made:
        small.server.should_exit = True
        small.thread.join(DEADLINE_S)
        assert not small.thread.is_alive()


def told(sock: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    said = b""
    with sock:
        try:
            while piece := sock.recv(65536):
                said += piece
        except ConnectionResetError:
            pass
    return said


def asked(sock: socket.socket) -> bytes:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    return told(sock)


def test_an_answer_waits_for_no_acknowledgement(serve):
    """It leaves in two pieces, head and body: the kernel must not keep the second until the first has been taken."""
    small = serve()
    with small.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(65536)
        (connection,) = small.server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX: "])
def test_a_head_that_does_not_end_is_hung_up_on(serve, begun):
    small = serve(header_s=0.2, body_s=LONG)
    sock = small.connect()
    sock.sendall(begun)
    assert told(sock).startswith(b"HTTP/1.1 408 ")


def test_bytes_that_drip_in_do_not_prolong_a_head(serve):
    small = serve(header_s=0.5, body_s=LONG)
    sock = small.connect()
    sock.sendall(b"GET / HTTP/1.1\r\n")
    dripping = threading.Event()

    def drip():
        try:
            while not dripping.wait(0.02):
                sock.sendall(b"X-More: y\r\n")
        except OSError:
            pass

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        assert b"408" in told(sock)
    finally:
        dripping.set()
        thread.join()


def test_a_second_request_on_a_connection_has_a_clock_too(serve):
    small = serve(header_s=0.3, body_s=LONG)
    sock = small.connect()
    sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
    sock.sendall(b"GET / HTTP")
    late = told(sock)
    assert b" 408 " in late and b"application/json" in late
    said = json.loads(late.partition(b"\r\n\r\n")[2])["error"]
    assert {*OURS, "type", "param", "code"} == set(said), "in the form of each document"


def test_a_body_that_does_not_come_is_hung_up_on(serve):
    small = serve(header_s=LONG, body_s=0.2)
    sock = small.connect()
    sock.sendall(b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
    assert told(sock).startswith(b"HTTP/1.1 408 ")
    assert small.gone.wait(DEADLINE_S) and small.lengths == []


def test_a_body_that_comes_slowly_enough_is_taken(serve):
    """Each kilobyte earns the next second: far longer than `body_s` in all."""
    small = serve(header_s=LONG, body_s=0.5, body_rate=64)
    sock = small.connect()
    sock.sendall(b"POST /upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n")
    pause = threading.Event()
    for _ in range(10):
        sock.sendall(b"x" * 100)
        pause.wait(0.1)
    assert told(sock).endswith(b"taken") and small.lengths == [1000]


def test_an_answer_that_nobody_reads_is_given_up(serve):
    small = serve(unread_s=0.2)
    sock = small.connect()
    sock.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    assert small.gone.wait(DEADLINE_S)
    sock.close()


def test_an_answer_that_somebody_reads_goes_on(serve):
    small = serve(unread_s=0.2)
    sock = small.connect()
    sock.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
    taken, pause = 0, threading.Event()
    while taken < 20 << 20:
        taken += len(sock.recv(1 << 20))
        if taken % 7 == 0:
            pause.wait(0.01)
    assert not small.gone.is_set()
    sock.close()


def test_half_open_connections_make_room_for_a_real_one(serve):
    small = serve(connections=8, header_s=LONG)
    waiting = [small.connect() for _ in range(30)]
    for sock in waiting:
        sock.sendall(b"GET / HT")
    for _ in range(3):
        assert asked(small.connect()).endswith(b"here")
    for sock in waiting:
        sock.close()


def test_where_all_are_at_work_the_next_is_told_to_come_again(serve):
    small = serve(connections=2, unread_s=LONG)
    at_work = [small.connect() for _ in range(2)]
    for sock in at_work:
        sock.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.1 200"
    refused = told(small.connect())
    assert refused.startswith(b"HTTP/1.1 503 ") and b"Retry-After" in refused
    assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["retryable"]
    head, _, body = refused.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    for sock in at_work:
        sock.close()
    assert small.gone.wait(DEADLINE_S)


def test_by_default_half_of_the_descriptors_are_left_for_the_work():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert HttpLimits().most_connections() == soft // 2
    assert HttpLimits(connections=3).most_connections() == 3


SHORT_OF_DESCRIPTORS = """
import asyncio, json, resource, sys
from etude.config import parse
from etude.environments.server.app import ServerConfig, serve
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
asyncio.run(serve(parse(json.loads(sys.argv[1]), ServerConfig, "test"), lambda url: print(url, flush=True)))
"""


def test_three_hundred_half_open_requests_do_not_starve_a_server_of_256_descriptors(tmp_path):
    """The real environment server: sandboxes are made, used and destroyed while they stand there."""
    node = {"state_dir": str(tmp_path / "state"), "backends": [{"kind": "namespace", "state_dir": str(tmp_path / "b")}]}
    config = {"port": 0, "node": node, "http": {"header_s": LONG}}
    program = [sys.executable, "-c", SHORT_OF_DESCRIPTORS, json.dumps(config)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        port = int(url.rpartition(":")[2])
        token = (tmp_path / "state" / "token").read_text().strip()
        half_open = [socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) for _ in range(300)]
        for sock in half_open:
            with suppress(OSError):  # some have been hung up on
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=DEADLINE_S) as http:
            for _ in range(3):
                made = http.post("/sandboxes", json={})
                assert made.status_code == 200, made.text
                box = made.json()["id"]
                assert http.post(f"/sandboxes/{box}/exec", json={"command": "exit 7"}).json()["exit_code"] == 7
                assert http.delete(f"/sandboxes/{box}").status_code == 200
        for sock in half_open:
            sock.close()
    finally:
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
        process.stdout.close()
