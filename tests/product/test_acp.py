"""`etude acp` driven by the protocol's own client, over a real pipe, with a real HTTP server for a model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import acp
import pytest
from acp.schema import HttpMcpServer, McpServerStdio, PermissionOption, ToolCallUpdate
from acp_editor import WAIT_S, Editor, editor
from proofs import one_of_each
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
        Reply("", [edit, run("pr -t double.py"), run("pr -n double.py")]),
        Reply("", [todo("completed", "cancelled")]),
        Reply("Mended.", prompt_tokens=700, cached_tokens=600),
        Reply("", [run("echo begun >> ledger; echo begun; sleep 60; echo ended >> ledger")]),
        Reply("It was stopped."),
    ]

    def answer(call: ToolCallUpdate, options: list[PermissionOption]) -> str:
        return "allow-project" if "pr -t" in call.title else "allow"

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
    assert kept["projects"][str(root / "project")]["allow"] == ["run(pr *)"]


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
    read, edit, printed, numbered = client.calls()
    assert {call["status"] for call in (read, edit, printed, numbered)} == {"completed"}
    file = str(root / "project" / "double.py")
    assert read["kind"] == "read" and read["locations"][0]["path"] == file and read["locations"][0]["line"] == 2
    assert edit["kind"] == "edit" and edit["locations"][0]["line"] == 2
    assert edit["content"] == [{"type": "diff", "path": file, "old_text": BEFORE, "new_text": AFTER}]
    assert printed["kind"] == "execute" and "return x" in printed["content"][0]["content"]["text"]
    assert printed["raw_input"] == {"command": "pr -t double.py"} and numbered["title"] == "`pr -n double.py`"
    [(asked, options)] = client.questions
    assert asked.tool_call_id == printed["tool_call_id"], "the second command is covered by the answer to the first"
    assert "no rule matches; commands are asked about by default" in asked.content[0].content.text
    assert [(option.kind, option.name) for option in options] == [
        ("allow_once", "Allow once"),
        ("allow_always", "Allow run(pr *) in this session"),
        ("allow_always", "Always allow run(pr *) in this project"),
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
        Reply("Now this.", [run("echo begun >> ledger; echo begun; sleep 60; echo ended >> ledger")]),
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


@pytest.mark.parametrize("how", one_of_each(2, ["the editor leaves", "SIGTERM"]))
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


def test_settings_limits_and_errors(root: Path) -> None:
    """One process: what a client sends wrongly is answered, and what it chooses holds."""
    from mcp_script import serving

    write = ("write_file", {"path": "new.txt", "content": "new\n"})
    add = ("mcp__my-sums__add", {"a": 20, "b": 22})
    script = [
        Reply("", [write]),
        Reply("Refused."),
        Reply("", [write, run("tee made < new.txt"), add]),
        Reply("", [("read_file", {"path": "new.txt"})]),
        Reply(status=401, body={"error": {"message": "no such key"}}),
        Reply("Not known."),
    ]

    async def play(server: ScriptedServer, mcp: str) -> None:
        servers = [
            HttpMcpServer(type="http", name="my sums", url=mcp, headers=[]),
            McpServerStdio(name="gone", command="etude-no-such-command", args=[], env=[]),
        ]
        async with editor(root, *model(server), "--set", "max_turns=2") as (client, agent, process):
            await refused(agent.new_session(cwd="project"), -32602, "not an absolute path")
            await refused(agent.new_session(cwd=str(root / "none")), -32602, "is not a directory")
            await refused(agent.load_session(cwd=str(root), session_id="20200101-000000-abcdef"), -32002, "is not in")
            await refused(agent.prompt(session_id="s", prompt=text("Hi.")), -32002, "session/load opens it")
            await wire_errors(client, process)
            opened = await agent.new_session(cwd=str(root / "project"), mcp_servers=servers)
            id = opened.session_id
            assert [each.current_value for each in opened.config_options] == ["scripted", "ask"]
            await refused(agent.set_session_mode(session_id=id, mode_id="wild"), -32602, "there are ask, read, auto")
            await refused(agent.set_config_option("model", id, "gpt"), -32602, "it has scripted")
            await refused(agent.prompt(session_id=id, prompt=[acp.image_block("aGk=", "image/png")]), -32602, "image")

            await agent.set_session_mode(session_id=id, mode_id="read")
            assert (await agent.prompt(session_id=id, prompt=text("Write."))).stop_reason == "end_turn"
            assert "etude-no-such-command" in client.text(), "the editor's user sees no log"
            assert not (root / "project" / "new.txt").exists() and client.calls()[-1]["status"] == "failed"
            chosen = await agent.set_config_option("mode", id, "auto")
            assert [each.current_value for each in chosen.config_options] == ["scripted", "auto"]
            stopped = await agent.prompt(session_id=id, prompt=text("Write."))
            assert stopped.stop_reason == "max_turn_requests" and "max_turns" in client.text() and not client.questions
            assert [each.current_mode_id for each in client.of("current_mode_update")] == ["read", "auto"]
            assert (root / "project" / "made").read_text() == "new\n" and "42" in str(client.calls()[-2]["content"])
            await refused(agent.prompt(session_id=id, prompt=text("Again.")), -32603, "refuses the key")

            client.updates.clear()
            assert (await agent.prompt(session_id=id, prompt=text("/undo"))).stop_reason == "end_turn"
            await agent.prompt(session_id=id, prompt=text("/undo 3x"))
            assert "the conversation" in client.text() and "takes a number of turns" in client.text()
            assert (await agent.prompt(session_id=id, prompt=text("/undo"))).stop_reason == "end_turn"
            assert not (root / "project" / "made").exists() and "made is gone" in client.text()
            await agent.prompt(session_id=id, prompt=text("/etc/hosts is a file, is it?"))
            assert client.text().endswith("Not known.")
            await agent.close_session(session_id=id)
            await refused(agent.prompt(session_id=id, prompt=text("Hi.")), -32002, "is not open")

    with ScriptedServer(script) as server, serving() as mcp:
        asyncio.run(play(server, mcp))
    assert server.bodies[-1]["messages"][-1]["content"].endswith("/etc/hosts is a file, is it?")


async def refused(answer: Any, code: int, why: str) -> None:
    with pytest.raises(acp.RequestError, match=why) as error:
        await answer
    assert error.value.code == code


async def wire_errors(client: Editor, process: asyncio.subprocess.Process) -> None:
    """Lines that are no message: each is answered, and none ends the process."""
    known = len(client.wire)
    lines = [b"{", b"[]", b'{"id": {}, "method": "initialize"}', b'{"jsonrpc": "2.0", "id": "x", "method": "nothing"}']
    process.stdin.write(b"\n".join([*lines, b'{"method": "$/progress", "params": {}}', b"", b""]))
    async with asyncio.timeout(WAIT_S):
        while len(client.wire) < known + 4:
            await asyncio.sleep(0.01)
    assert [message["error"]["code"] for message in client.wire[known:]] == [-32700, -32600, -32600, -32601]


def test_a_trainer_learns_how_requests_follow_from_each_other(root: Path) -> None:
    """Summarised by command; the ids are those of the requests' own headers."""
    read = ("read_file", {"path": "double.py"})
    script = [Reply("", [read]), Reply("One."), Reply("I have read it."), Reply("Two.")]

    async def play(server: ScriptedServer) -> list[tuple[str, str, str]]:
        async with editor(root, *model(server)) as (client, agent, _):
            id = (await agent.new_session(cwd=str(root / "project"))).session_id
            for words in ("Go.", "/compact", "On."):
                assert (await agent.prompt(session_id=id, prompt=text(words))).stop_reason == "end_turn"
            assert client.text("agent_thought_chunk") == "I have read it." and "was summarised" in client.text()
            closed = await agent.close_session(session_id=id)
            edges = closed.field_meta["ai.prime.acp/semantic-edges-v1"]["edges"]
            return [(each["source_request_id"], each["target_request_id"], each["type"]) for each in edges]

    with ScriptedServer(script) as server:
        edges = asyncio.run(play(server))
    ids = [request.headers["x-acp-model-request-id"] for request in server.requests]
    kinds = ["continuation", "compaction_attempt", "compaction"]
    assert edges == list(zip(ids, ids[1:], kinds, strict=False))


