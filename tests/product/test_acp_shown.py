"""What an editor says becomes a prompt, and what the agent does becomes updates: the parts without a process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import acp
import pytest
from acp.schema import AgentMessageChunk, HttpHeader, HttpMcpServer, McpServerStdio, SseMcpServer

from etude.errors import ConfigError
from etude.harness.endpoint import CallDelta, Retry, TextDelta
from etude.harness.mcp import McpConfig, ServerConfig
from etude.product.acp import calls, requests
from etude.product.acp.outbox import Outbox, Update
from etude.product.acp.projection import Projection
from etude.product.files import text_of
from etude.records import Event


def test_a_prompt_names_files_as_the_tools_do(tmp_path: Path) -> None:
    inside, beside = f"file://{tmp_path}/src/a%20b.py#L3:9", "file:///etc/hosts"
    attached = acp.resource_block(acp.embedded_text_resource(f"file://{tmp_path}/notes.md", "Be brief."))
    blocks = [
        acp.text_block("Look at "),
        acp.resource_link_block("a b.py", inside),
        acp.text_block(" and "),
        acp.resource_link_block("hosts", beside),
        acp.text_block(", says "),
        attached,
    ]
    assert requests.text_of(blocks, tmp_path) == (
        "Look at src/a b.py#L3:9 and /etc/hosts, says notes.md\n\n[notes.md, as the user sees it:]\nBe brief."
    )
    linked = tmp_path.with_name(f"{tmp_path.name}-link")
    linked.symlink_to(tmp_path)
    assert requests.text_of([acp.resource_link_block("x", f"file://{linked}/x.py")], tmp_path) == "x.py"
    (linked / "loop").symlink_to("loop")
    assert requests.text_of([acp.resource_link_block("x", f"file://{linked}/loop")], tmp_path) == "loop"
    with pytest.raises(acp.RequestError, match="cannot be shown audio"):
        requests.text_of([acp.audio_block("aGk=", "audio/wav")], tmp_path)


def test_commands_are_told_from_words() -> None:
    assert requests.command_in(" /undo  2 \n") == ("undo", "2") and requests.command_in("/compact") == ("compact", "")
    assert requests.command_in("/etc/hosts") is requests.command_in("/unknown") is requests.command_in("undo") is None


def test_commands_of_the_users_own_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "etude" / "commands"
    folder.mkdir(parents=True)
    (folder / "review.md").write_text("# Look at one file\nRead $ARGUMENTS.")
    (folder / "undo.md").write_text("Never.")
    offered = {each.name: each.description for each in requests.commands()}
    assert offered["review"] == "Look at one file" and offered["undo"].startswith("Take back")
    assert requests.command_in("/review a.py") is None, "it is a prompt, which the agent expands"


def test_the_clients_servers_stand_beside_the_users_own() -> None:
    own = McpConfig(
        servers={"git": ServerConfig(command="git-mcp"), "web": ServerConfig(url="http://own")}, max_tools=9
    )
    given = [
        McpServerStdio(name="My  Files__x", command="files", args=["-v"], env=[]),
        HttpMcpServer(type="http", name="web", url="http://theirs", headers=[HttpHeader(name="A", value="b")]),
    ]
    merged = requests.servers_of(given, own)
    assert sorted(merged.servers) == ["My--Files_x", "git", "web"] and merged.max_tools == 9
    assert merged.servers["web"].url == "http://theirs" and merged.servers["web"].headers == {"A": "b"}
    with pytest.raises(acp.RequestError, match="only stdio and HTTP"):
        requests.servers_of([SseMcpServer(type="sse", name="old", url="http://x", headers=[])], own)
    with pytest.raises(ConfigError, match="mcpServers"):
        requests.servers_of([HttpMcpServer(type="http", name="x", url="ftp://x", headers=[])], own)


def shown(tmp_path: Path, told: list[Event | Any]) -> list[dict[str, Any]]:
    """The calls of a session that was told so, each as an editor has it in the end."""
    updates: list[Update] = []
    projection = Projection(updates.append, tmp_path, 1000, terminals=False, text_calls=False)
    for each in told:
        projection.event(each) if isinstance(each, Event) else projection.delta(each)
    known: dict[str, dict[str, Any]] = {}
    for update in updates:
        if hasattr(update, "tool_call_id"):
            said = update.model_dump(exclude_none=True, exclude={"session_update"})
            known.setdefault(update.tool_call_id, {}).update(said)
    return list(known.values())


def event(kind: Any, **data: Any) -> Event:
    return Event(kind, 0.0, data)


def test_a_call_is_seen_to_come_and_none_stays_open(tmp_path: Path) -> None:
    """The second was begun in a message that broke off; the first stands in the one that was asked for anew."""
    hunks = "<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n<<<<<<< SEARCH\nc\n=======\nd\n>>>>>>> REPLACE"
    at = {"turn": 1, "index": 0, "name": "edit_file"}
    told = [
        CallDelta(0, "edit_file", ""),
        CallDelta(1, "write_file", ""),
        Retry("it broke off", 1.0),
        CallDelta(0, "edit_file", ""),
        event("completion", turn=1, text="", context=10),
        event("tool_call", **at, arguments={"path": "a\ud800.py", "hunks": hunks}),
        event("tool_started", **at),
        event("tool_result", **at, text="error: no file a.py", error=True),
        event("observation", turn=1, tokens=3),
    ]
    edit, begun = shown(tmp_path, told)
    assert edit["title"] == "Edit `a?.py`" and edit["status"] == begun["status"] == "failed"
    assert edit["content"] == [{"type": "content", "content": {"type": "text", "text": "error: no file a.py"}}]
    assert edit["locations"] == [{"path": str(tmp_path / "a?.py")}]
    before = calls.will_change(tmp_path, "edit_file", {"path": "a.py", "hunks": hunks}, live=True)
    assert [(each.old_text, each.new_text) for each in before] == [("a", "b"), ("c", "d")]


def test_an_answer_that_was_cut_for_repeating_itself_is_said_to_be(tmp_path: Path) -> None:
    updates: list[Any] = []
    projection = Projection(updates.append, tmp_path, 1000, terminals=False, text_calls=False)
    cut = {
        "text": "Hm. Hm. ",
        "context": 10,
        "finish": "repetition",
        "repeated": "the same 4 characters 6000 times over",
    }
    projection.event(event("completion", turn=1, **cut))
    projection.event(event("end", stop="repetition", usage={}))
    said = [update.content.text.strip() for update in updates if update.session_update == "agent_message_chunk"]
    assert said[0] == "Hm. Hm."
    assert said[1] == "*The answer was cut off, because it repeated the same 4 characters 6000 times over.*"
    assert said[2].startswith("*The model repeats itself. ")


def test_no_link_leads_a_diff_out_of_the_workspace(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "secret").write_text("secret")
    (workspace / "link").symlink_to(tmp_path / "secret")
    [preview] = calls.will_change(workspace, "write_file", {"path": "link", "content": "new"}, live=True)
    assert preview.old_text is None and text_of(workspace, workspace / "link", 1000) is None


def test_words_wait_for_a_slow_client_together() -> None:
    class Slow:
        def __init__(self) -> None:
            self.read, self.told = asyncio.Event(), []

        async def session_update(self, session_id: str, update: Any) -> None:
            await self.read.wait()
            self.told.append((session_id, update.content.text))

    async def play() -> list[tuple[str, str]]:
        client = Slow()
        outbox = Outbox(client)
        outbox.session_id = "s"
        projection = Projection(outbox.add, Path("/"), 1000, terminals=False, text_calls=False)
        projection.delta(TextDelta("Fir"))
        await asyncio.sleep(0)
        for word in ("st", " and", " second"):
            projection.delta(TextDelta(word))
        projection.delta(TextDelta("Hm.", "reasoning"))
        client.read.set()
        await outbox.flush()
        outbox.add(AgentMessageChunk(session_update="agent_message_chunk", content=acp.text_block("late")))
        await outbox.close()
        return client.told

    assert asyncio.run(play()) == [("s", "Fir"), ("s", "st and second"), ("s", "Hm.")]
