"""`etude acp` driven by the protocol's own client, over a real pipe, with a real HTTP server for a model."""

from __future__ import annotations

import asyncio
import signal
import tomllib
from pathlib import Path
from typing import Any

import acp
import pytest
from acp.schema import PermissionOption, ToolCallUpdate
from acp_editor import WAIT_S, Editor, editor
from scripted_openai import Reply, ScriptedServer

PRICES = ("--set", "prices.scripted={input = 2, cached = 1, output = 10}")
BEFORE, AFTER = "def double(x):\n    return x + x + x\n", "def double(x):\n    return x + x\n"


@pytest.fixture
def root(outer: Path) -> Path:
    (outer / "project").mkdir()
    (outer / "project" / "double.py").write_text(BEFORE)
    return outer


def run(command: str) -> tuple[str, dict[str, str]]:
    return "run_terminal_cmd", {"command": command}


def todo(*states: str) -> tuple[str, dict[str, Any]]:
    return "todo_write", {"todos": [{"content": f"step {n}", "status": s} for n, s in enumerate(states, 1)]}


def model(server: ScriptedServer) -> list[str]:
    return ["--endpoint", server.url, "--model", "scripted"]


def test_a_session_with_permissions_diffs_a_plan_and_a_cancel(root: Path) -> None:
    edit = ("edit_file", {"path": "double.py", "old": "x + x + x", "new": "x + x"})
    script = [
        Reply(
            "Let me look.", [("read_file", {"path": "double.py", "start": 2}), todo("in_progress", "pending")], "Hm."
        ),
        Reply("", [edit, run("sort double.py"), run("sort -r double.py")]),
        Reply("", [todo("completed", "cancelled")]),
        Reply("Mended.", prompt_tokens=700, cached_tokens=600),
        Reply("", [run("echo begun | tee ledger; sleep 60; echo ended >> ledger")]),
        Reply("It was stopped."),
    ]

    def answer(call: ToolCallUpdate, options: list[PermissionOption]) -> str:
        return "allow-project" if "sort" in call.title else "allow"

    async def play(server: ScriptedServer) -> Editor:
        async with editor(root, *model(server), *PRICES, answer=answer) as (client, agent, process):
            session = await agent.new_session(cwd=str(root / "project"))
            first = await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("Mend double.py")])
            assert first.stop_reason == "end_turn"
            assert (first.usage.input_tokens, first.usage.cached_read_tokens, first.usage.output_tokens) == (
                400,
                600,
                40,
            )
            check_first(client, root)
            client.updates.clear()
            prompt = asyncio.create_task(
                agent.prompt(session_id=session.session_id, prompt=[acp.text_block("Now wait.")])
            )
            await client.until(lambda: any("begun" in str(call.get("content")) for call in client.calls()))
            await agent.cancel(session_id=session.session_id)
            assert (await prompt).stop_reason == "cancelled"
            assert client.calls()[-1]["status"] == "failed"
            again = await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("Well?")])
            assert again.stop_reason == "end_turn" and client.text().endswith("It was stopped.")
            listed = await agent.list_sessions(cwd=str(root / "project"))
            assert [each.title for each in listed.sessions] == ["Mend double.py"]
        assert process.returncode == 0
        return client

    with ScriptedServer(script) as server:
        asyncio.run(play(server))
    assert (root / "project" / "ledger").read_text() == "begun\n", "what was cancelled does not go on behind"
    told = server.bodies[-1]["messages"]
    assert [each["role"] for each in told[-3:]] == ["assistant", "tool", "user"]
    assert "interrupted" in told[-2]["content"] and told[-1]["content"] == "Well?"
    kept = tomllib.loads((root / "config" / "etude" / "permissions.toml").read_text())
    assert kept["projects"][str(root / "project")]["allow"] == ["run(sort *)"]


def check_first(client: Editor, root: Path) -> None:
    """What the editor was shown of the first prompt."""
    assert client.text() == "Let me look.Mended." and client.text("agent_thought_chunk") == "Hm."
    assert client.of("session_info_update")[0].title == "Mend double.py"
    assert client.of("usage_update")[-1].used == 710 and client.of("usage_update")[-1].size == 128_000
    cost = client.of("usage_update")[-1].cost
    assert cost.currency == "USD" and cost.amount == pytest.approx((400 * 2 + 600 * 1 + 40 * 10) / 1e6)
    names = [command.name for command in client.of("available_commands_update")[0].available_commands]
    assert {"compact", "undo"} <= set(names)
    plans = [[(each.content, each.status) for each in plan.entries] for plan in client.of("plan")]
    assert plans == [[("step 1", "in_progress"), ("step 2", "pending")], [("step 1", "completed")]]
    read, edit, sort, reverse = client.calls()
    assert {call["status"] for call in (read, edit, sort, reverse)} == {"completed"}
    file = str(root / "project" / "double.py")
    assert read["kind"] == "read" and read["locations"][0]["path"] == file and read["locations"][0]["line"] == 2
    assert edit["kind"] == "edit" and edit["locations"][0]["line"] == 2
    assert edit["content"] == [{"type": "diff", "path": file, "old_text": BEFORE, "new_text": AFTER}]
    assert sort["kind"] == "execute" and "return x" in sort["content"][0]["content"]["text"]
    assert sort["raw_input"] == {"command": "sort double.py"} and reverse["title"] == "`sort -r double.py`"
    [(asked, options)] = client.questions
    assert asked.tool_call_id == sort["tool_call_id"], "the second command is covered by the answer to the first"
    assert "no rule matches; commands are ask by default" in asked.content[0].content.text
    assert [(option.kind, option.name) for option in options] == [
        ("allow_once", "Allow once"),
        ("allow_always", "Allow run(sort *) in this session"),
        ("allow_always", "Always allow run(sort *) in this project"),
        ("reject_once", "Reject"),
    ]


