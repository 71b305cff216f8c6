"""A session that uses a published MCP server, through a model behind an endpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from scripted_openai import Reply, ScriptedServer

from etude.environments.base import Sandbox
from etude.harness.config import HarnessConfig
from etude.harness.endpoint import Endpoint, EndpointConfig
from etude.harness.endpoint.dialogue import EndpointDialogue
from etude.harness.events import EventLog
from etude.harness.mcp import McpConfig, McpTools, ServerConfig
from etude.harness.prompt import render_call
from etude.harness.session import Session
from etude.records import Event, Limits

TOKYO = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
TIME = ServerConfig(command=sys.executable, args=("-m", "mcp_server_time"), connect_s=50.0)


@pytest.mark.parametrize("calls", ["native", "text"])
def test_a_published_server_in_a_session(in_sandbox: Callable[..., Any], calls: Any) -> None:
    name = "mcp__clock__convert_time"
    call = Reply("", [(name, TOKYO)]) if calls == "native" else Reply(render_call(name, TOKYO))

    async def scenario(sandbox: Sandbox) -> tuple[Event, ...]:
        endpoint = Endpoint(EndpointConfig(url=server.url, model="m", calls=calls))
        config, limits, log = HarnessConfig(), Limits(max_turns=4, wall_s=60), EventLog()
        try:
            async with McpTools(McpConfig(servers={"clock": TIME})) as mcp:
                tools = {**config.chosen(), **mcp.by_name}
                dialogue = EndpointDialogue(endpoint, tools, session_id="s")
                session = Session(sandbox, dialogue, config, limits, log, tools=tools)
                session.begin(id="s")
                assert await session.prompt("What time is it in Tokyo?") == "finished"
        finally:
            await endpoint.close()
        return log.events

    with ScriptedServer([call, Reply("Nine in the evening.")]) as server:
        events = in_sandbox(scenario)
    [result] = [event.data for event in events if event.kind == "tool_result"]
    assert result["name"] == name and "21:00" in result["text"] and not result["error"]
    told = str(server.bodies[0])
    assert name in told and "read_file" in told and "target_timezone" in told
    assert "21:00" in str(server.bodies[1]["messages"][-1])
