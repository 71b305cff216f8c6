"""MCP servers as tools: real servers, over stdio and HTTP, from published packages and scripted ones that break."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from etude.environments.base import Sandbox
from etude.errors import ConfigError
from etude.harness.coerce import check_json_call
from etude.harness.mcp import McpConfig, McpTools, ServerConfig, load_servers
from etude.harness.mcp.tools import MAX_NAME, full_name
from etude.harness.prompt import render_call
from etude.harness.protocol import calls_of, parse_message
from etude.harness.schema import ToolCall
from etude.harness.tools import ToolConfig, ToolResult, run_calls

pytestmark = pytest.mark.timeout(280)
SCRIPT = Path(__file__).with_name("mcp_script.py")
PATIENCE_S = 110.0
"""A server imports much, and a busy machine takes its time over it."""
NOWHERE: Any = None
"""The sandbox of tools that need none."""


def stdio(*arguments: str, **more: Any) -> ServerConfig:
    return ServerConfig(command=sys.executable, args=(str(SCRIPT), *arguments), **{"connect_s": PATIENCE_S, **more})


def module(name: str, *arguments: str, **more: Any) -> ServerConfig:
    return ServerConfig(command=sys.executable, args=("-m", name, *arguments), connect_s=PATIENCE_S, **more)


def with_tools(config: McpConfig, use: Callable[[McpTools], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        async with asyncio.timeout(240), McpTools(config) as tools:
            return await use(tools)

    return asyncio.run(whole())


async def called(tools: McpTools, name: str, config: ToolConfig | None = None, /, **arguments: Any) -> ToolResult:
    """Call a tool as a session does: checked against its schema, run by the harness."""
    known = {tool.name: tool for tool in tools.tools}
    call = check_json_call(known, name, json.dumps(arguments), "")
    assert isinstance(call, ToolCall), call
    [result] = await run_calls([call], known, NOWHERE, config or ToolConfig(), lambda *_: None)
    return result


@pytest.fixture
def address() -> Iterator[str]:
    """The scripted server over HTTP."""
    from mcp_script import serving

    with serving() as url:
        yield url


def test_tools_are_listed_named_called_and_cut() -> None:
    async def use(tools: McpTools) -> None:
        by_name = {tool.name: tool for tool in tools.tools}
        assert list(by_name) == [
            f"mcp__one__{name}" for name in ("add", "move", "wait", "fail", "shout", "draw", "environment", "die")
        ]
        add, move = by_name["mcp__one__add"], by_name["mcp__one__move"]
        assert add.signature() == "mcp__one__add(a, b)" and add.description == "Add two numbers." and add.reads_only
        assert move.json_schema()["parameters"]["$defs"] and not move.reads_only  # as the server declares it
        assert (await called(tools, add.name, a=2, b="3")).text == "5"
        assert (await called(tools, move.name, points=[{"x": 1}, {"x": 2, "y": 5}])).text == "2,0;3,5"
        assert (await called(tools, move.name, points='[{"x": 1}]', by={"x": 4})).text == "5,0"
        [call] = calls_of(parse_message(render_call(move.name, {"points": '[{"x": 7}]'}), by_name, lenient=True))
        [result] = await run_calls([call], by_name, NOWHERE, ToolConfig(), lambda *_: None)
        assert result == ToolResult("8,0")
        failed = await called(tools, "mcp__one__fail", why="no luck")
        assert failed.error and "no luck" in failed.text
        wrong = await called(tools, move.name, points="neither")
        assert wrong.error and "points" in wrong.text  # the server judges what does not fit its schema
        long = await called(tools, "mcp__one__shout", ToolConfig(max_observation_bytes=500), count=5000)
        assert len(long.text.encode()) <= 500 and "bytes cut" in long.text
        assert (await called(tools, "mcp__one__draw")).text == "[image/png, 6 bytes]\na caption"

    with_tools(McpConfig(servers={"one": stdio()}), use)


def test_a_server_gets_no_variables_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETUDE_TEST_SECRET", "mine")
    monkeypatch.setenv("ETUDE_TEST_TOKEN", "theirs")

    async def use(tools: McpTools) -> list[str]:
        return [
            (await called(tools, "mcp__one__environment", name=name)).text for name in ("ETUDE_TEST_SECRET", "TOKEN")
        ]

    config = stdio(env={"TOKEN": "${ETUDE_TEST_TOKEN}-${ETUDE_NOT_SET:-otherwise}"}, tools=("environment",))
    assert with_tools(McpConfig(servers={"one": config}), use) == ["unset", "theirs-otherwise"]


def test_nothing_that_lies_in_the_workspace_becomes_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` finds modules where it starts, a PATH may name the project's programs: an agent writes both."""
    planted = f"from pathlib import Path\nPath({str(tmp_path / 'canary')!r}).touch()\n"
    for name in ("mcp_server_time", "mcp_server_time.py"):
        place = tmp_path / "work" / name
        (place / "__init__.py" if place.suffix == "" else place).parent.mkdir(parents=True, exist_ok=True)
        (place / "__init__.py" if place.suffix == "" else place).write_text(planted)
    program = tmp_path / "work" / "bin" / "mcp-time"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'canary'}\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    servers = {"time": module("mcp_server_time"), "mine": ServerConfig(command="mcp-time")}

    async def whole() -> None:
        async with asyncio.timeout(240), McpTools(McpConfig(servers=servers), tmp_path / "work") as tools:
            assert "mcp__time__get_current_time" in tools.by_name
            assert list(tools.failed) == ["mine"] and "in the workspace alone" in tools.failed["mine"]

    asyncio.run(whole())
    assert not (tmp_path / "canary").exists()


