"""Spans of what is done to sandboxes, by the SDK of OpenTelemetry: their names, their outcomes, and whose they are."""

import asyncio
import socket

import httpx2
import pytest
import uvicorn
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from span_collector import attributes_of, collecting

from etude.environments.base import SandboxSpec
from etude.environments.client import RemoteBackend
from etude.environments.lives import NodeConfig
from etude.environments.namespace import NamespaceConfig
from etude.environments.node import Node
from etude.environments.remote import RemoteConfig
from etude.environments.server.app import ServerConfig, application
from etude.errors import ConfigError, DeadlineExceeded
from etude.serving.token import own_token

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def exporter():
    """What this process's spans end in; a process has one provider, so it is set once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    assert trace.get_tracer_provider() is provider
    return exporter


@pytest.fixture
def traced(exporter, tmp_path):
    """Run `client(url, token)` on a thread and loop of its own, against a server here; returns the server's spans.

    They share nothing but the connection: a context does not go from one thread's loop to another's."""

    def runner(client):
        config = ServerConfig(
            node=NodeConfig(state_dir=tmp_path, backends=(NamespaceConfig(state_dir=tmp_path / "sandboxes"),))
        )

        async def whole():
            node = Node(config.node)
            with socket.create_server(("127.0.0.1", 0)) as listener:
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                app = application(node, config, own_token(config.token_path))
                server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
                serving = asyncio.ensure_future(server.serve(sockets=[listener]))
                try:
                    async with asyncio.timeout(60):
                        await asyncio.to_thread(lambda: asyncio.run(client(url, config.token_path)))
                finally:
                    server.should_exit = True
                    await serving
                    await node.close()

        exporter.clear()
        asyncio.run(whole())
        return [span for span in exporter.get_finished_spans() if span.name.startswith("sandbox.")]

    return runner


def test_what_a_client_asks_for_is_part_of_its_trace(traced, exporter):
    names = {}

    async def client(url, token_file):
        backend = RemoteBackend(RemoteConfig(url=url, token_file=token_file))
        with trace.get_tracer("test").start_as_current_span("task"):
            box = await backend.create(SandboxSpec())
            assert (await box.exec("exit 3")).exit_code == 3
            await box.snapshot()
            (fork,) = await box.fork(1)
            await fork.destroy()
            with pytest.raises(ConfigError):
                await backend.create(SandboxSpec(image="none of these"))
            names.update(box=box.id, fork=fork.id)
        await backend.close()

    spans = traced(client)
    (task,) = [span for span in exporter.get_finished_spans() if span.name == "task"]
    inside = [span for span in spans if span.parent is not None]
    assert [span.name.removeprefix("sandbox.") for span in inside] == [
        *("create", "exec", "snapshot", "fork", "destroy", "create")
    ]
    for span in inside:
        assert span.parent.span_id == task.context.span_id and span.context.trace_id == task.context.trace_id
        assert span.parent.is_remote  # by the header, and in no other way
        assert span.attributes["etude.backend"] == "namespace"
    assert [span.attributes.get("etude.sandbox") for span in inside] == [*[names["box"]] * 4, names["fork"], None]
    assert [span.attributes["etude.image"] for span in inside] == [*["host"] * 5, "none of these"]
    assert [span.attributes["etude.outcome"] for span in inside] == [*["ok"] * 5, "ConfigError"]
    assert not inside[-1].status.is_ok and inside[0].status.is_ok
    after = [span.name for span in spans if span.parent is None]
    assert after == ["sandbox.destroy"]  # of the box, when the client closed: nobody's span was open then


def test_a_header_is_enough_and_without_one_a_span_has_no_parent(traced):
    async def client(url, token_file):
        headers = {"Authorization": f"Bearer {token_file.read_text().strip()}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=30) as http:
            box = (await http.post("/sandboxes", json={}, headers={"traceparent": PARENT})).json()["id"]
            await http.post(f"/sandboxes/{box}/exec", json={"command": "true"}, headers={"traceparent": "nonsense"})
            await http.delete(f"/sandboxes/{box}")

    create, execute, destroy = traced(client)
    assert (f"{create.parent.trace_id:032x}", f"{create.parent.span_id:016x}") == tuple(PARENT.split("-")[1:3])
    assert (create.name, execute.name, destroy.name) == ("sandbox.create", "sandbox.exec", "sandbox.destroy")
    assert execute.parent is None and destroy.parent is None


def test_who_is_cancelled_and_what_is_refused_say_so(traced):
    async def client(url, token_file):
        backend = RemoteBackend(RemoteConfig(url=url, token_file=token_file))
        box = await backend.create(SandboxSpec())
        running = asyncio.ensure_future(box.exec("sleep 60"))
        while not (await box.exec("pgrep -x sleep")).output:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises((asyncio.CancelledError, DeadlineExceeded)):
            await running
        await backend.close()

    spans = traced(client)
    assert "cancelled" in [span.attributes["etude.outcome"] for span in spans if span.name == "sandbox.exec"]


@pytest.fixture
def collector():
    with collecting() as server:
        yield server


def test_a_server_sends_its_spans_to_a_collector(make_server, collector):
    server = make_server(spans_to=f"http://127.0.0.1:{collector.server_port}/v1/traces")
    headers = {"Authorization": f"Bearer {server.token}", "traceparent": PARENT}
    with httpx2.Client(base_url=server.url, headers=headers, trust_env=False, timeout=30) as http:
        box = http.post("/sandboxes", json={}).json()["id"]
    server.stop()  # sends what still waits
    sent = collector.sent
    assert [span.name for _, _, span in sent] == ["sandbox.create", "sandbox.destroy"]
    path, resource, span = sent[0]
    assert path == "/v1/traces" and resource["service.name"] == "etude-environments"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == tuple(PARENT.split("-")[1:3])
    attributes = attributes_of(span)
    assert attributes["etude.sandbox"] == box and attributes["etude.outcome"] == "ok"
