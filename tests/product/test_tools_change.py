"""Tools that an MCP server adds and takes away while a session runs: told with the next prompt, and nowhere before."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from proofs import one_of_each
from scripted_openai import Reply, ScriptedServer

from etude.config import load_recipe
from etude.harness.prompt import render_call
from etude.harness.store import SessionStore
from etude.product.agent import Agent, open_agent
from etude.product.config import AgentConfig

pytestmark = pytest.mark.timeout(280)
SERVER = Path(__file__).parents[1] / "harness" / "mcp_growing.py"
PATIENCE_S = 110.0
EXTRA = "mcp__one__extra"


def config(server: ScriptedServer, *arguments: str, calls: str = "native") -> AgentConfig:
    one = f"command={json.dumps(sys.executable)}, args={json.dumps([str(SERVER), *arguments])}, connect_s={PATIENCE_S}"
    given = [f'endpoint.url="{server.url}"', 'endpoint.model="m"', f'endpoint.calls="{calls}"']
    return load_recipe(None, AgentConfig, [*given, f"mcp.servers.one={{{one}}}"])


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not there():
            await asyncio.sleep(0.01)


def has(agent: Agent, name: str) -> bool:
    """Whether the session could run it."""
    return name in agent.session._tools


@pytest.fixture
def place(outer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(outer / "config"))
    (outer / "project").mkdir()
    return outer


def results(body: dict[str, Any]) -> list[str]:
    return [each["content"] for each in body["messages"] if each["role"] == "tool"]


@pytest.mark.parametrize("revision", one_of_each(2.5, ["later", "earlier"]))
def test_what_has_changed_is_told_and_no_sealed_byte_is_another(place: Path, revision: str) -> None:
    script = [
        Reply("", [("mcp__one__grow", {})]),
        Reply("Done."),
        Reply(render_call(EXTRA, {"word": "ha"})),  # as it was told; this endpoint knows no such function
        Reply("", [("mcp__one__shout", {"word": "ha"}), (EXTRA, {"word": "ho"})]),
        Reply("Done."),
        Reply("Done again."),
    ]

    async def play(server: ScriptedServer) -> None:
        given = config(server, *(["--plain"] if revision == "earlier" else []))
        store = SessionStore(place / "home")
        async with open_agent(given, place / "project", store, allow=["mcp__one__*"]) as agent:
            assert await agent.play("Grow.") == "finished"
            await until(lambda: has(agent, EXTRA))
            assert await agent.play("Use it.") == "finished"
        # another process, where the server has not grown yet
        async with open_agent(given, place / "project", store, agent.id, allow=["mcp__one__*"]) as again:
            assert not has(again, EXTRA)
            assert await again.play("And now?") == "finished"

    with ScriptedServer(script) as server:
        asyncio.run(play(server))
    bodies = server.bodies
    tools = [each["function"]["name"] for each in bodies[0]["tools"]]
    assert "mcp__one__shout" in tools and EXTRA not in tools
    for earlier, later in itertools.pairwise(bodies):
        assert later["tools"] == bodies[0]["tools"], "what stands before the conversation stays"
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]
    told = bodies[2]["messages"][-1]["content"]
    assert told.endswith("\n\nUse it.") and f"{EXTRA}(word): Say a word twice.\n  word (string)" in told
    assert "mcp__one__turn(word, times)" in told and "[Tools that are gone: mcp__one__shout]" in told
    assert "grow" not in told and "read_file" not in told
    assert "haha" in bodies[3]["messages"][-1]["content"]
    gone, native = results(bodies[4])[-2:]
    assert gone.startswith("error: mcp__one__shout is gone") and EXTRA in gone and native == "hoho"
    resumed = bodies[5]["messages"][-1]["content"]
    assert f"[Tools that are gone: {EXTRA}]" in resumed and "mcp__one__shout(word)" in resumed


def test_where_the_prompt_explains_tools_it_is_told_anew(place: Path) -> None:
    script = [Reply(render_call("mcp__one__grow", {})), Reply("Done."), Reply("Done.")]

    async def play(server: ScriptedServer) -> None:
        given = config(server, "--plain", calls="text")
        store = SessionStore(place / "home")
        async with open_agent(given, place / "project", store, allow=["mcp__one__*"]) as agent:
            assert await agent.play("Grow.") == "finished"
            await until(lambda: has(agent, EXTRA))
            assert await agent.play("Go on.") == "finished"

    with ScriptedServer(script) as server:
        asyncio.run(play(server))
    first, _, last = (body["messages"] for body in server.bodies)
    assert last[: len(first)] == first and EXTRA not in str(first)
    assert last[-1]["content"].startswith("Go on.\n\n[Your instructions have changed since.") and EXTRA in str(last[-1])
    assert "mcp__one__shout" not in last[-1]["content"]
