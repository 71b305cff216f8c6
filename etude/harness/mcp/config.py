"""Which MCP servers there are.

Owns `McpConfig`, and the reading of `{"mcpServers": {NAME: …}}`, the file that the protocol's clients share. Values may
name variables of the environment as `${NAME}` or `${NAME:-otherwise}`, so that no key has to stand in a file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from etude.config import Config, parse
from etude.errors import ConfigError

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class ServerConfig(Config):
    """One server: a command that speaks the protocol on stdin and stdout, or an address that speaks it over HTTP."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Beside the few variables that every server gets: PATH, HOME and their like, and no key of the user's."""
    cwd: Path | None = None
    """Where it starts. None: the home directory, and not the workspace: it runs outside the sandbox, and `npx`, `uvx`
    and `python -m` run what they find where they start. `${WORKSPACE}` in `args` and `env` is the workspace's path."""
    url: str = ""
    headers: dict[str, str] = {}
    type: str = ""
    """What other clients' files say of the transport; it follows from `command` or `url`."""
    tools: tuple[str, ...] | None = None
    """Only these of its tools; None is all."""
    enabled: bool = True
    connect_s: float = Field(30.0, gt=0)
    call_s: float = Field(120.0, gt=0)
    """Longest that one call is waited for."""

    @model_validator(mode="after")
    def _one_transport(self) -> ServerConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError("give it a command or a url, one of the two")
        if self.type not in ("", "stdio" if self.command else "http", "" if self.command else "streamable-http"):
            raise ValueError(f"the transport {self.type!r} is not spoken; a command speaks stdio, a url http")
        return self

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://", "${")):
            raise ValueError(f"must begin with http:// or https://, not {url[:40]!r}")
        return url


class McpConfig(Config):
    """The servers of a session, by name."""

    servers: dict[str, ServerConfig] = {}
    """A table for each server: `[mcp.servers.NAME]` (docs/endpoints.md)."""
    max_tools: int = Field(128, ge=1)
    """Most tools of all servers together: each of them stands in every prompt."""
    max_description: int = Field(1000, ge=0)
    """Most characters of a tool's description that a model is told."""

    @field_validator("servers")
    @classmethod
    def _named(cls, servers: dict[str, ServerConfig]) -> dict[str, ServerConfig]:
        for name in servers:
            if not _NAME.fullmatch(name) or "__" in name:
                raise ValueError(f"a server's name has 1 to 32 letters, digits, - or single _; got {name[:40]!r}")
        return servers


def load_servers(path: Path) -> dict[str, ServerConfig]:
    """The servers of a file; none where there is no such file. Raises ConfigError for one that is wrong."""
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from None
    servers = raw.get("mcpServers") if isinstance(raw, dict) else None
    if not isinstance(servers, dict):
        raise ConfigError(f'{path}: has no servers; it is of the form {{"mcpServers": {{"NAME": {{"command": …}}}}}}')
    return parse({"servers": servers}, McpConfig, origin=str(path)).servers


def filled_in(values: Mapping[str, str] | str, where: str, more: Mapping[str, str] | None = None) -> Any:
    """Values with the environment's variables in them, and `more`. Raises ConfigError for one that is not set."""
    known = {**os.environ, **(more or {})}

    def value(found: re.Match[str]) -> str:
        given = known.get(found[1], found[2])
        if given is None:
            raise ConfigError(f"{where}: ${found[1]} is not set; export it, or write ${{{found[1]}:-otherwise}}")
        return given

    if isinstance(values, str):
        return _VARIABLE.sub(value, values)
    return {key: _VARIABLE.sub(value, text) for key, text in values.items()}
