"""What operators watch is in /metrics: the queue, how long things take, pressure, leaks, and what egress refused."""

import asyncio
import math
import os
import socket

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from etude.environments.base import SandboxSpec

KNOCK = """python3 -c '
import socket, sys
for target in sys.argv[1:]:
    with socket.create_connection(("127.0.0.1", 3128), 10) as proxy:
        proxy.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
        print(proxy.recv(1000).split()[1].decode())
' """


class Figures:
    """One reading of /metrics."""

    def __init__(self, text):
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(self, name, **labels):
        (found,) = [each.value for each in self.samples if each.name == name and each.labels == labels]
        return found

    def percentile(self, operation, share):
        """The bound below which that share of an operation's times lies, as a dashboard works it out."""
        name = f"etude_environments_{operation}_seconds_bucket"
        buckets = {float(each.labels["le"]): each.value for each in self.samples if each.name == name}
        return min(bound for bound, count in buckets.items() if count >= share * buckets[math.inf])


async def read(server):
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        answer = await http.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.token}"})
        return Figures(answer.text)


def test_every_figure_that_operators_need_is_there(make_server):
    async def scenario(server, port):
        client = server.client()
        starting = [asyncio.ensure_future(client.create(SandboxSpec(egress=("localhost",)))) for _ in range(12)]
        deepest = 0.0
        while not all(start.done() for start in starting):
            deepest = max(deepest, (await read(server)).value("etude_environments_starts_waiting"))
        box = (await asyncio.gather(*starting))[0]
        assert deepest >= 1
        for _ in range(5):
            await box.exec("true")
        await box.fork(2)
        result = await box.exec(f"{KNOCK} localhost:{port} elsewhere.example:443 localhost:22 127.0.0.1:{port}")
        assert result.output.split() == [b"200", b"403", b"403", b"403"]
        await client.close()
        return await read(server)

    async def bounded(*given):
        async with asyncio.timeout(120):
            return await scenario(*given)

    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        egress = {"ports": [port], "networks": ["127.0.0.0/8", "::1/128"]}
        server = make_server(constants={"concurrent_starts": 1}, sandboxes={"egress": egress})
        figures = asyncio.run(bounded(server, port))
    on = {"backend": "namespace"}
    counts = {"create": 12, "exec": 6, "fork": 1, "destroy": 14}
    for operation, count in counts.items():
        assert figures.value(f"etude_environments_{operation}_seconds_count", **on) == count
        assert 0 < figures.percentile(operation, 0.5) <= figures.percentile(operation, 0.99) < 60
    assert figures.value("etude_environments_starts_waiting") == 0
    assert figures.value("etude_environments_leaks") == 0
    asked = {"allowed": 1, "host": 1, "port": 1, "address": 1, "network": 0, "malformed": 0, "unreachable": 0}
    for outcome, count in asked.items():
        assert figures.value("etude_environments_egress_requests_total", **on, outcome=outcome) == count
    if os.path.exists("/proc/pressure/memory"):
        for resource in ("cpu", "memory", "io"):
            assert 0 <= figures.value("etude_environments_pressure", resource=resource, kind="some") <= 1


def test_what_a_server_gives_a_sandbox_to_reach_is_told(server):
    async def scenario():
        client = server.client()
        assert client.capabilities.network
        try:
            box = await client.create(SandboxSpec(egress=("mirror.example.com", "*.example.org")))
            headers = {"Authorization": f"Bearer {server.token}"}
            async with httpx2.AsyncClient(trust_env=False) as http:
                said = (await http.get(f"{server.url}/sandboxes/{box.id}", headers=headers)).json()
            assert said["egress"] == ["mirror.example.com", "*.example.org"]
        finally:
            await client.close()

    asyncio.run(scenario())
