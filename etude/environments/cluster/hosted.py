"""What callers do with the sandboxes of one machine's agent.

Owns the calls: which there are, and how each reaches the node. Takes and gives bytes and plain records only, so that
any transport carries it. Waits are short and asked again, except for a command to end: who asks looks meanwhile whether
the machine still answers.
"""

from __future__ import annotations

import asyncio
from typing import Any

from etude.environments.base import ExecResult, Process
from etude.environments.cluster.agent import Agent
from etude.environments.lives import result_within
from etude.environments.wire import ExecBody
from etude.errors import ConfigError

_CALLS = frozenset(
    ("processes", "read_file", "write_file", "list_dir", "remove", "upload", "download", "part", "metrics")
)


class Hosted:
    """See the module. Over an open agent, which it does not close."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def call(self, sandbox: str, method: str, arguments: tuple[Any, ...]) -> Any:
        """One of the methods of a sandbox that ask and are answered."""
        if method not in _CALLS:
            raise ConfigError(f"{method}: a sandbox has no such call")
        async with self._agent.use(sandbox, awake=method != "part") as live:
            return await getattr(live.box, method)(*arguments)

    async def exec(self, sandbox: str, body: ExecBody) -> ExecResult:
        """Run a command to its end; who is cancelled has killed it."""
        async with self._agent.use(sandbox) as live:
            return await self._agent.node.exec(live.id, body)

    async def start(self, sandbox: str, body: ExecBody) -> int:
        """Run a command in the background; returns its id."""
        async with self._agent.use(sandbox) as live:
            return (await self._agent.node.start(live.id, body)).id

    async def connect(self, sandbox: str, number: int) -> None:
        """See that a background command is known. Raises ProcessLookupError."""
        await self._process(sandbox, number)

    async def wait(self, sandbox: str, number: int, wait_s: float) -> tuple[ExecResult | None, bool]:
        """How a background command ended, None while it has not; and whether the sandbox is paused."""
        process = await self._process(sandbox, number)
        async with self._agent.use(sandbox, awake=False) as live:
            return await result_within(process, wait_s), live.paused

    async def output(self, sandbox: str, number: int, at: int, wait_s: float) -> tuple[bytes, bool]:
        """What a background command has printed from byte `at` on, as soon as there is any; and whether it ended."""
        process, seen = await self._process(sandbox, number), 0
        async with self._agent.use(sandbox, awake=False):
            try:
                async with asyncio.timeout(wait_s):
                    async for piece in process.output():
                        seen += len(piece)
                        if seen > at:
                            return piece[len(piece) - (seen - at) :], False
            except TimeoutError:
                return b"", False
            return b"", True

    async def kill(self, sandbox: str, number: int) -> None:
        await (await self._process(sandbox, number)).kill()

    async def pause(self, sandbox: str) -> None:
        async with self._agent.use(sandbox, awake=False) as live:
            await self._agent.node.pause(live)

    async def resume(self, sandbox: str) -> None:
        async with self._agent.use(sandbox, awake=False) as live:
            await self._agent.node.resume(live)

    async def _process(self, sandbox: str, number: int) -> Process:
        async with self._agent.use(sandbox, awake=False) as live:
            return await self._agent.node.process(live.id, number)
