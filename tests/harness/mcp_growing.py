"""An MCP server whose tools change while it runs: `grow` adds one, changes another and takes a third away, and says so.

`python mcp_growing.py` is a server of the official package, which tells of changes whom it is asked to;
`python mcp_growing.py --plain` speaks an earlier revision of the protocol by hand, as older servers do, and tells
everyone.
"""

import json
import sys
from typing import Any

TEXT = {"type": "string"}


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def package() -> None:
    from mcp.server.mcpserver import Context, MCPServer

    server = MCPServer("growing")

    @server.tool()
    def shout(word: str) -> str:
        """Say a word."""
        return word.upper()

    @server.tool()
    def turn(word: str) -> str:
        """Say a word backwards."""
        return word[::-1]

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Change the tools."""

        def extra(word: str) -> str:
            """Say a word twice."""
            return word * 2

        def turned(word: str, times: int) -> str:
            """Say a word backwards, and often."""
            return word[::-1] * times

        server.add_tool(extra)
        server.remove_tool("shout")
        server.remove_tool("turn")
        server.add_tool(turned, name="turn")
        await ctx.notify_tools_changed()
        return "grown"

    server.run()


def plain() -> None:
    tools = {
        "shout": ("Say a word.", schema(word=TEXT)),
        "turn": ("Say a word backwards.", schema(word=TEXT)),
        "grow": ("Change the tools.", schema()),
    }
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        answer: dict[str, Any] | None = None
        if method == "initialize":
            about = {"name": "growing", "version": "1"}
            answer = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}}}
            answer["serverInfo"] = about
        elif method == "tools/list":
            listed = [{"name": name, "description": said, "inputSchema": form} for name, (said, form) in tools.items()]
            answer = {"tools": listed}
        elif method == "tools/call":
            name, given = params["name"], params.get("arguments") or {}
            if name == "grow":
                del tools["shout"]
                tools["turn"] = ("Say a word backwards, and often.", schema(word=TEXT, times={"type": "integer"}))
                tools["extra"] = ("Say a word twice.", schema(word=TEXT))
                say({"method": "notifications/tools/list_changed"})
            said = {"grow": "grown", "extra": given.get("word", "") * 2}.get(name, given.get("word", ""))
            answer = {"content": [{"type": "text", "text": said}]}
        if "id" in message:
            unknown = {"error": {"code": -32601, "message": f"no method {method}"}}
            say({"id": message["id"], **(unknown if answer is None else {"result": answer})})


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if __name__ == "__main__":
    plain() if "--plain" in sys.argv else package()
