"""The tools of MCP servers, as tools of a session.

Owns `McpTools`: names that no two servers share, schemas as the servers declare them, and results as a model reads
them. If a server cannot be reached, the session lacks only its tools. What a server adds or removes later is added and
removed here too. The name of a removed tool stays, so that a call of it gets an answer that says so. The dialogue
decides when the model learns of a change.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.environments.base import Sandbox
from etude.errors import DeadlineExceeded, EtudeError
from etude.harness.mcp.config import McpConfig
from etude.harness.mcp.server import Server, ServerError
from etude.harness.schema import foreign_schema
from etude.harness.tools.base import Tool, ToolConfig, ToolError

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as Listed

MAX_NAME = 64
"""Longest name that every endpoint takes."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


class McpTools:
    """Use as an async context manager, around the sessions that use the tools.

    `tools` are in the order of the servers' names and of their lists, and after them those that are gone; `failed`
    tells, by server, why it has none. `on_change` is told, once all are connected, whenever there are other tools.
    """

    def __init__(
        self, config: McpConfig, directory: Path | None = None, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """`directory` is the workspace: no program of a server is taken from there."""
        self._config, self.on_change = config, on_change
        self._entered = False
        enabled = sorted(name for name, each in config.servers.items() if each.enabled)
        self.servers = [Server(name, config.servers[name], directory, self._listed_again) for name in enabled]
        self.tools: tuple[Tool, ...] = ()
        self.failed: dict[str, str] = {}

    @property
    def by_name(self) -> dict[str, Tool]:
        """For a session, beside its own."""
        return {tool.name: tool for tool in self.tools}

    async def __aenter__(self) -> McpTools:
        try:
            ended = await asyncio.gather(*(server.connect() for server in self.servers), return_exceptions=True)
        except asyncio.CancelledError:
            await self._close()
            raise
        for server, error in zip(self.servers, ended, strict=True):
            if isinstance(error, EtudeError):
                self.failed[server.name] = str(error)
            elif isinstance(error, BaseException):
                await self._close()
                raise error
        self.tools, self._entered = tuple(self._named()), True
        return self

    def _listed_again(self) -> None:
        if not self._entered:
            return
        now = self._named()
        names = {tool.name for tool in now}
        gone = [self._gone(tool) for tool in self.tools if tool.name not in names]
        before = {tool.name: (tool.gone, tool.json_schema()) for tool in self.tools}
        self.tools = (*now, *gone)
        if before != {tool.name: (tool.gone, tool.json_schema()) for tool in self.tools}:
            self.on_change()

    def _gone(self, tool: Tool) -> Tool:
        async def run(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
            left = ", ".join(each.name for each in self.tools if not each.gone) or "none"
            raise ToolError(
                f"{tool.name} is gone: its server has taken it away; tools of servers that are left: {left}"
            )

        return replace(tool, gone=True, run=run)

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        await asyncio.gather(*(server.close() for server in self.servers))

    def _named(self) -> list[Tool]:
        tools: dict[str, Tool] = {}
        for server in self.servers:
            wanted = server.config.tools
            unknown = set(wanted or ()) - {tool.name for tool in server.tools}
            if unknown and server.name not in self.failed:
                self.failed[server.name] = f"the MCP server {server.name} has no tool {', '.join(sorted(unknown))}"
            for listed in server.tools:
                if wanted is not None and listed.name not in wanted:
                    continue
                name = full_name(server.name, listed.name)
                if len(tools) == self._config.max_tools:
                    self.failed[server.name] = (
                        f"more than {self._config.max_tools} tools; name those you want in {server.name}'s tools, or "
                        "raise max_tools"
                    )
                    return list(tools.values())
                tools.setdefault(name, as_tool(server, listed, name, self._config.max_description))
        return list(tools.values())


def full_name(server: str, tool: str) -> str:
    """`mcp__SERVER__TOOL`; a name that is too long, or had to lose characters, ends in a hash of the whole."""
    name = _NO_NAME.sub("_", f"mcp__{server}__{tool}")
    if len(name) <= MAX_NAME and name == f"mcp__{server}__{tool}":
        return name
    return f"{name[: MAX_NAME - 9]}_{hashlib.sha256(tool.encode()).hexdigest()[:8]}"


def as_tool(server: Server, listed: Listed, name: str, max_description: int) -> Tool:
    """A listed tool as one that a session can run."""
    known = foreign_schema(name, _shortened(listed.description or "", max_description), listed.input_schema)

    async def run(sandbox: Sandbox, config: ToolConfig, arguments: Mapping[str, Any]) -> str:
        try:
            result = await server.call(listed.name, arguments)
        except (ServerError, DeadlineExceeded) as error:
            raise ToolError(str(error)) from None
        text = rendered(result)
        if result.is_error:
            raise ToolError(text or "the tool failed, and does not say why")
        return text

    hints = listed.annotations
    return Tool(
        name,
        known.description,
        known.parameters,
        reads_only=bool(hints and hints.read_only_hint),
        run=run,
        declared=known.declared,
    )


def rendered(result: CallToolResult) -> str:
    """A result as a model reads it: the text of it, and a word for what is none."""
    parts = [_block(block) for block in result.content]
    if not any(parts) and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(part for part in parts if part)


def _block(block: Any) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.mime_type}, {len(block.data) * 3 // 4} bytes]"
        case "resource_link":
            return f"[{block.uri}{f': {block.name}' if block.name else ''}]"
        case "resource":
            inner = block.resource
            text = getattr(inner, "text", None)
            return f"[{inner.uri}]\n{text}" if text is not None else f"[{inner.uri}, {inner.mime_type or 'bytes'}]"
        case _:
            return f"[{block.type}]"


def _shortened(text: str, limit: int) -> str:
    text = text.strip()
    return text if len(text) <= limit else f"{text[:limit].rstrip()} …"
