"""Tools of MCP servers, as tools of a session.

`config` says which servers, in the form that every client of the protocol reads; `server` owns one connection, and
`tools` makes of what a server lists tools that a model calls by `mcp__SERVER__TOOL`. The protocol itself is the
official `mcp` package's, which is an extra (`etude[mcp]`) and is imported when a server is first connected to. A server
runs outside the sandbox, with what rights its command has: it is the user who names it.
"""

from __future__ import annotations

from etude.harness.mcp.config import McpConfig, ServerConfig, load_servers
from etude.harness.mcp.tools import McpTools

__all__ = ["McpConfig", "McpTools", "ServerConfig", "load_servers"]
