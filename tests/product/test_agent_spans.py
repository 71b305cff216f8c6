"""A session's spans, as a real collector gets them: their tree, what they cost, and who is told what was said."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_openai import Reply, ScriptedServer
from span_collector import Collector, attributes_of, collecting

from etude.config import load_recipe
from etude.errors import EndpointError
from etude.harness.store import SessionStore
from etude.product.agent import Agent, open_agent
from etude.product.config import AgentConfig
from etude.product.tracing import wanted

OTEL = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
)
CONTENT = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
WRITE = ("write_file", {"path": "a.txt", "content": "a secret thought\n"})


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="etude-test-", dir="/var/tmp"))  # the sandbox has a /tmp of its own
    monkeypatch.setenv("XDG_CONFIG_HOME", str(root / "config"))
    for name in (*OTEL, "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"):
        monkeypatch.delenv(name, raising=False)
    (root / "project").mkdir()
    yield root
    shutil.rmtree(root)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as server:
        yield server


def play(root: Path, script: list[Reply], scenario: Any, *more: str) -> Agent:
    async def whole(server: ScriptedServer) -> Agent:
        given = [f'endpoint.url="{server.url}"', 'endpoint.model="m"', "endpoint.attempts=1", *more]
        config = load_recipe(None, AgentConfig, given)
        async with open_agent(config, root / "project", SessionStore(root / "home")) as agent:
            await scenario(agent)
        return agent

    with ScriptedServer(script) as server:
        return asyncio.run(whole(server))


def test_the_spans_of_a_session(root: Path, collector: Collector) -> None:
    script = [
        Reply("I write.", [WRITE, ("read_file", {"path": "gone.txt"})], prompt_tokens=50, cached_tokens=20),
        Reply("Done.", prompt_tokens=80),
    ]
    agent = play(root, script, lambda agent: agent.play("Think."), f'spans_to="{collector.url}/v1/traces"')
    assert agent.spans is not None and agent.spans.ended == {"chat": 2, "execute_tool": 2, "invoke_agent": 1}
    spans = {span.name: span for _, _, span in collector.sent}
    told = {name: attributes_of(span) for name, span in spans.items()}
    assert {path for path, _, _ in collector.sent} == {"/v1/traces"} and len(collector.sent) == 5
    assert {resource["service.name"] for _, resource, _ in collector.sent} == {"etude-agent"}
    whole = spans["invoke_agent etude"]
    assert whole.parent_span_id == b"" and told["invoke_agent etude"]["etude.stop"] == "finished"
    for _, _, span in collector.sent:
        assert span.trace_id == whole.trace_id and attributes_of(span)["gen_ai.conversation.id"] == agent.id
        assert span is whole or span.parent_span_id == whole.span_id
        assert whole.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    chats = [attributes_of(span) for _, _, span in collector.sent if span.name == "chat m"]
    assert [chat["gen_ai.usage.input_tokens"] for chat in chats] == [50, 80]
    assert chats[0]["gen_ai.usage.cache_read.input_tokens"] == 20 and chats[0]["gen_ai.usage.output_tokens"] == 10
    assert chats[0]["gen_ai.operation.name"] == "chat" and chats[0]["server.address"] == "127.0.0.1"
    assert chats[0]["gen_ai.response.time_to_first_chunk"] > 0 and chats[1]["gen_ai.response.finish_reasons"] == [
        "stop"
    ]
    assert told["invoke_agent etude"]["gen_ai.usage.input_tokens"] == 130
    failed, wrote = spans["execute_tool read_file"], spans["execute_tool write_file"]
    assert failed.status.code == 2 and attributes_of(failed)["error.type"] == "tool_error" and wrote.status.code == 0
    assert (
        attributes_of(wrote)["gen_ai.tool.call.id"] == "1.0" and attributes_of(failed)["gen_ai.tool.call.id"] == "1.1"
    )
    assert not any(name in each for each in told.values() for name in CONTENT), "what was said is told to nobody"
    assert b"secret thought" not in b"".join(body.SerializeToString() for _, body in collector.taken)


def test_by_opentelemetrys_own_variables_and_with_what_was_said(
    root: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    play(root, [Reply("I write.", [WRITE]), Reply("Done.")], lambda agent: agent.play("Think."))
    told = {span.name: attributes_of(span) for _, _, span in collector.sent}
    assert json.loads(told["invoke_agent etude"]["gen_ai.input.messages"])[0]["parts"][0]["content"] == "Think."
    assert json.loads(told["chat m"]["gen_ai.output.messages"])[0]["role"] == "assistant"
    assert json.loads(told["execute_tool write_file"]["gen_ai.tool.call.arguments"]) == WRITE[1]
    assert told["execute_tool write_file"]["gen_ai.tool.call.result"] == "ok, 1 line"


def test_what_breaks_off_says_why(root: Path, collector: Collector) -> None:
    async def scenario(agent: Agent) -> None:
        with pytest.raises(EndpointError):
            await agent.play("Fail.")
        playing = asyncio.ensure_future(agent.play("Wait."))
        while agent.session.state.prompts[-1] != "Wait.":
            await asyncio.sleep(0.01)
        agent.cancel()
        assert await playing == "cancelled"

    script = [Reply(status=400, body={"error": {"message": "no"}}), Reply("Late.", stall_s=60)]
    play(root, script, scenario, f'spans_to="{collector.url}/v1/traces"')
    stops = [
        (span.name, attributes_of(span).get("error.type"), attributes_of(span).get("etude.stop"))
        for _, _, span in collector.sent
    ]
    assert stops == [
        ("chat m", "EndpointError", None),
        ("invoke_agent etude", "EndpointError", "EndpointError"),
        ("chat m", "cancelled", None),
        ("invoke_agent etude", None, "cancelled"),
    ]


def test_off_unless_it_is_asked_for(root: Path) -> None:
    agent = play(root, [Reply("Done.")], lambda agent: agent.play("Go."))
    assert agent.spans is None
    there = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    assert wanted(None, there) and wanted("http://127.0.0.1:1", {}) and not wanted(None, {})
    assert not wanted(None, {**there, "OTEL_SDK_DISABLED": "true"})
    assert not wanted(None, {**there, "OTEL_TRACES_EXPORTER": "none"})
