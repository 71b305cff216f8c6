"""What a set of tools answers in a sandbox, and a sandbox that loses what is written."""

from __future__ import annotations

from collections.abc import Iterable

from etude.environments.base import Sandbox
from etude.harness.schema import MalformedCall, ToolCall, check_call
from etude.harness.tools import Tool, ToolConfig, ToolResult, run_calls


class ToolSet:
    """Tools by name, called as a model calls them: with words for values."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.by_name = {tool.name: tool for tool in tools}

    def call(self, name: str, **values: str) -> ToolCall:
        checked = check_call(self.by_name, name, list(values.items()), "")
        assert isinstance(checked, ToolCall), checked
        return checked

    async def answers(
        self, sandbox: Sandbox, *calls: ToolCall | MalformedCall, config: ToolConfig | None = None
    ) -> list[str]:
        """The results' texts. Each was told as it came, and begins with `error: ` if and only if it is one."""
        told: dict[int, ToolResult] = {}
        results = await run_calls(calls, self.by_name, sandbox, config or ToolConfig(), told.__setitem__)
        assert [told[index] for index in range(len(calls))] == results
        assert all(result.error == result.text.startswith("error: ") for result in results)
        return [result.text for result in results]


class Lossy:
    """A real sandbox whose disk drops the last byte of every write."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.read_file, self.list_dir = sandbox, sandbox.read_file, sandbox.list_dir
        self.exec = sandbox.exec

    async def write_file(self, path: str, data: bytes) -> None:
        await self.sandbox.write_file(path, data[:-1])
