"""The egress proxy, by its sockets: what it lets through, what it refuses, what it says of each."""

import asyncio
import contextlib
import socket
import time

import pytest
import structlog

from etude.config import parse
from etude.environments.egress.policy import EgressConfig, Refused, reachable
from etude.environments.egress.proxy import EgressProxy
from etude.errors import ConfigError

LOCAL = ("127.0.0.0/8", "::1/128")


class Upstream:
    """A host on this machine that keeps what it is sent and answers once."""

    def __init__(self):
        self.heard = []

    async def accept(self, reader, writer):
        said = b""
        self.heard.append(said)
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                said += piece
                self.heard[-1] = said
                if said.endswith(b"\r\n\r\n") or said.endswith(b"the end"):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
                    await writer.drain()
                    break
            writer.close()


def proxied(scenario, tmp_path, resolve=None, **config):
    """Run `scenario(ask, port, upstream, proxy)`; `ask(bytes)` gives all that the proxy answers on one connection."""

    async def whole():
        upstream = Upstream()
        host = await asyncio.start_server(upstream.accept, "127.0.0.1", 0)
        port = host.sockets[0].getsockname()[1]
        fixed = {name: config.pop(name) for name in list(config) if name not in EgressConfig.model_fields}
        given = {"hosts": ("localhost",), "ports": (port,), "networks": LOCAL, **config}
        limited = type("Limited", (EgressConfig,), {"__module__": __name__, **fixed})
        proxy = EgressProxy(parse(given, limited, "test"), resolve)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "out"))
        listener.listen()
        proxy.listen(listener, "box-1")

        async def ask(*pieces):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "out")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            try:
                return await reader.read()
            finally:
                writer.close()

        try:
            async with asyncio.timeout(30):
                await scenario(ask, port, upstream, proxy)
        finally:
            await proxy.close()
            host.close()

    with structlog.testing.capture_logs() as logged:
        asyncio.run(whole())
    return [entry for entry in logged if entry["event"] == "egress"]


def test_a_tunnel_carries_bytes_both_ways_and_is_logged(tmp_path):
    async def scenario(ask, port, upstream, proxy):
        answer = await ask(b"CONNECT localhost:%d HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03 whatever, " % port, b"the end")
        assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\n") and answer.endswith(b"hello")
        assert upstream.heard == [b"\x16\x03 whatever, the end"]
        assert proxy.outcomes == {"allowed": 1}

    (entry,) = proxied(scenario, tmp_path)
    assert entry["who"] == "box-1" and entry["outcome"] == "allowed" and entry["method"] == "CONNECT"
    assert entry["host"] == "localhost" and entry["address"] in ("127.0.0.1", "::1")
    assert (entry["sent"], entry["received"]) == (20, 43)