async def ended(process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(WAIT_S):
        return await process.wait()


def text(words: str) -> list[Any]:
    return [acp.text_block(words)]


def test_a_killed_session_is_loaded_with_all_that_was_said(root: Path) -> None:
    """What the next process shows is what the first one did; a command that was running is not run again."""
    edit = ("edit_file", {"path": "double.py", "old": "x + x + x", "new": "x + x"})
    script = [
        Reply("I mend it.", [edit, todo("completed")], "Hm."),
        Reply("Now this.", [run("echo begun | tee -a ledger; sleep 60; echo ended >> ledger")]),
        Reply("I looked."),
        Reply("Once more."),
    ]

    async def first(server: ScriptedServer) -> str:
        async with editor(root, *model(server), "--set", "max_turns=9") as (client, agent, process):
            session = await agent.new_session(cwd=str(root / "project"))
            prompt = asyncio.create_task(agent.prompt(session_id=session.session_id, prompt=text("Mend it.")))
            await client.until(lambda: any("begun" in str(call.get("content")) for call in client.calls()))
            process.send_signal(signal.SIGKILL)
            await ended(process)
            with pytest.raises(ConnectionError):
                await prompt
        return session.session_id

    async def second(server: ScriptedServer, id: str) -> None:
        async with editor(root, *model(server), terminals=True) as (client, agent, _):
            loaded = await agent.load_session(cwd=str(root / "project"), session_id=id)
            assert loaded.modes.current_mode_id == "ask"
            chunks = client.of("user_message_chunk", "agent_thought_chunk", "agent_message_chunk")
            assert [(each.session_update, each.content.text) for each in chunks] == [
                ("user_message_chunk", "Mend it."),
                ("agent_thought_chunk", "Hm."),
                ("agent_message_chunk", "I mend it."),
                ("agent_message_chunk", "Now this."),
            ]
            mended, cut_short = client.calls()
            assert mended["status"] == "completed" and mended["content"][0]["new_text"] == "x + x"
            assert cut_short["status"] == "failed" and "interrupted" in str(cut_short["content"])
            assert [entry.status for entry in client.of("plan")[-1].entries] == ["completed"]
            client.updates.clear()
            went_on = await agent.prompt(session_id=id, prompt=text("/continue"))
            assert went_on.stop_reason == "end_turn" and client.text() == "I looked."
            client.updates.clear()
            resumed = await agent.resume_session(cwd=str(root / "project"), session_id=id)
            assert resumed.modes is not None and not client.of("user_message_chunk", "tool_call"), "nothing is replayed"
            assert (await agent.prompt(session_id=id, prompt=text("And?"))).stop_reason == "end_turn"

    with ScriptedServer(script) as server:
        id = asyncio.run(first(server))
        asyncio.run(second(server, id))
    assert (root / "project" / "ledger").read_text() == "begun\n"
    assert [each["role"] for each in server.bodies[2]["messages"][-2:]] == ["assistant", "tool"]
    assert "interrupted" in server.bodies[2]["messages"][-1]["content"]


@pytest.mark.parametrize("how", ["SIGTERM", "the editor leaves"])
def test_the_end_stops_every_command(root: Path, how: str) -> None:
    script = [Reply("", [run("echo begun; sleep 60; echo late > late")]), Reply("Never said.")]

    async def play(server: ScriptedServer) -> None:
        async with editor(root, *model(server), terminals=True) as (client, agent, process):
            session = await agent.new_session(cwd=str(root / "project"))
            prompt = asyncio.create_task(agent.prompt(session_id=session.session_id, prompt=text("Wait.")))
            await client.until(lambda: "begun" in "".join(terminal_output(client)))
            process.terminate() if how == "SIGTERM" else process.stdin.close()
            assert (await prompt).stop_reason == "cancelled", "who waits is told before the end"
            assert await ended(process) == 0
            running = [line for line in Path("/proc").glob("[0-9]*/cmdline") if runs_in(line, str(root))]
            assert running == []

    with ScriptedServer(script) as server:
        asyncio.run(play(server))
    assert not (root / "project" / "late").exists()


def terminal_output(client: Editor) -> list[str]:
    metas = [update.field_meta or {} for update in client.of("tool_call_update")]
    return [meta["terminal_output"]["data"] for meta in metas if "terminal_output" in meta]


def runs_in(cmdline: Path, place: str) -> bool:
    try:
        return place.encode() in cmdline.read_bytes()
    except OSError:
        return False  # it has ended meanwhile
