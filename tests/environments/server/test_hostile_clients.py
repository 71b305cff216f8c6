"""What a client sends to confuse a server, or to keep it busy: raw bytes, to what all our servers are made of."""

import json
import logging
import threading

import pytest
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route
from test_connections import DEADLINE_S, LONG, Small, told

from etude.serving.connections import HttpLimits
from etude.serving.guard import Guard
from etude.serving.http import handlers
from etude.serving.openapi import OURS, Operation, document, queried, served
from etude.serving.process import LOOPBACK
from etude.serving.sse import EventStream
from etude.serving.wire import Answer, Denied, denial, refusal

TOKEN = "a-token-of-the-tests"
MANY = 16 << 20
LISTEN = Operation("/events", "get", "Listen", answer="events")
TAKE = Operation("/upload", "post", "Take it", body="bytes")


def _answer_of(error: Exception) -> Answer:
    return denial(error) if isinstance(error, Denied) else refusal(400, "invalid", str(error))


class Guarded(Small):
    """The same server, made as each of ours is: the guard before it, and routes that an OpenAPI document names."""

    def __init__(self, limits: HttpLimits) -> None:
        super().__init__(limits)
        self.held, self.begun, self.may_go_on = 0, threading.Event(), threading.Event()
        routes = [
            queried(Route("/events", self.events), [LISTEN]),
            queried(Route("/upload", self.upload, methods=["POST"]), [TAKE]),
            served(document("Small", [LISTEN, TAKE])),
        ]
        guard = Middleware(Guard, token=TOKEN, hosts=LOOPBACK, origins=("http://page",), max_body=MANY)
        app = self.server.config.app
        app.router.routes[:0] = routes
        app.user_middleware.insert(0, guard)
        app.exception_handlers.update(handlers(_answer_of, "small"))

    async def events(self, request: Request):
        async def forever():
            self.held += 1
            self.begun.set()
            try:
                yield b"data: first\n\n"
                await self._stop.wait()
            finally:
                self.held -= 1
                self.gone.set()

        return EventStream(forever())

    def ask(self, first: bytes, *headers: bytes, body: bytes = b"", host: bytes = b"127.0.0.1", token=TOKEN) -> bytes:
        """All that is said to one request, which is the last of its connection."""
        head = [first + b" HTTP/1.1", b"Host: " + host, b"Connection: close", *headers]
        head += [f"Authorization: Bearer {token}".encode()] if token else []
        sock = self.connect()
        sock.sendall(b"\r\n".join(head) + b"\r\n\r\n" + body)
        return told(sock)


@pytest.fixture
def serve():
    made = []

    def start(**limits):
        small = Guarded(HttpLimits(**limits))
        small.thread.start()
        assert small._ready.wait(DEADLINE_S)
        made.append(small)
        return small

    yield start
    for small in made:
        small.loop.call_soon_threadsafe(small._stop.set)
        small.server.should_exit = True
        small.thread.join(DEADLINE_S)
        assert not small.thread.is_alive()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error(answer: bytes) -> dict:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


ASKED = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"


# --- connections ------------------------------------------------------------------------------------------------------


def test_a_body_that_came_behind_another_request_has_a_clock_too(serve):
    """Its head was read while the request before it was answered, and nothing comes that could start a clock."""
    small = serve(header_s=LONG, body_s=0.2)
    sock = small.connect()
    sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + ASKED + b"\r\n")
    assert status(sock.recv(65536)) == 200
    sock.sendall(
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + ASKED + b"\r\n"
        b"POST /upload HTTP/1.1\r\nHost: localhost\r\n" + ASKED + b"Content-Length: 9\r\n\r\nabc"
    )
    answers = told(sock)
    assert status(answers) == 200 and b" 408 " in answers


