"""Sandboxes of another process: their verbs go over a line, whatever that line is made of.

Owns `Transport`, what a caller needs of such a line (HTTP's is in `client`, Ray's in `cluster.sandbox`), the background
commands of such a sandbox, which are asked about in turns, and the list of what a backend has made there, which it
takes down when it closes. Knows neither HTTP nor Ray.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import AsyncIterator
from typing import Any, Protocol

from etude.environments.base import Capabilities, ExecResult, Sandbox, SandboxSpec, Snapshot, gather_all
from etude.environments.verbs import ProcessStatus
from etude.errors import DeadlineExceeded, SandboxError

TURN_S = 20.0
"""How long the other process holds a question before it says that there is no news."""


class Transport(Protocol):
    """To one sandbox of another process."""

    async def call(self, verb: str, **arguments: Any) -> Any:
        """Have a verb carried out there, once. Who is cancelled leaves nothing under way."""
        ...

    def output(self, process: int) -> AsyncIterator[bytes]:
        """What a background command prints, from its first byte to its end."""
        ...


class FarBackend:
    """Base of the backends of one kind of line: each knows what was made through it."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.live: dict[str, Any] = {}
        self.snapshots: set[str] = set()
        self._closed = False

    async def create(self, spec: SandboxSpec) -> Sandbox:
        raise NotImplementedError

    async def release(self, snapshot: Snapshot) -> None:
        raise NotImplementedError

    def holds(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot was made through this object, and not released through it."""
        return snapshot.id in self.snapshots

    async def close(self) -> None:
        """Destroy what was made through this object; the other side and its other sandboxes live on."""
        self._closed = True
        boxes = [box.destroy() for box in list(self.live.values())]
        await gather_all(*boxes, *(self.release(Snapshot(name)) for name in list(self.snapshots)))

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("this backend is closed")


class FarSandbox(Sandbox):
    """Base of the sandboxes of one kind of line. See base.Sandbox for the meaning of its methods."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport, self._id = transport, name
        # weak: whoever lets go of a background command has no more of it here; the other side knows it by its number
        self._processes: weakref.WeakValueDictionary[int, FarProcess] = weakref.WeakValueDictionary()

    @property
    def id(self) -> str:
        return self._id

    async def call(self, verb: str, **arguments: Any) -> Any:
        if verb == "connect":
            await self._transport.call("wait", wait_s=0.0, **arguments)
            return self._process(**arguments)
        value = await self._transport.call(verb, **arguments)
        return self._process(value) if verb == "start" else value

    def _process(self, process: int) -> FarProcess:
        return self._processes.setdefault(process, FarProcess(self._transport, process, self._id))


class FarProcess:
    """See base.Process."""

    def __init__(self, transport: Transport, number: int, sandbox: str) -> None:
        self._transport, self._id, self._sandbox = transport, number, sandbox

    @property
    def id(self) -> int:
        return self._id

    def output(self) -> AsyncIterator[bytes]:
        return self._transport.output(self._id)

    async def wait(self, timeout_s: float) -> ExecResult:
        """Its clock stands still while the sandbox is paused."""
        left_s = timeout_s
        while True:
            began = time.monotonic()
            known: ProcessStatus = await self._transport.call(
                "wait", process=self._id, wait_s=min(max(left_s, 0.0), TURN_S)
            )
            if known.result is not None:
                return known.result
            if not known.paused:
                left_s -= time.monotonic() - began
            if left_s <= 0:
                raise DeadlineExceeded(f"process {self._id} of sandbox {self._sandbox} to end", timeout_s)

    async def kill(self) -> None:
        await self._transport.call("kill", process=self._id)