def test_what_the_guard_refuses_is_no_question(root: Path) -> None:
    script = [Reply("", [("write_file", {"path": ".envrc", "content": "x"}), run("tee .envrc < a")]), Reply("Well.")]

    async def play(server: ScriptedServer) -> Editor:
        async with editor(root, *model(server)) as (client, agent, _):
            session = await agent.new_session(cwd=str(root / "project"))
            await agent.prompt(session_id=session.session_id, prompt=text("Set it up."))
        return client

    with ScriptedServer(script) as server:
        client = asyncio.run(play(server))
    assert client.questions == []
    for call in client.calls():
        assert call["status"] == "failed"
        assert 'unguarded = [".envrc"]' in call["content"][0]["content"]["text"]


def test_a_question_that_is_cancelled(root: Path) -> None:
    """The editor withdraws the prompt while its user is asked: nothing of the turn happens, and the session goes on."""
    script = [Reply("", [run("tee made < double.py")]), Reply("Well then.")]

    async def play(server: ScriptedServer) -> None:
        async with editor(root, *model(server), answer=lambda call, options: None) as (client, agent, _):
            id = (await agent.new_session(cwd=str(root / "project"))).session_id
            prompt = asyncio.create_task(agent.prompt(session_id=id, prompt=text("Go.")))
            await client.until(lambda: client.questions)
            await refused(agent.prompt(session_id=id, prompt=text("Meanwhile.")), -32600, "is at work")
            await agent.cancel(session_id=id)
            assert (await prompt).stop_reason == "cancelled"
            assert (await agent.prompt(session_id=id, prompt=text("And now?"))).stop_reason == "end_turn"
            client.dismissed = True
            await agent.cancel(session_id=id)

    with ScriptedServer(script) as server:
        asyncio.run(play(server))
    assert not (root / "project" / "made").exists()
    assert "not run" in server.bodies[-1]["messages"][-2]["content"]


def test_who_is_no_editor_is_told_so_in_one_line() -> None:
    for nobody in (os.devnull, __file__):
        with open(nobody, "rb") as stdin:
            argv = [sys.executable, "-m", "etude.cli.main", "acp"]
            done = subprocess.run(argv, stdin=stdin, capture_output=True, text=True, timeout=60)
        assert done.returncode == 42
        assert len(done.stderr.splitlines()) == 1 and "an editor is at their other end" in done.stderr, done.stderr
