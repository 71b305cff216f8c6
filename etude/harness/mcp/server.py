"""One MCP server: connected to, asked for its tools, called, and let go.

Owns `Server`. The protocol's client must be entered and left in one task, so each connection has a task of its own that
lives as long as it does. A server that has ended, or lost its connection, is started once more by the next call; one
that says its tools have changed is asked for them anew. What a server says on stderr is kept for the error that may
come of it. Knows nothing of sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import httpx2

from etude.errors import DeadlineExceeded, EtudeError, MissingDependency
from etude.extras import install_command
from etude.harness.mcp.config import ServerConfig, filled_in
from etude.host.programs import find_program

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, Tool

_MAX_PAGES = 50
_CLOSE_S = 15.0
_SAID_BYTES = 600
_RELISTEN_S = 5.0


class ServerError(EtudeError):
    """A server cannot be started, reached or understood; the message says what it said."""


class Server:
    """Use on one event loop. `tools` are those it listed last; `on_tools` is told when it has listed them again."""

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        directory: Path | None = None,
        on_tools: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.config, self._directory, self._on_tools = name, config, directory, on_tools
        self.tools: list[Tool] = []
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._leave = False
        self._news = asyncio.Event()
        """Set to leave, or when the tools have changed."""
        self._connecting = asyncio.Lock()

    async def connect(self) -> None:
        """Raises ServerError, DeadlineExceeded, ConfigError or MissingDependency."""
        async with self._connecting:
            if self._client is not None:
                return
            await self._end()
            _require_mcp()
            self._leave = False
            self._news.clear()
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._live(ready), name=f"MCP server {self.name}")
            try:
                async with asyncio.timeout(self.config.connect_s):
                    await asyncio.shield(ready)
            except TimeoutError:
                await self._end()
                waited_for = f"the MCP server {self.name} ({self._what}) to answer"
                raise DeadlineExceeded(waited_for, self.config.connect_s, "see its connect_s") from None
            except asyncio.CancelledError:
                await self._end()
                raise

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Raises ServerError, or DeadlineExceeded when there is no answer in time."""
        import anyio
        from mcp import MCPError

        await self.connect()
        client = self._client
        if client is None:
            raise ServerError(f"the MCP server {self.name} has ended")
        try:
            async with asyncio.timeout(self.config.call_s):
                return await client.call_tool(tool, dict(arguments))
        except TimeoutError:
            raise DeadlineExceeded(f"the MCP server {self.name} to answer {tool}", self.config.call_s) from None
        except MCPError as error:
            if _is_lost(error):
                self._client = None
            raise ServerError(f"the MCP server {self.name}: {error}") from None
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream):
            self._client = None
            raise ServerError(f"the MCP server {self.name} has ended") from None
        except (
            OSError,
            RuntimeError,
            ValueError,
            httpx2.HTTPError,
        ) as error:  # answers that break the protocol's rules
            raise ServerError(f"the MCP server {self.name}: {type(error).__name__}: {error}") from None

    async def close(self) -> None:
        """Ends it, if it runs here. Safe to call twice."""
        async with self._connecting:
            await self._end()

    # --- the connection's own task ------------------------------------------------------------------------------------

    async def _live(self, ready: asyncio.Future[None]) -> None:
        from mcp import Client

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            try:
                async with contextlib.AsyncExitStack() as held:
                    transport = await self._transport(held, said)
                    client = Client(transport, message_handler=self._hear)
                    self._client = await held.enter_async_context(client)
                    self.tools = await self._listed(client)
                    ready.set_result(None)
                    self._on_tools()
                    await self._follow(client)
            except asyncio.CancelledError:
                raise
            except EtudeError as error:
                self._fail(ready, error)
            except Exception as error:  # whatever the package raises is about this one server
                self._fail(
                    ready, ServerError(f"the MCP server {self.name} ({self._what}): {_cause(error)}{_tail(said)}")
                )
            finally:
                self._client = None
                self._fail(ready, ServerError(f"the MCP server {self.name} ended before it answered{_tail(said)}"))

    async def _hear(self, message: Any) -> None:
        """Must not ask anything of the server: it is called between two of its messages."""
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._news.set()

    async def _follow(self, client: Client) -> None:
        """Keep the list of tools what the server says it is, until it is time to leave."""
        listening = asyncio.create_task(self._listen(client))
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                if self._leave:
                    return
                async with asyncio.timeout(self.config.call_s):
                    self.tools = await self._listed(client)
                self._on_tools()
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self, client: Client) -> None:
        """Servers of the protocol's later revisions tell of changes only whom they are asked to."""
        import anyio
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        ended = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError, httpx2.HTTPError)

        while True:
            with contextlib.suppress(SubscriptionLost, TimeoutError):
                try:
                    async with client.listen(tools_list_changed=True) as events:
                        async for _ in events:
                            self._news.set()
                except (ListenNotSupportedError, MCPError, *ended):
                    return  # it tells without being asked, or not at all
            await asyncio.sleep(_RELISTEN_S)
            self._news.set()  # nothing is told twice, so what was missed is asked for

    async def _transport(self, held: contextlib.AsyncExitStack, said: TextIO) -> Any:
        from mcp.client.stdio import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        config, where = self.config, f"mcpServers.{self.name}"
        if config.url:
            http = httpx2.AsyncClient(
                headers=filled_in(config.headers, f"{where}.headers"),
                timeout=httpx2.Timeout(config.call_s, connect=config.connect_s),
            )
            await held.enter_async_context(http)
            return streamable_http_client(filled_in(config.url, f"{where}.url"), http_client=http)
        workspace = self._directory
        command, path = find_program(config.command, [] if workspace is None else [workspace])
        if command is None:
            raise MissingDependency(
                f"{where}: {config.command} is not installed, or in the workspace alone; give its path"
            )
        here = {} if workspace is None else {"WORKSPACE": str(workspace)}
        parameters = StdioServerParameters(
            command=command,
            args=[filled_in(each, f"{where}.args", here) for each in config.args],
            env={"PATH": path, **filled_in(config.env, f"{where}.env", here)},
            cwd=config.cwd or Path.home(),  # where `npx` and `python -m` find nothing that an agent has written
        )
        return stdio_client(parameters, errlog=said)

    async def _listed(self, client: Client) -> list[Tool]:
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools
        raise ServerError(f"the MCP server {self.name} lists tools without end")

    def _fail(self, ready: asyncio.Future[None], error: EtudeError) -> None:
        if not ready.done():
            ready.set_exception(error)
            ready.exception()  # who waited may have left

    async def _end(self) -> None:
        """Let the task leave what it entered, and cut it off if it does not."""
        task, self._task = self._task, None
        if task is None:
            return
        self._leave = True
        self._news.set()
        if self._client is None:
            task.cancel()
        _, late = await asyncio.wait([task], timeout=_CLOSE_S)
        if late:
            task.cancel()
            await asyncio.wait([task], timeout=_CLOSE_S)

    @property
    def _what(self) -> str:
        return self.config.url or " ".join([self.config.command, *self.config.args])[:120]


def _require_mcp() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise MissingDependency(f"MCP servers need the package mcp: {install_command('mcp')}") from None
    logging.getLogger("mcp").setLevel(logging.ERROR)  # it warns of every server that is not quite of its revision


def _is_lost(error: Any) -> bool:
    from mcp.types import CONNECTION_CLOSED

    return error.code == CONNECTION_CLOSED


def _cause(error: BaseException) -> str:
    """The innermost of an exception group, which is the one that says something."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _tail(said: TextIO) -> str:
    """The end of what a server wrote on stderr."""
    said.seek(0)
    text = said.read()[-_SAID_BYTES:].strip()
    return f"; it said: {text}" if text else ""
