"""The agent's run_terminal_cmd: commands, and those that take long.

Owns how a command is waited for: two minutes, and then it goes on in the background under a number by which it can be
looked at and stopped. Input is closed, its session is its own, and nothing may wait for a person, page, colour or
prompt. Long output is cut in its middle, with the whole of it in a file. All state is the sandbox's, so a command is
found again by whoever goes on with the session. A command that fails is not an error of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from etude.environments.base import ExecResult, Process, Sandbox
from etude.errors import DeadlineExceeded
from etude.harness.schema import Parameter
from etude.harness.tools.base import ON_OUTPUT, Tool, ToolConfig, ToolError, cut_middle, overdue
from etude.harness.tools.terminal import QUIET_ENV

_ROOM_FOR_ENDING = 200
_MAX_STREAMED_BYTES = 1_000_000
_GLANCE_S = 0.5
"""How long the output of a command that goes on is collected for a first look."""
_QUIET_S = 0.1
_KILL_WAIT_S = 30.0
_KILLED = 137


async def _run_terminal_cmd(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
    number, command = arguments.get("id"), (arguments.get("command") or "").strip()
    if (number is None) == (not command):
        raise ToolError("give a command, or the id of one that runs in the background")
    if number is not None:
        return await _background(sandbox, config, number, arguments)
    process = await sandbox.start(command, env=QUIET_ENV, max_output_bytes=_MAX_STREAMED_BYTES)
    if arguments.get("background"):
        return await _look(sandbox, config, process, _GLANCE_S)
    watching = asyncio.ensure_future(_pass_on(process))
    try:
        text = await _wait(sandbox, config, process, config.command_timeout_s)
        await asyncio.wait({watching}, timeout=_QUIET_S)  # who watches hears the last of it
        return text
    except asyncio.CancelledError:  # the session is over, or the user has stopped it: nothing goes on behind
        await asyncio.shield(process.kill())
        raise
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _background(sandbox: Sandbox, config: ToolConfig, number: int, arguments: Mapping[str, Any]) -> str:
    try:
        process = await sandbox.connect(number)
    except ProcessLookupError:
        running = [f"{each.id}: {each.command}" for each in await sandbox.processes() if each.running]
        raise ToolError(f"no background command {number}; running are {'; '.join(running) or 'none'}") from None
    if arguments.get("stop"):
        return await _stop(sandbox, config, process, "[stopped]")
    return await _look(
        sandbox, config, process, min(max(arguments.get("wait", 0), _GLANCE_S), config.command_timeout_s)
    )


async def _wait(sandbox: Sandbox, config: ToolConfig, process: Process, timeout_s: float) -> str:
    try:
        return await _ending(sandbox, config, process, await process.wait(timeout_s))
    except DeadlineExceeded:
        overdue()
        if config.overlong == "background":
            return await _look(sandbox, config, process, _GLANCE_S, f" after {timeout_s:g} s")
    return await _stop(sandbox, config, process, f"[stopped after {timeout_s:g} s]")


async def _stop(sandbox: Sandbox, config: ToolConfig, process: Process, ending: str) -> str:
    await process.kill()
    done = await process.wait(_KILL_WAIT_S)
    if done.exit_code != _KILLED:
        return await _ending(sandbox, config, process, done)  # it ended by itself meanwhile
    return await _rendered(sandbox, config, process, done.output, done.log_path, ending)


async def _ending(sandbox: Sandbox, config: ToolConfig, process: Process, done: ExecResult) -> str:
    ending = f"[exit {done.exit_code}]" if done.exit_code else ""
    return await _rendered(sandbox, config, process, done.output, done.log_path, ending)


async def _look(sandbox: Sandbox, config: ToolConfig, process: Process, wait_s: float, since: str = "") -> str:
    """What a command has printed so far, once it has ended or some time has passed."""
    try:
        return await _ending(sandbox, config, process, await process.wait(wait_s))
    except DeadlineExceeded:
        pass
    ending = f"[still running{since} in the background; id={process.id} looks at it, with stop=true ends it]"
    return await _rendered(sandbox, config, process, await _printed(process), None, ending)


async def _printed(process: Process) -> bytes:
    """The output that is there already."""
    pieces: list[bytes] = []
    output = process.output()
    while True:
        try:
            async with asyncio.timeout(_QUIET_S):
                pieces.append(await anext(output))
        except (TimeoutError, StopAsyncIteration):
            return b"".join(pieces)


async def _pass_on(process: Process) -> None:
    """Tell who watches what is printed, as it comes."""
    watcher = ON_OUTPUT.get()
    if watcher is not None:
        async for piece in process.output():
            watcher(piece)


async def _rendered(
    sandbox: Sandbox, config: ToolConfig, process: Process, output: bytes, log_path: str | None, ending: str
) -> str:
    """The output as the model reads it: what does not fit is cut from the middle, and the whole is in a file."""
    text = output.decode("utf-8", "replace").rstrip("\n")
    room = config.max_observation_bytes - _ROOM_FOR_ENDING
    if len(text.encode("utf-8", "replace")) > room:
        if log_path is None:
            log_path = f"/tmp/command-{process.id}.log"
            await sandbox.write_file(log_path, output)
        text, ending = cut_middle(text, room), f"[whole output in {log_path}]\n{ending}".rstrip("\n")
    return f"{text}\n{ending}" if text and ending else text or ending


RUN_TERMINAL_CMD = Tool(
    "run_terminal_cmd",
    "Run a shell command in /workspace, without input, and wait for its end. One that takes long goes on in the "
    "background, under an id.",
    (
        Parameter("command", "The command, for sh. Each begins in /workspace anew.", required=False),
        Parameter("background", "Do not wait: for a server, say.", "boolean", required=False),
        Parameter("id", "Instead of a command: look at one in the background.", "integer", required=False),
        Parameter("wait", "With id: how many seconds to wait for its end.", "number", required=False),
        Parameter("stop", "With id: end it.", "boolean", required=False),
    ),
    reads_only=False,
    run=_run_terminal_cmd,
)
