"""What is asked of a node's sandboxes by their ids: the other end of every line, in the process that has them.

Owns the verbs that mean more on a node than to the sandbox itself: a command is accounted for, one in the background is
held for who asks after it, a snapshot and a fork are the node's to keep. All others are the sandbox's. Used by the HTTP
server and by a cluster's agent; takes and gives plain records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from etude.environments.base import ExecResult, Process
from etude.environments.channel import KILL_GRACE_S
from etude.environments.lives import LiveSandbox
from etude.environments.node import Node
from etude.environments.verbs import VERBS, ProcessStatus
from etude.errors import ConfigError, DeadlineExceeded

_GRACE_S = 1.0


class Hosted:
    """Over an open node, which it does not close."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def call(self, name: str, verb: str, **arguments: Any) -> Any:
        """Carry out a verb. Raises ServerError where the sandbox is not there, or paused and the verb not for that."""
        if verb not in VERBS:
            raise ConfigError(f"{verb}: a sandbox has no such call")
        if verb == "destroy":
            return await self.node.destroy(name)
        async with self.node.use(name, not VERBS[verb].while_paused) as live:
            match verb:
                case "exec":
                    return await self._exec(live, **arguments)
                case "start":
                    live.track_process(process := await live.sandbox.start(**arguments))
                    return process.id
                case "wait":
                    return await self._wait(live, **arguments)
                case "kill":
                    return await (await self.process(live, **arguments)).kill()
                case "ttl":
                    self.node.set_ttl(live, **arguments)
                    return live
                case "snapshot" | "fork" | "pause" | "resume":
                    return await getattr(self.node, verb)(live, **arguments)
                case _:
                    return await getattr(live.sandbox, verb)(**arguments)

    async def process(self, live: LiveSandbox, process: int) -> Process:
        """A background command by its number, also of a paused sandbox where it is held. Raises ProcessLookupError."""
        if process not in live.processes:
            async with self.node.use(live.id):
                live.track_process(await live.sandbox.connect(process))
        return live.processes[process]

    async def _exec(
        self, live: LiveSandbox, timeout_s: float, started: Callable[[Process], None] | None = None, **command: Any
    ) -> ExecResult:
        """Run a command to its end. `started` is given the process, for who wants the output as it comes."""
        began = time.monotonic()
        with self.node.accounts.timed("exec", live.backend, live.spec.image, live.id):
            if started is None:
                result = await live.sandbox.exec(timeout_s=timeout_s, **command)
            else:
                process = await live.sandbox.start(timeout_s=timeout_s, **command)
                started(process)
                result = await _to_its_end(process, timeout_s + KILL_GRACE_S)
        took = round(time.monotonic() - began, 4)
        self.node.accounts.step("exec", live.id, exit_code=result.exit_code, timed_out=result.timed_out, seconds=took)
        return result

    async def _wait(self, live: LiveSandbox, process: int, wait_s: float) -> ProcessStatus:
        """By the wall clock: a command's own stands still while its sandbox is paused."""
        found = await self.process(live, process)
        waiting = asyncio.ensure_future(found.wait(wait_s + _GRACE_S))
        try:
            done, _ = await asyncio.wait({waiting}, timeout=max(wait_s, 0.01))
            return ProcessStatus(waiting.result() if done else None, live.paused)
        except DeadlineExceeded:
            return ProcessStatus(None, live.paused)
        finally:
            waiting.cancel()


async def _to_its_end(process: Process, timeout_s: float) -> ExecResult:
    try:
        return await process.wait(timeout_s)
    except (asyncio.CancelledError, DeadlineExceeded):
        await process.kill()
        raise