def test_a_body_that_goes_on_after_its_answer_is_cut_off(serve):
    """However fast it comes: it was refused before it began, and would go on for ever."""
    small = serve(header_s=LONG, body_s=0.3, body_rate=1)
    sock = small.connect()
    sock.sendall(b"POST /upload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    piece, stop = b"1000\r\n" + b"x" * 0x1000 + b"\r\n", threading.Event()

    def send():
        try:
            while not stop.wait(0.001):
                sock.sendall(piece)
        except OSError:
            pass

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert status(told(sock)) == 401
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("path", [b"/events", b"/"])
def test_head_is_answered_where_the_answer_has_no_end(serve, path):
    small = serve()
    answer = small.ask(b"HEAD " + path)
    assert status(answer) == 200 and answer.endswith(b"\r\n\r\n") and small.held == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: +1\r\n\r\nx",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /upload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"POST /upload HTTP/1.1\r\nHost: localhost\r\n" + ASKED + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    ],
)
def test_what_is_no_http_is_told_so_in_our_form_and_leaves_no_trace(serve, caplog, sent):
    """Whoever reaches the port may send it: it must not fill a log."""
    caplog.set_level(logging.DEBUG)
    small = serve()
    sock = small.connect()
    sock.sendall(sent)
    answer = told(sock)
    assert status(answer) == 400 and answer.count(b"HTTP/1.1 ") == 1
    assert {*OURS, "type", "param", "code"} == set(error(answer))
    small.ask(b"GET /")  # whatever the first led to has had its turn
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_body_that_ends_in_nonsense_is_a_client_that_is_gone(serve, caplog):
    """Who reads it must not wait for the rest; where an answer has begun, nothing is put into it."""
    small = serve()
    for path, begun in ((b"/upload", b""), (b"/events", b"data: first\n\n")):
        small.gone.clear()
        method = b"POST" if path == b"/upload" else b"GET"
        sock = small.connect()
        sock.sendall(method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + ASKED)
        sock.sendall(b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        said = b""
        while begun not in said:
            said += sock.recv(65536)
        sock.sendall(b"-1\r\n")
        assert (b" 400 " in told(sock)) is (begun == b"")
        assert small.gone.wait(DEADLINE_S)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_no_library_that_happens_to_be_installed_gives_us_websockets():
    """A connection that became one would have neither a guard nor clocks."""
    assert Guarded(HttpLimits()).server.config.ws == "none"


# --- the guard --------------------------------------------------------------------------------------------------------


def test_a_host_is_a_name_of_ours_and_a_port_and_no_more(serve):
    small = serve()
    for host in (
        b"127.0.0.1:80@evil.example", b"127.0.0.1:80/../x?y#", b"localhost:x", b"localhost:123456", b"[::1",
        b"[::1]evil.example", b"::1", b"127.0.0.1, evil.example", b"127.0.0.1.nip.io", b"",
    ):  # fmt: skip
        assert status(small.ask(b"GET /", host=host)) == 403, host


def test_each_way_to_write_our_own_name_will_do(serve):
    small = serve()
    for host in (b"127.0.0.1", b"localhost:", b"LOCALHOST:8080", b"[::1]:1", b"[::1]"):
        assert status(small.ask(b"GET /", host=host)) == 200, host


NO_TOKEN = (
    (), (b"",), (b"Bearer ",), (b"Bearer " + TOKEN.encode()[:-1],), (b"Bearer \xff\xe9",), (b"Bearer x", None),
    (None, b"Bearer x"), (None, None), (b"Basic " + TOKEN.encode(),),
)  # fmt: skip


def test_one_token_is_given_and_it_is_the_right_one(serve):
    small, whole = serve(), b"Bearer " + TOKEN.encode()
    for given in NO_TOKEN:
        headers = [b"Authorization: " + (each or whole if each is None else each) for each in given]
        assert status(small.ask(b"GET /?token=" + TOKEN.encode(), *headers, token=None)) == 401, given


@pytest.mark.parametrize("origins", [(b"http://evil",), (b"null",), (b"",), (b"http://page", b"http://evil")])
def test_each_origin_that_is_named_may_use_it(serve, origins):
    small = serve()
    assert status(small.ask(b"GET /", *(b"Origin: " + each for each in origins))) == 403
    assert status(small.ask(b"GET /", b"Origin: http://page")) == 200


@pytest.mark.parametrize("framing", [b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"HTTP/1.0"])
def test_a_body_whose_end_can_be_read_in_two_ways_is_refused_and_so_is_what_follows(serve, framing):
    small = serve()
    version, chunked = (framing, b"Transfer-Encoding: chunked") if b"/" in framing else (b"HTTP/1.1", framing)
    sock = small.connect()
    sock.sendall(
        b"POST /upload " + version + b"\r\nHost: localhost\r\nConnection: keep-alive\r\n" + ASKED + chunked
        + b"\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n" + ASKED + b"\r\n"
    )  # fmt: skip
    answers = told(sock)
    assert status(answers) == 400 and answers.count(b"HTTP/1.1 ") == 1 and small.lengths == []


def test_no_route_has_control_characters_or_a_host_in_it(serve):
    small = serve()
    for path in (b"/%0a", b"/events%0A", b"/%00", b"/upload%0d%0aX:%20y", b"http://localhost/"):
        assert status(small.ask(b"GET " + path)) == 404, path


def test_a_parameter_that_nobody_described_is_refused_wherever_it_stands(serve):
    small = serve()
    for path in (b"/events?unheard=1", b"/events?#unheard=1", b"/openapi.json?unheard", b"/events?%ff"):
        answer = small.ask(b"GET " + path)
        assert status(answer) == 400 and "unknown parameter" in error(answer)["message"], path
