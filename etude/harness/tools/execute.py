"""Runs the calls of one turn: in parallel where that cannot be told from one after another.

Owns `run_calls`. Neighbouring calls that only read run at the same time. A call that writes, or runs a command, waits
for those before it and holds back those after it: two names may lead to one file, and what a command touches cannot
be known. So an edit followed by the test that should now pass means what it says. Faults of the model become results;
a failed sandbox raises. `on_start` may wait, for the log that must know of a command before it runs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence

from etude.environments.base import Sandbox
from etude.harness.schema import MalformedCall, ToolCall
from etude.harness.tools.base import Tool, ToolConfig, ToolError, ToolResult, cut_middle

Call = ToolCall | MalformedCall


async def run_calls(
    calls: Sequence[Call],
    tools: Mapping[str, Tool],
    sandbox: Sandbox,
    config: ToolConfig,
    on_result: Callable[[int, ToolResult], None],
    on_start: Callable[[int], Awaitable[None]] | None = None,
) -> list[ToolResult]:
    """One result a call, in call order; `on_start(index)` is awaited before each, `on_result(index, result)` is told
    of it as it ends."""

    async def run(index: int, call: Call) -> ToolResult:
        if on_start is not None:
            await on_start(index)
        result = await _run_call(call, tools, sandbox, config)
        on_result(index, result)
        return result

    results: list[ToolResult] = []
    for together, members in itertools.groupby(enumerate(calls), lambda item: only_reads(item[1], tools)):
        batch = list(members)
        if together and len(batch) > 1:
            results += await asyncio.gather(*(run(index, call) for index, call in batch))
        else:
            results += [await run(index, call) for index, call in batch]
    return results


def only_reads(call: Call, tools: Mapping[str, Tool]) -> bool:
    """Whether running it twice cannot be told from running it once."""
    return isinstance(call, MalformedCall) or tools[call.name].reads_only


async def _run_call(call: Call, tools: Mapping[str, Tool], sandbox: Sandbox, config: ToolConfig) -> ToolResult:
    if isinstance(call, MalformedCall):
        return _failed(call.reason, config)
    try:
        text = await tools[call.name].run(sandbox, config, call.arguments)
    except ToolError as error:
        return _failed(str(error), config)
    except OSError as error:  # a path that cannot be read or written so; the sandbox's own failures are SandboxError
        return _failed(
            f"{call.arguments.get('path', call.name) or '.'}: {(error.strerror or str(error)).lower()}", config
        )
    except UnicodeEncodeError:
        return _failed("the text cannot be encoded as UTF-8", config)
    return ToolResult(cut_middle(text, config.max_observation_bytes))


def _failed(reason: str, config: ToolConfig) -> ToolResult:
    return ToolResult(cut_middle(f"error: {reason}", config.max_observation_bytes), error=True)
