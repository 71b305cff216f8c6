"""run_terminal_cmd of the agent, on a real sandbox: what takes long goes on behind, and is looked at and stopped."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from etude.environments.base import Sandbox
from etude.harness.schema import ToolCall, check_call
from etude.harness.tools import AGENT_TOOLS, ToolConfig, run_calls

BY_NAME = {tool.name: tool for tool in AGENT_TOOLS}
Run = Callable[..., Any]


async def answer(sandbox: Sandbox, config: ToolConfig | None = None, **values: str) -> str:
    call = check_call(BY_NAME, "run_terminal_cmd", list(values.items()), "")
    assert isinstance(call, ToolCall), call
    [result] = await run_calls([call], BY_NAME, sandbox, config or ToolConfig(), lambda index, result: None)
    return result.text


def number_of(text: str) -> str:
    found = re.search(r"id=(\d+)", text)
    assert found, text
    return found.group(1)


def test_commands(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        assert await answer(sandbox, command="pwd; cat; echo $CI$PAGER >&2") == "/workspace\n1cat"
        assert await answer(sandbox, command="echo bad; exit 3") == "bad\n[exit 3]"
        assert await answer(sandbox, command="true") == ""
        wrong = "error: give a command, or the id of one that runs in the background"
        assert await answer(sandbox, command=" ") == await answer(sandbox, command="true", id="3") == wrong
        assert await answer(sandbox, id="777") == "error: no background command 777; running are none"

    in_sandbox(scenario)


def test_long_output_is_cut_in_its_middle_and_whole_on_disk(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        text = await answer(sandbox, ToolConfig(max_observation_bytes=500), command="seq 10000; exit 1")
        assert text.startswith("1\n2\n") and text.endswith("[exit 1]") and len(text) <= 500
        path = re.search(r"\[whole output in (\S+)\]", text)
        assert path and (await sandbox.read_file(path.group(1))).decode() == "".join(f"{n}\n" for n in range(1, 10001))
        huge = await answer(sandbox, command="seq 1000000")
        path = re.search(r"\[whole output in (\S+)\]", huge)
        assert path and (await sandbox.exec(f"tail -n 1 {path.group(1)}")).output == b"1000000\n"

    in_sandbox(scenario)


def test_what_takes_long_goes_on_in_the_background(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        config = ToolConfig(command_timeout_s=2.0)
        text = await answer(
            sandbox, config, command="echo begun; until [ -e go ]; do sleep 0.05; done; echo over; exit 4"
        )
        assert text.startswith("begun\n[still running after 2 s in the background; id=")
        number = number_of(text)
        assert (await answer(sandbox, config, id=number)).startswith("begun\n[still running in the background")
        assert number in await answer(sandbox, config, id="777")
        await sandbox.write_file("/workspace/go", b"")
        assert await answer(sandbox, id=number, wait="30") == "begun\nover\n[exit 4]"

    in_sandbox(scenario)


def test_a_server_is_started_and_stopped(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        text = await answer(sandbox, command="echo listening; sleep 1000 & wait", background="true")
        number = number_of(text)
        assert text.startswith("listening\n[still running in the background")
        assert await answer(sandbox, id=number, stop="true") == "listening\n[stopped]"
        assert not [each for each in await sandbox.processes() if each.running]

    in_sandbox(scenario)


def test_training_may_stop_what_takes_long(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        config = ToolConfig(command_timeout_s=2.0, overlong="stop")
        assert await answer(sandbox, config, command="echo begun; sleep 1000") == "begun\n[stopped after 2 s]"
        assert not [each for each in await sandbox.processes() if each.running]

    in_sandbox(scenario)


def test_nothing_goes_on_behind_a_session_that_was_stopped(in_sandbox: Run) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        running = asyncio.ensure_future(answer(sandbox, command="touch begun; sleep 1000"))
        while "begun" not in [entry.name for entry in await sandbox.list_dir("/workspace")]:
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        async with asyncio.timeout(60):
            while [each for each in await sandbox.processes() if each.running]:
                await asyncio.sleep(0.02)

    in_sandbox(scenario)