def test_a_plain_request_is_written_anew(tmp_path):
    async def scenario(ask, port, upstream, proxy):
        head = b"GET http://localhost:%d/a?b=%%20c HTTP/1.1\r\nHost: other.example\r\nCookie: secret\r\n" % port
        head += (
            b"Authorization: Basic secret\r\nProxy-Authorization: secret\r\nX-Kept: yes\r\nConnection: keep-alive\r\n"
        )
        smuggled = b"GET /second HTTP/1.1\r\nHost: localhost\r\nCookie: secret\r\n\r\n"
        assert (await ask(head + b"\r\n" + smuggled)).endswith(b"hello")
        lines = upstream.heard[0].split(b"\r\n")
        assert lines[0] == b"GET /a?b=%20c HTTP/1.1"
        assert {line.lower() for line in lines[1:-2]} == {
            b"host: localhost:%d" % port,
            b"connection: close",
            b"x-kept: yes",
        }
        assert b"secret" not in b"".join(upstream.heard) and len(upstream.heard) == 1

    proxied(scenario, tmp_path)


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: 13", b"abc = the end"),
        (b"Transfer-Encoding: chunked", b"6\r\nabc = \r\n7\r\nthe end\r\n0\r\n\r\n"),
    ],
)
def test_a_body_is_passed_on_whole(tmp_path, framing, body):
    async def scenario(ask, port, upstream, proxy):
        head = b"POST http://localhost:%d/ HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n" % (port, framing)
        assert (await ask(head, body)).endswith(b"hello")
        assert upstream.heard[0].split(b"\r\n\r\n", 1)[1] == body
        assert framing.lower() in upstream.heard[0].lower()

    proxied(scenario, tmp_path)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("elsewhere.example:443", "host"),
        ("localhost.elsewhere.example:443", "host"),
        ("notlocalhost:443", "host"),
        ("localhost:22", "port"),
        ("127.0.0.1:443", "address"),
        ("[::1]:443", "address"),
        ("[::ffff:127.0.0.1]:443", "address"),
        ("2130706433:443", "address"),
        ("0x7f.1:443", "address"),
        ("169.254.169.254:80", "address"),
        ("localhost", "malformed"),
        ("user@localhost:443", "malformed"),
        ("localhost:443/path", "malformed"),
        ("local\\host:443", "malformed"),
    ],
)
def test_what_is_not_on_the_list_is_refused_and_counted(tmp_path, target, reason):
    async def scenario(ask, port, upstream, proxy):
        answer = await ask(b"CONNECT %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % target.encode())
        status = b"400" if reason == "malformed" else b"403"
        assert answer.startswith(b"HTTP/1.1 " + status) and b"egress refused: " in answer
        assert proxy.outcomes == {reason: 1} and len(proxy.refused) == 1 and not upstream.heard

    (entry,) = proxied(scenario, tmp_path)
    assert entry["outcome"] == reason


@pytest.mark.parametrize("request_line", ["GET / HTTP/1.1", "GET https://localhost/ HTTP/1.1", "GET", "\x16\x03\x01"])
def test_what_is_no_request_to_a_proxy_is_refused(tmp_path, request_line):
    async def scenario(ask, port, upstream, proxy):
        assert (await ask(request_line.encode() + b"\r\nHost: localhost\r\n\r\n")).startswith(b"HTTP/1.1 400")
        assert proxy.outcomes == {"malformed": 1}

    proxied(scenario, tmp_path)


def test_nothing_is_allowed_unless_it_is_named(tmp_path):
    async def scenario(ask, port, upstream, proxy):
        assert b"403" in await ask(b"CONNECT localhost:%d HTTP/1.1\r\nHost: x\r\n\r\n" % port)

    proxied(scenario, tmp_path, hosts=())


NOT_PUBLIC = [
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"),
    *("169.254.169.254", "100.100.100.200", "168.63.129.16", "fd00:ec2::254"),  # clouds' metadata services
    *("::1", "fe80::1", "fc00::1", "ff02::1", "::7f00:1", "::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1"),
]


def test_an_allowed_name_that_leads_inside_is_refused():
    config = EgressConfig(hosts=("a.example",))
    for address in NOT_PUBLIC:
        with pytest.raises(Refused, match="not public"):
            reachable(config, "a.example", [address])
    public = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"]
    assert reachable(config, "a.example", [*NOT_PUBLIC, *public]) == public


def test_a_loopback_name_is_refused_end_to_end(tmp_path):
    async def scenario(ask, port, upstream, proxy):
        answer = await ask(b"CONNECT localhost:%d HTTP/1.1\r\nHost: x\r\n\r\n" % port)
        assert answer.startswith(b"HTTP/1.1 403") and b"not public" in answer
        assert proxy.outcomes == {"network": 1} and not upstream.heard

    proxied(scenario, tmp_path, networks=())


def test_the_address_that_was_judged_is_the_one_that_is_reached(tmp_path):
    """A name server that answers well once and badly afterwards is asked once."""
    answers = [["127.0.0.1"], ["169.254.169.254"]]

    async def rebinding(host, port):
        return answers.pop(0)

    async def scenario(ask, port, upstream, proxy):
        assert (await ask(b"CONNECT a.example:%d HTTP/1.1\r\nHost: x\r\n\r\nthe end" % port)).endswith(b"hello")
        assert answers == [["169.254.169.254"]]
        assert (await ask(b"CONNECT a.example:%d HTTP/1.1\r\nHost: x\r\n\r\nthe end" % port)).startswith(
            b"HTTP/1.1 403"
        )
        assert len(upstream.heard) == 1

    first, second = proxied(scenario, tmp_path, rebinding, hosts=("*.example",))
    assert first["address"] == "127.0.0.1" and second["outcome"] == "network"


def test_suffixes_match_below_and_not_beside():
    config = EgressConfig(hosts=("*.example.org", "exact.test"))
    allowed = ["a.example.org", "a.b.example.org", "exact.test"]
    assert [
        host for host in (*allowed, "example.org", "badexample.org", "a.exact.test") if config.allows(host)
    ] == allowed


@pytest.mark.parametrize(
    "host", ["*", "*.", "10.0.0.1", "A.example", "a*.example", "http://a.example", "a.example:80", ""]
)
def test_entries_that_are_no_names_are_refused_when_the_config_is_read(host):
    with pytest.raises(ConfigError, match="host name"):
        parse({"hosts": [host]}, EgressConfig, "recipe")


def test_who_neither_asks_nor_answers_is_cut(tmp_path):
    async def scenario(ask, port, upstream, proxy):
        assert (await ask(b"CONN")).startswith(b"HTTP/1.1 400")  # no request within head_timeout_s
        said = await ask(b"CONNECT localhost:%d HTTP/1.1\r\nHost: x\r\n\r\nhalf a" % port)
        assert said.endswith(b"established\r\n\r\n")

    entries = proxied(scenario, tmp_path, head_timeout_s=0.2, idle_timeout_s=0.2)
    assert [entry["outcome"] for entry in entries] == ["malformed", "cut: nothing moved for 0.2 s"]


def test_connections_beyond_the_limit_wait_until_another_ends(tmp_path):
    async def scenario(ask, port, upstream, proxy):
        holding = asyncio.ensure_future(ask(b"CONN"))
        await asyncio.sleep(0.2)
        next_one = asyncio.ensure_future(ask(b"CONNECT localhost:%d HTTP/1.1\r\nHost: x\r\n\r\nthe end" % port))
        await asyncio.sleep(0.2)
        assert not proxy.outcomes and not upstream.heard
        holding.cancel()
        assert (await next_one).endswith(b"hello")

    proxied(scenario, tmp_path, max_connections=1)


def test_new_connections_are_taken_at_a_pace(tmp_path):
    async def scenario(ask, port, upstream, proxy):
        began = time.monotonic()
        await asyncio.gather(*(ask(b"CONNECT elsewhere.example:443 HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(6)))
        assert time.monotonic() - began >= 5 / 20
        assert proxy.outcomes == {"host": 6}

    proxied(scenario, tmp_path, connections_per_s=20)


def test_what_is_still_relayed_when_the_proxy_closes_is_cut(tmp_path):
    async def scenario(ask, port, upstream, proxy):
        asking = asyncio.ensure_future(ask(b"CONNECT localhost:%d HTTP/1.1\r\nHost: x\r\n\r\nhalf a" % port))
        while not upstream.heard:
            await asyncio.sleep(0.01)
        await proxy.close()
        assert b"established" in await asking
        with pytest.raises(ConnectionRefusedError):
            await ask(b"CONNECT localhost:%d HTTP/1.1\r\nHost: x\r\n\r\n" % port)

    (entry,) = proxied(scenario, tmp_path)
    assert entry["outcome"] == "cut: the sandbox has ended"
