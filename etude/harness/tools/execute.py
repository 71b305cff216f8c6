"""Runs the calls of one turn: in parallel where the order cannot matter.

Owns `run_calls`. Two calls conflict where one of them changes what the other touches: then they run in the order they
were written. What a tool touches it declares: one file, or anything; what a command touches cannot be known, so it is
anything, and changed. An edit followed by the test that should now pass means what it says, and eight edits of eight
files are made at once. Two names may lead to one file: they are resolved first. Faults of the model become results; a
failed sandbox raises. `on_start` may wait, for the log that must know of a command before it runs.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from etude.environments.base import Sandbox
from etude.harness.schema import MalformedCall, ToolCall
from etude.harness.tools.base import (
    ON_OUTPUT,
    OVERDUE,
    Tool,
    ToolConfig,
    ToolError,
    ToolResult,
    absolute,
    cut_middle,
    overdue,
)

Call = ToolCall | MalformedCall
_RESOLVE_TIMEOUT_S = 30.0


async def run_calls(
    calls: Sequence[Call],
    tools: Mapping[str, Tool],
    sandbox: Sandbox,
    config: ToolConfig,
    on_result: Callable[[int, ToolResult], None],
    on_start: Callable[[int], Awaitable[None]] | None = None,
    on_output: Callable[[int, bytes], None] | None = None,
) -> list[ToolResult]:
    """One result a call, in call order.

    `on_start(index)` is awaited before each, `on_output(index, piece)` is told what a command prints meanwhile, and
    `on_result(index, result)` of each as it ends. When one raises, those still running are cancelled first.
    """
    touched = await _file_access(calls, tools, sandbox)
    ended = [asyncio.Event() for _ in calls]

    async def run(index: int) -> ToolResult:
        for before in range(index):
            if touched[index].conflicts(touched[before]):
                await ended[before].wait()
        if on_start is not None:
            await on_start(index)
        if on_output is not None:
            ON_OUTPUT.set(partial(on_output, index))  # this task's own
        result = await _run_call(calls[index], tools, sandbox, config)
        on_result(index, result)
        ended[index].set()
        return result

    tasks = [asyncio.ensure_future(run(index)) for index in range(len(calls))]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def only_reads(call: Call, tools: Mapping[str, Tool]) -> bool:
    """Whether running it twice cannot be told from running it once."""
    return isinstance(call, MalformedCall) or tools[call.name].reads_only


@dataclass(frozen=True)
class _FileAccess:
    file: str | None
    """None: anything."""
    writes: bool

    def conflicts(self, other: _FileAccess) -> bool:
        together = self.file is None or other.file is None or self.file == other.file
        return together and (self.writes or other.writes)


async def _file_access(calls: Sequence[Call], tools: Mapping[str, Tool], sandbox: Sandbox) -> list[_FileAccess]:
    files = [_file(call, tools) for call in calls]
    touched = [_FileAccess(file, not only_reads(call, tools)) for call, file in zip(calls, files, strict=True)]
    named = list(dict.fromkeys(file for file in files if file is not None))
    if len(named) > 1 and any(each.file is not None and each.writes for each in touched):
        real = await _resolved(named, sandbox)
        touched = [_FileAccess(real.get(each.file) if each.file else None, each.writes) for each in touched]
    return touched


def _file(call: Call, tools: Mapping[str, Tool]) -> str | None:
    if isinstance(call, MalformedCall) or (parameter := tools[call.name].file) is None:
        return None
    return absolute(str(call.arguments[parameter]))


async def _resolved(files: Sequence[str], sandbox: Sandbox) -> dict[str, str | None]:
    """Where each name really leads; None, which is anything, for all of them where that cannot be told."""
    names = " ".join(shlex.quote(file) for file in files if "\0" not in file)
    command = f'for name in {names}; do readlink -f -- "$name" || printf "%s\\n" "$name"; done'
    done = await sandbox.exec(command, timeout_s=_RESOLVE_TIMEOUT_S, max_output_bytes=1_000_000)
    real = done.output.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
    if done.exit_code or len(real) != len(files):
        return dict.fromkeys(files)
    return dict(zip(files, real, strict=True))


async def _run_call(call: Call, tools: Mapping[str, Tool], sandbox: Sandbox, config: ToolConfig) -> ToolResult:
    if isinstance(call, MalformedCall):
        return _failed(call.reason, config)
    marks: list[None] = []
    OVERDUE.set(marks)
    result = await _answer(call, tools[call.name], sandbox, config)
    return replace(result, overdue=True) if marks else result


async def _answer(call: ToolCall, tool: Tool, sandbox: Sandbox, config: ToolConfig) -> ToolResult:
    deadline = asyncio.timeout(config.call_timeout_s)
    try:
        async with deadline:
            text = await tool.run(sandbox, config, call.arguments)
    except ToolError as error:
        return _failed(str(error), config)
    except OSError as error:  # a path that cannot be read or written so; the sandbox's own failures are SandboxError
        if deadline.expired():
            overdue()
            seconds = f"{config.call_timeout_s:g} s"
            return _failed(f"stopped after {seconds}; it may have done all, some or nothing of its work", config)
        return _failed(
            f"{call.arguments.get('path', call.name) or '.'}: {(error.strerror or str(error)).lower()}", config
        )
    except UnicodeEncodeError:
        return _failed("the text cannot be encoded as UTF-8", config)
    return ToolResult(cut_middle(text, config.max_observation_bytes))


def _failed(reason: str, config: ToolConfig) -> ToolResult:
    return ToolResult(cut_middle(f"error: {reason}", config.max_observation_bytes), error=True)