def test_a_server_is_told_where_the_workspace_is(tmp_path: Path) -> None:
    config = stdio(env={"AT": "${WORKSPACE}"}, tools=("environment",))

    async def whole() -> str:
        async with asyncio.timeout(240), McpTools(McpConfig(servers={"one": config}), tmp_path) as tools:
            return (await called(tools, "mcp__one__environment", name="AT")).text

    assert asyncio.run(whole()) == str(tmp_path)


def test_a_call_has_a_deadline_and_a_server_that_ended_is_started_again() -> None:
    async def use(tools: McpTools) -> None:
        late = await called(tools, "mcp__one__wait", seconds=30)
        assert late.error and "waited 2.5 s for the MCP server one to answer wait" in late.text
        gone = await called(tools, "mcp__one__die")
        assert gone.error and "MCP server one" in gone.text
        assert (await called(tools, "mcp__one__environment", name="NO")).text == "unset"

    with_tools(McpConfig(servers={"one": stdio(call_s=2.5)}), use)


def test_a_server_that_cannot_be_had_takes_only_its_own_tools() -> None:
    servers = {
        "absent": ServerConfig(command="etude-no-such-command"),
        "broken": stdio("--broken"),
        "keyless": stdio(env={"A": "${ETUDE_NOT_SET}"}),
        "off": stdio("--broken", enabled=False),
        "sound": stdio(tools=("add", "subtract")),
        "unreachable": ServerConfig(url="http://127.0.0.1:1/mcp"),
    }

    async def use(tools: McpTools) -> None:
        assert [tool.name for tool in tools.tools] == ["mcp__sound__add"]
        assert list(tools.failed) == ["absent", "broken", "keyless", "unreachable", "sound"]
        assert "etude-no-such-command" in tools.failed["absent"]
        assert "cannot start: no such database" in tools.failed["broken"]
        assert "ETUDE_NOT_SET is not set" in tools.failed["keyless"]
        assert "127.0.0.1:1" in tools.failed["unreachable"] and "no tool subtract" in tools.failed["sound"]
        assert (await called(tools, "mcp__sound__add", a=1, b=1)).text == "2"

    with_tools(McpConfig(servers=servers), use)


