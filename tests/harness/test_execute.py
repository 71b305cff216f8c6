"""The calls of a turn: at once where nobody could tell, in order where they touch the same things."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from etude.environments.base import Sandbox
from etude.errors import SandboxError
from etude.harness.schema import MalformedCall, Parameter, ToolCall
from etude.harness.tools import AGENT_TOOLS, Tool, ToolConfig, ToolResult, run_calls

BY_NAME = {tool.name: tool for tool in AGENT_TOOLS}
Run = Callable[..., Any]


class Stage:
    """Tools that tell when they begin and end, and wait for a cue in between."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.cues: dict[str, asyncio.Event] = {}

    def tool(self, name: str, reads_only: bool, file: str | None = None) -> Tool:
        async def run(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
            key = arguments["path"]
            self.told.append(f"{key} begins")
            await self.cues.setdefault(key, asyncio.Event()).wait()
            self.told.append(f"{key} ends")
            return key

        return Tool(name, "", (Parameter("path", ""),), reads_only=reads_only, run=run, file=file)

    async def until_quiet(self) -> list[str]:
        """What has been told when nothing moves any more."""
        for _ in range(20):
            await asyncio.sleep(0)
        return list(self.told)


def one(name: str, path: str) -> ToolCall:
    return ToolCall(name, {"path": path}, "")


def play(stage: Stage, calls: list[ToolCall], cues: list[tuple[str, list[str]]], in_sandbox: Run) -> None:
    """Give cue after cue; after each, just these calls must have begun."""
    tools = {
        "read": stage.tool("read", True, "path"),
        "write": stage.tool("write", False, "path"),
        "search": stage.tool("search", True),
        "command": stage.tool("command", False),
    }

    async def scenario(sandbox: Sandbox) -> None:
        running = asyncio.ensure_future(run_calls(calls, tools, sandbox, ToolConfig(), lambda index, result: None))
        async with asyncio.timeout(120):
            while not stage.told:
                await asyncio.sleep(0.01)  # names are being resolved
        for cue, begun in cues:
            if cue:
                stage.cues[cue].set()
            told = await stage.until_quiet()
            assert sorted(line.split()[0] for line in told if line.endswith("begins")) == sorted(begun)
        for cue in stage.cues.values():
            cue.set()
        assert [result.text for result in await running] == [str(call.arguments["path"]) for call in calls]

    in_sandbox(scenario)


def test_writes_of_different_files_run_together_and_of_one_in_order(in_sandbox: Run) -> None:
    calls = [one("write", "a"), one("write", "b"), one("write", "./a"), one("read", "b"), one("read", "c")]
    play(Stage(), calls, [("", ["a", "b", "c"]), ("a", ["a", "b", "c", "./a"])], in_sandbox)


def test_a_command_waits_for_writes_and_holds_back_what_follows(in_sandbox: Run) -> None:
    calls = [one("write", "a"), one("read", "b"), one("command", "make"), one("search", "x"), one("read", "c")]
    cues = [("", ["a", "b"]), ("a", ["a", "b"]), ("b", ["a", "b", "make"]), ("make", ["a", "b", "make", "x", "c"])]
    play(Stage(), calls, cues, in_sandbox)


def test_a_search_waits_for_a_write_and_beside_reads_it_does_not(in_sandbox: Run) -> None:
    calls = [one("search", "x"), one("read", "a"), one("write", "b"), one("search", "y")]
    play(Stage(), calls, [("", ["x", "a"]), ("x", ["x", "a", "b"]), ("b", ["x", "a", "b", "y"])], in_sandbox)


def test_two_names_of_one_file_are_one_file(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        await sandbox.exec("mkdir pkg; ln -s ../a.py pkg/link.py; ln -s pkg dir")
        edits = [
            ToolCall("edit_file", {"path": path, "old": old, "new": old.upper()}, "")
            for path, old in [("a.py", "one"), ("dir/link.py", "two"), ("pkg/../a.py", "three"), ("new dir/x", "?")]
        ]
        results = await run_calls(edits, BY_NAME, sandbox, ToolConfig(), lambda index, result: None)
        assert [result.text for result in results] == [
            "ok, line 1", "ok, line 2", "ok, line 3", "error: no file new dir/x",
        ]  # fmt: skip
        assert await sandbox.read_file("/workspace/a.py") == b"ONE\nTWO\nTHREE\n"

    in_sandbox(scenario, {"a.py": b"one\ntwo\nthree\n"})


def test_a_malformed_call_is_answered_and_a_start_is_waited_for(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        told: list[str] = []

        async def on_start(index: int) -> None:
            await asyncio.sleep(0)
            told.append(f"start {index}")

        def on_result(index: int, result: ToolResult) -> None:
            told.append(f"result {index}")

        calls = [MalformedCall("no tool x", ""), ToolCall("run_terminal_cmd", {"command": "echo hi"}, "")]
        results = await run_calls(calls, BY_NAME, sandbox, ToolConfig(), on_result, on_start)
        assert [result.text for result in results] == ["error: no tool x", "hi"]
        assert told == ["start 0", "result 0", "start 1", "result 1"]

    in_sandbox(scenario)


def test_what_commands_print_is_told_while_they_run(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        heard: dict[int, bytes] = {}
        first = asyncio.Event()

        def on_output(index: int, piece: bytes) -> None:
            heard[index] = heard.get(index, b"") + piece
            if index == 0 and not first.is_set():
                first.set()

        calls = [
            ToolCall(
                "run_terminal_cmd", {"command": "echo begun; until [ -e go ]; do sleep 0.05; done; echo done"}, ""
            ),
            ToolCall("run_terminal_cmd", {"command": "echo second"}, ""),
        ]
        running = asyncio.ensure_future(
            run_calls(calls, BY_NAME, sandbox, ToolConfig(), lambda index, result: None, on_output=on_output)
        )
        await first.wait()  # it has not ended: nobody has let it go yet
        assert heard == {0: b"begun\n"} and not running.done()
        await sandbox.write_file("/workspace/go", b"")
        assert [result.text for result in await running] == ["begun\ndone", "second"]
        assert heard == {0: b"begun\ndone\n", 1: b"second\n"}

    in_sandbox(scenario)


def test_a_failed_sandbox_stops_the_whole_turn(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        stage = Stage()
        tools = {**BY_NAME, "read": stage.tool("read", True)}
        stage.cues["never"] = asyncio.Event()
        waiting = ToolCall("read", {"path": "never"}, "")
        running = asyncio.ensure_future(
            run_calls(
                [waiting, ToolCall("list_dir", {}, "")],
                tools,
                Broken(sandbox),
                ToolConfig(),
                lambda index, result: None,
            )
        )
        with pytest.raises(SandboxError, match="gone"):
            await running
        assert stage.told == ["never begins"]

    in_sandbox(scenario)


class Broken:
    """A real sandbox whose directories have failed."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.exec, self.read_file = sandbox.exec, sandbox.read_file

    async def list_dir(self, path: str) -> Any:
        raise SandboxError("gone")
