"""A sandbox that may reach a host reaches that host, and nothing else that one without could not."""

import asyncio
import contextlib
import os
import signal
import sys

import pytest
from scenarios import reaching_for_the_host
from test_escapes import ESCAPES, all_is_well

from etude.environments.base import SandboxSpec
from etude.environments.egress.gate import PORT, VARIABLES
from etude.environments.namespace import NamespaceBackend, NamespaceConfig
from etude.errors import ConfigError, MissingDependency, SandboxError

NAME = "mirror.example.com"
SPEC = SandboxSpec(egress=(NAME,))
ASK = rb"""
import socket, sys
for target in sys.argv[1:]:
    with socket.create_connection(("127.0.0.1", 3128), 10) as proxy:
        proxy.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        print(proxy.recv(1000).split()[1].decode(), target)
"""


class Mirror:
    """A server of this test's own, which sandboxes know as mirror.example.com."""

    def __init__(self):
        self.heard, self.port, self.names, self.address = [], 0, [], "127.0.0.1"
        self.gone = asyncio.Event()

    async def accept(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heard.append(head)
            if b"/hold" in head:
                await reader.read()
                self.gone.set()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        writer.close()

    async def resolve(self, host, port):
        self.names.append(host)
        return [self.address]

    def get(self, path="/", host=NAME):
        """A command that fetches a path, by whatever proxy the environment names."""
        url = f"http://{host}:{self.port}{path}"
        return f"python3 -c 'import urllib.request as u; print(u.urlopen(\"{url}\", timeout=60).read().decode())'"


def reach(scenario, deadline_s=200.0, hosts=(), **config):
    """Run `scenario(backend, mirror)`; what the mirror's name leads to may be reached, though it is this machine."""

    async def whole():
        mirror = Mirror()
        server = await asyncio.start_server(mirror.accept, "127.0.0.1", 0)
        mirror.port = server.sockets[0].getsockname()[1]
        egress = {"hosts": hosts, "ports": (mirror.port, 443), "networks": ("127.0.0.0/8",)}
        backend = NamespaceBackend(NamespaceConfig(egress=egress, **config), mirror.resolve)
        try:
            async with asyncio.timeout(deadline_s):
                return await scenario(backend, mirror)
        finally:
            await backend.close()
            server.close()

    return asyncio.run(whole())


async def said(box, command):
    result = await box.exec(command, timeout_s=30)
    assert result.exit_code == 0, result.output
    return result.output.decode()


@pytest.mark.parametrize("limits", ["cgroup", "rlimit"])
def test_a_listed_host_is_reached_and_no_other(limits):
    async def scenario(backend, mirror):
        assert backend.capabilities.network
        box = await backend.create(SPEC)
        assert await said(box, mirror.get("/a?b")) == "hello\n"
        (head,) = mirror.heard
        assert head.startswith(b"GET /a?b HTTP/1.1\r\n") and b"\r\nhost: mirror.example.com:" in head.lower()
        refused = ["elsewhere.example:443", f"not{NAME}:443", f"localhost:{mirror.port}", f"127.0.0.1:{mirror.port}"]
        refused += ["169.254.169.254:80", "metadata.google.internal:80", "[::1]:443", f"{NAME}:22", f"{NAME}:53"]
        await box.write_file("/tmp/ask.py", ASK)
        answers = await said(box, f"python3 /tmp/ask.py {' '.join(refused)} {NAME}:{mirror.port}")
        assert answers.splitlines() == [*(f"403 {target}" for target in refused), f"200 {NAME}:{mirror.port}"]
        assert backend.egress == {"allowed": 2, "host": 4, "address": 3, "port": 2}
        assert set(mirror.names) == {NAME}
        await all_is_well(backend, box)

    reach(scenario, limits=limits)


def test_an_allowed_name_that_leads_to_the_metadata_service_is_refused():
    async def scenario(backend, mirror):
        mirror.address = "169.254.169.254"
        box = await backend.create(SPEC)
        result = await box.exec(mirror.get(), timeout_s=30)
        assert result.exit_code != 0 and b"403" in result.output
        assert backend.egress == {"network": 1} and not mirror.heard

    reach(scenario)


def test_nothing_is_reached_unless_it_is_listed():
    async def scenario(backend, mirror):
        listed = await backend.create(SandboxSpec())
        assert await said(listed, mirror.get()) == "hello\n"
        none = await backend.create(SandboxSpec(egress=()))
        other = await backend.create(SandboxSpec(egress=("other.example.com",)))
        assert "proxy" not in (await said(none, "env")).lower()
        knock = f'import socket; socket.create_connection(("127.0.0.1", {PORT}), 5)'
        result = await none.exec(f"python3 -c '{knock}'")
        assert result.exit_code != 0 and b"ConnectionRefusedError" in result.output
        for box in (none, other):
            assert (await box.exec(mirror.get(), timeout_s=30)).exit_code != 0
        assert len(mirror.heard) == 1

    reach(scenario, hosts=(NAME,))


def test_programs_find_the_proxy_and_pass_it_by_for_what_is_their_own():
    async def scenario(backend, mirror):
        box = await backend.create(SPEC)
        env = dict(line.partition("=")[::2] for line in (await said(box, "env")).splitlines())
        assert {name: env.get(name) for name in VARIABLES} == VARIABLES
        await box.write_file("/workspace/own", b"own page")
        await box.start("python3 -m http.server 8000 --bind 127.0.0.1")
        fetch = 'import urllib.request as u; print(u.urlopen("http://localhost:8000/own", timeout=60).read().decode())'
        trying = f"for i in $(seq 100); do python3 -c '{fetch}' 2>/dev/null && exit; sleep 0.1; done; exit 1"
        assert await said(box, trying) == "own page\n"
        assert not backend.egress

    reach(scenario)


def test_a_fork_reaches_what_its_parent_does_and_a_snapshot_grants_nothing():
    async def scenario(backend, mirror):
        parent = await backend.create(SPEC)
        (fork,) = await parent.fork(1)
        for box in (parent, fork):
            assert await said(box, mirror.get()) == "hello\n"
        later = await backend.create(SandboxSpec(base=await parent.snapshot()))
        assert (await later.exec(mirror.get(), timeout_s=30)).exit_code != 0
        await parent.destroy()
        assert await said(fork, mirror.get()) == "hello\n"

    reach(scenario)


NETWORK = ["raw socket", "packet socket", "internet", "metadata", "names", "interfaces", "other namespaces"]
DIRECTLY = {
    "a name server": 'socket.socket(2, 2).sendto(b"x", ("8.8.8.8", 53))',
    "a name server over TCP": 'socket.create_connection(("1.1.1.1", 53), 3)',
    "IPv6": 'socket.create_connection(("2606:4700:4700::1111", 443), 3)',
    "the network of the host": 'socket.socket(2, 2).sendto(b"x", ("10.0.0.1", 53))',
    "a broadcast": 's = socket.socket(2, 2); s.setsockopt(1, 6, 1); s.sendto(b"x", ("255.255.255.255", 67))',
}


@pytest.mark.parametrize("attempt", [*NETWORK, *DIRECTLY])
def test_a_way_out_opens_no_other(attempt):
    command = ESCAPES.get(attempt) or f"python3 -c 'import socket; {DIRECTLY[attempt]}'"

    async def scenario(backend, mirror):
        box = await backend.create(SPEC)
        result = await box.exec(command, timeout_s=20)
        assert result.exit_code != 0 and not result.timed_out, result.output
        assert not backend.egress
        await all_is_well(backend, box)

    reach(scenario)


def test_the_hosts_own_servers_stay_out_of_reach():
    async def scenario(backend, mirror):
        box = await backend.create(SPEC)
        async with reaching_for_the_host(box) as command:
            assert await said(box, command) == "refused\nrefused\n"
        assert await said(box, "ls /proc/self/fd | wc -l") == "4\n"

    reach(scenario)


def test_a_flood_of_connections_costs_no_more_than_its_share():
    flood = b"""
import socket
kept = []
for _ in range(900):
    try:
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", 3128))
        kept.append(connection)
    except OSError:
        break
print(len(kept) > 500, flush=True)
import time; time.sleep(20)
"""

    async def scenario(backend, mirror):
        box, neighbour = await backend.create(SPEC), await backend.create(SPEC)
        before = descriptors()
        await box.write_file("/tmp/flood.py", flood)
        flooding = await box.start("python3 /tmp/flood.py")
        assert await anext(flooding.output()) == b"True\n"
        assert await said(neighbour, mirror.get()) == "hello\n"
        await asyncio.sleep(1.5)
        assert 0 < descriptors() - before <= 64 + 8
        await box.destroy()
        assert descriptors() <= before
        await all_is_well(backend, neighbour)

    reach(scenario)


def test_a_proxy_ends_with_its_sandbox():
    async def scenario(backend, mirror):
        await (await backend.create(SPEC)).destroy()  # what is opened once, is open
        before, tasks = descriptors(), asyncio.all_tasks()
        box = await backend.create(SPEC)
        await box.start(mirror.get("/hold"))
        while not mirror.heard:
            await asyncio.sleep(0.01)
        await box.destroy()
        await mirror.gone.wait()
        await asyncio.sleep(0.05)
        assert descriptors() <= before and asyncio.all_tasks() <= tasks

    reach(scenario)


def test_a_start_that_is_given_up_leaves_nothing_open():
    async def scenario(backend, mirror):
        await (await backend.create(SPEC)).destroy()
        before = descriptors()
        for wait_s in (0, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05):
            starting = asyncio.ensure_future(backend.create(SPEC))
            await asyncio.sleep(wait_s)
            if not starting.cancel():
                await (await starting).destroy()
                continue
            with pytest.raises(asyncio.CancelledError):
                await starting
        assert descriptors() <= before and not backend._live
        await all_is_well(backend, await backend.create(SPEC))

    reach(scenario)


@pytest.mark.parametrize("spec", [SPEC, SandboxSpec()], ids=["with a way out", "without"])
def test_a_launcher_killed_as_it_starts_has_failed_at_once(monkeypatch, spec):
    async def scenario(backend, mirror):
        real, held = backend.launcher.spawn, []

        def killed(name, lowers, resources, groups, control, *rest):
            held.append(control.dup())  # as a child of it may, so that nobody hangs up
            pid = real(name, lowers, resources, groups, control, *rest)
            os.kill(pid, signal.SIGKILL)
            return pid

        monkeypatch.setattr(backend.launcher, "spawn", killed)
        with pytest.raises(SandboxError, match="did not start"):
            await backend.create(spec)
        assert not backend._live
        held[0].close()

    reach(scenario)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("host", ["10.0.0.1", "http://a.example", "A.example", "*"])
def test_a_list_that_names_no_hosts_is_refused(host):
    async def scenario(backend, mirror):
        with pytest.raises(ConfigError, match="host name"):
            await backend.create(SandboxSpec(egress=(host,)))
        assert not backend._live

    reach(scenario)


def test_what_is_missing_is_named(monkeypatch):
    async def scenario(backend, mirror):
        monkeypatch.setitem(sys.modules, "etude.environments.egress.proxy", None)
        with pytest.raises(MissingDependency, match=r"pip install .*\[environments\]"):
            await backend.create(SPEC)
        await backend.create(SandboxSpec())

    reach(scenario)
