"""What a client asks for, in our own terms: prompts as text, commands, MCP servers, modes.

Owns these translations. A prompt's files are named as the tools name them, and what the editor put beside its words
stands after them, marked as what it is. Pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from acp import RequestError
from acp.schema import (
    AvailableCommand,
    AvailableCommandInput,
    EmbeddedResourceContentBlock,
    HttpMcpServer,
    McpServerStdio,
    ResourceContentBlock,
    SessionMode,
    TextContentBlock,
    TextResourceContents,
    UnstructuredCommandInput,
)

from etude.config import parse
from etude.harness.mcp.config import McpConfig
from etude.product.own_commands import own_commands

if TYPE_CHECKING:
    from acp.schema import AcpMcpServer, AudioContentBlock, ImageContentBlock, SseMcpServer

    Block = (
        TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceContentBlock | EmbeddedResourceContentBlock
    )
    McpServer = HttpMcpServer | SseMcpServer | AcpMcpServer | McpServerStdio

COMMANDS = (
    AvailableCommand(name="compact", description="Have the model summarise the context now"),
    AvailableCommand(
        name="undo",
        description="Take back the last prompt, files and conversation, or so many turns",
        input=AvailableCommandInput(root=UnstructuredCommandInput(hint="how many turns")),
    ),
    AvailableCommand(name="redo", description="Take the last undo back"),
    AvailableCommand(name="continue", description="Go on where the last prompt was cut short"),
    AvailableCommand(name="diff", description="Show what has changed since the session began"),
)


def commands() -> list[AvailableCommand]:
    """These, and the user's own, which are prompts."""
    taken = {command.name for command in COMMANDS}
    hint = AvailableCommandInput(root=UnstructuredCommandInput(hint="what $ARGUMENTS stands for"))
    own = own_commands().items()
    return [
        *COMMANDS,
        *(AvailableCommand(name=name, description=does, input=hint) for name, does in own if name not in taken),
    ]


_COMMAND = re.compile(r"/(\w+)(?:\s+(.*))?\s*", re.DOTALL)


def command_in(text: str) -> tuple[str, str] | None:
    """The command that a prompt is, and what is given with it; None for words."""
    found = _COMMAND.fullmatch(text.strip())
    if found is None or found[1] not in {command.name for command in COMMANDS}:
        return None
    return found[1], (found[2] or "").strip()


def text_of(blocks: Iterable[Block], directory: Path) -> str:
    """A prompt as the model reads it. RequestError for what this agent cannot be shown."""
    said: list[str] = []
    beside: list[str] = []
    for block in blocks:
        match block:
            case TextContentBlock():
                said.append(block.text)
            case ResourceContentBlock():
                said.append(_named(block.uri, directory))
            case EmbeddedResourceContentBlock(resource=TextResourceContents() as resource):
                name = _named(resource.uri, directory)
                said.append(name)
                beside.append(f"[{name}, as the user sees it:]\n{resource.text}")
            case _:
                raise RequestError(-32602, f"this agent reads text and files; it cannot be shown {block.type}")
    return "\n\n".join(["".join(said).strip(), *beside]).strip()


def _named(uri: str, directory: Path) -> str:
    """A file as the tools name it, with the lines that the editor points at."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return uri
    path = Path(unquote(parts.path))
    if not path.is_relative_to(directory):  # an editor may know the directory by a link
        path = Path(os.path.realpath(path))
    name = str(path.relative_to(directory)) if path.is_relative_to(directory) else str(path)
    return f"{name}#{parts.fragment}" if parts.fragment else name


def servers_of(servers: Sequence[McpServer], own: McpConfig) -> McpConfig:
    """The client's MCP servers beside the user's own; of two with one name the client's. Raises ConfigError."""
    tables = {name: server.model_dump() for name, server in own.servers.items()}
    for server in servers:
        name = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]", "-", server.name))[:32] or "server"
        if isinstance(server, McpServerStdio):
            env = {each.name: each.value for each in server.env}
            tables[name] = {"command": server.command, "args": server.args, "env": env}
        elif isinstance(server, HttpMcpServer):
            headers = {each.name: each.value for each in server.headers}
            tables[name] = {"url": server.url, "headers": headers}
        else:
            raise RequestError(-32602, f"MCP server {server.name}: only stdio and HTTP are spoken, not {server.type}")
    return parse({**own.model_dump(), "servers": tables}, McpConfig, "mcpServers")


MODES = (
    SessionMode(id="ask", name="Ask", description="Rules decide, and you are asked for what none of them allows"),
    SessionMode(id="read", name="Read only", description="Nothing is changed and no command is run"),
    SessionMode(id="auto", name="Auto", description="What no rule denies is done without asking; the sandbox holds"),
)
