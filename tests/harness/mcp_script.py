"""An MCP server for tests: tools that answer, wait, fail, say too much, and end the process.

`python mcp_script.py` speaks on stdin and stdout; `serving()` is the same over HTTP.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ImageContent, ToolAnnotations
from pydantic import BaseModel

server = MCPServer("scripted")


class Point(BaseModel):
    x: int
    y: int = 0


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def move(points: list[Point], by: Point | None = None) -> str:
    """Move points."""
    return ";".join(f"{each.x + (by.x if by else 1)},{each.y}" for each in points)


@server.tool()
def wait(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "waited"


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
def shout(count: int) -> str:
    """Say much."""
    return "word " * count


@server.tool(structured_output=False)
def draw() -> Any:
    """Draw."""
    return [ImageContent(data="aGVsbG8=", mime_type="image/png"), "a caption"]


@server.tool()
def environment(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "unset")


@server.tool()
def die() -> str:
    """End the process."""
    os._exit(3)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Over HTTP, by a thread of this process; gives the address."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    app = server.streamable_http_app()
    http = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=http.run, args=([listening],), daemon=True)
    thread.start()
    until = time.monotonic() + 120
    while not http.started:
        assert time.monotonic() < until and thread.is_alive(), "the MCP server does not start"
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    http.should_exit = http.force_exit = True
    thread.join(120)


if __name__ == "__main__":
    print("started, says stderr", file=sys.stderr)
    if "--broken" in sys.argv:
        sys.exit("cannot start: no such database")
    if "--silent" in sys.argv:
        time.sleep(60)
    server.run()
