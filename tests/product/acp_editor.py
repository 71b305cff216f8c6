"""An editor for tests: the protocol's own client, over the stdin and stdout of a real `etude acp`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import acp
from acp.client.connection import ClientSideConnection
from acp.connection import StreamDirection, StreamEvent
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    PermissionOption,
    RequestPermissionResponse,
    ToolCallUpdate,
)

Answer = Callable[[ToolCallUpdate, Sequence[PermissionOption]], str | None]
WAIT_S = 240.0


class Editor(acp.Client):
    """Keeps every update, as it stood on the wire too. `answer` chooses an option's id, or None: it never answers."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.updates: list[Any] = []
        self.wire: list[dict[str, Any]] = []
        self.questions: list[tuple[ToolCallUpdate, list[PermissionOption]]] = []
        self._news = asyncio.Condition()

    def observed(self, event: StreamEvent) -> None:
        if event.direction is StreamDirection.INCOMING:
            self.wire.append(event.message)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        async with self._news:
            self._news.notify_all()

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        self.questions.append((tool_call, options))
        async with self._news:
            self._news.notify_all()
        chosen = self.answer(tool_call, options)
        if chosen is None:
            await self.until(lambda: self.dismissed)
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    dismissed = False

    async def until(self, true: Callable[[], Any]) -> None:
        """Return when something that the agent said makes it true."""
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(true)

    def of(self, *kinds: str) -> list[Any]:
        return [update for update in self.updates if update.session_update in kinds]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(update.content.text for update in self.of(kind))

    def calls(self) -> list[dict[str, Any]]:
        """Each tool call as the editor shows it: what it began with, with every update laid over."""
        known: dict[str, dict[str, Any]] = {}
        for update in self.of("tool_call", "tool_call_update"):
            said = update.model_dump(exclude_none=True, exclude={"session_update"})
            known.setdefault(update.tool_call_id, {}).update(said)
        return list(known.values())


@contextlib.asynccontextmanager
async def editor(
    root: Path, *arguments: str, answer: Answer = lambda call, options: "allow", terminals: bool = False
) -> AsyncIterator[tuple[Editor, ClientSideConnection, asyncio.subprocess.Process]]:
    """A client with a fresh `etude acp` at the other end, initialised."""
    client = Editor(answer)
    env = {**os.environ, "ETUDE_HOME": str(root / "home"), "XDG_CONFIG_HOME": str(root / "config")}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    spawned = acp.spawn_agent_process(
        client,
        sys.executable, "-m", "etude.cli.main", "acp", *arguments,
        env=env,
        use_unstable_protocol=True,
        observers=[client.observed],
        transport_kwargs={"stderr": None, "limit": 1 << 24, "shutdown_timeout": WAIT_S},
    )  # fmt: skip
    async with spawned as (connection, process):
        capabilities = ClientCapabilities(field_meta={"terminal_output": True} if terminals else None)
        async with asyncio.timeout(WAIT_S):
            said = await connection.initialize(protocol_version=1, client_capabilities=capabilities)
        assert said.protocol_version == 1 and said.agent_capabilities.load_session
        yield client, connection, process