def test_a_server_that_says_nothing_has_a_deadline() -> None:
    async def use(tools: McpTools) -> str:
        return tools.failed["mute"]

    said = with_tools(McpConfig(servers={"mute": stdio("--silent", connect_s=0.5)}), use)
    assert said.startswith("waited 0.5 s for the MCP server mute (") and said.endswith("to answer: see its connect_s")


def test_servers_over_http(address: str) -> None:
    async def use(tools: McpTools) -> None:
        assert not tools.failed and len(tools.tools) == 8
        both = await asyncio.gather(*(called(tools, "mcp__web__add", a=n, b=1) for n in range(5)))
        assert [result.text for result in both] == ["1", "2", "3", "4", "5"]

    async def wait(tools: McpTools) -> None:
        late = await called(tools, "mcp__web__wait", seconds=15)
        assert late.error and "waited 0.5 s" in late.text

    for call_s, each in ((10.0, use), (0.5, wait)):
        with_tools(McpConfig(servers={"web": ServerConfig(url=address, call_s=call_s, connect_s=PATIENCE_S)}), each)


def test_published_servers(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a.py").write_text("x = 1\n")
    config = McpConfig(
        servers={"git": module("mcp_server_git", "--repository", str(tmp_path)), "time": module("mcp_server_time")}
    )

    async def use(tools: McpTools) -> None:
        assert not tools.failed
        status = await called(tools, "mcp__git__git_status", repo_path=str(tmp_path))
        assert not status.error and "a.py" in status.text
        converted = await called(
            tools, "mcp__time__convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"
        )
        assert "21:00" in converted.text
        wrong = await called(tools, "mcp__time__get_current_time", timezone="Nowhere/Land")
        assert wrong.error and "Invalid timezone" in wrong.text

    with_tools(config, use)


def test_names_that_endpoints_take() -> None:
    long = full_name("server", "t" * 80)
    assert len(long) == MAX_NAME and long != full_name("server", "t" * 81)
    assert full_name("s", "a.b") != full_name("s", "a/b") and full_name("s", "plain") == "mcp__s__plain"


def test_too_many_tools_are_refused_by_name() -> None:
    async def use(tools: McpTools) -> None:
        assert len(tools.tools) == 3 and "max_tools" in tools.failed["one"]

    with_tools(McpConfig(servers={"one": stdio()}, max_tools=3), use)


def test_a_file_of_servers(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    assert load_servers(path) == {}
    path.write_text('{"mcpServers": {"a": {"type": "stdio", "command": "x", "args": ["y"]}, "b": {"url": "http://c"}}}')
    servers = load_servers(path)
    assert servers["a"].args == ("y",) and servers["b"].url == "http://c"
    for text, match in (
        ("{", "cannot be read as JSON"),
        ("{}", "has no servers"),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://c"}}}', "one of the two"),
        ('{"mcpServers": {"a": {"command": "x", "color": 1}}}', "a.color: unknown key"),
        ('{"mcpServers": {"a__b": {"command": "x"}}}', "a server's name"),
        ('{"mcpServers": {"a": {"url": "http://c", "type": "stdio"}}}', "not spoken"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=match):
            load_servers(path)
    with pytest.raises(ValidationError):
        ServerConfig(url="ftp://c")


def test_tools_beside_a_sandbox(in_sandbox: Callable[..., Any]) -> None:
    """Neighbours that only read run at the same time, whoever's they are."""

    async def scenario(sandbox: Sandbox) -> list[ToolResult]:
        from etude.harness.tools import TOOLS

        async with McpTools(McpConfig(servers={"one": stdio(tools=("add",))})) as tools:
            known = {tool.name: tool for tool in (*TOOLS, *tools.tools)}
            text = (
                render_call("read_file", {"path": "a.py"}) + "\n" + render_call("mcp__one__add", {"a": "1", "b": "2"})
            )
            return await run_calls(calls_of(parse_message(text, known)), known, sandbox, ToolConfig(), lambda *_: None)

    assert in_sandbox(scenario, {"a.py": b"x = 1\n"}) == [ToolResult("x = 1\n"), ToolResult("3")]
