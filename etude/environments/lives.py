"""A sandbox and a snapshot as a server holds them, what it is told to offer, and the clock that ends them.

Owns the records of what is alive and the timers of a node; what happens when time is up is the node's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from etude.config import Config
from etude.environments.backends import LocalConfig
from etude.environments.base import Process, Sandbox, SandboxSpec, Snapshot
from etude.environments.namespace import NamespaceConfig

_PROCESSES_HELD = 64
_GRACE_S = 1.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
"""Between two attempts to remove a sandbox; doubled from one to the next."""


class NodeConfig(Config):
    """What a server offers and for how long it keeps things."""

    state_dir: Path | None = None
    """For the journal, the event log and the token; None: below ETUDE_HOME, or the user's directory for state."""
    backends: tuple[LocalConfig, ...] = Field((NamespaceConfig(),), min_length=1)
    """The first one is used where a request names neither a backend nor an isolation level."""
    ttl_s: float = Field(3600.0, gt=0)
    """Of a sandbox that names none. It runs on while the sandbox is paused."""
    max_ttl_s: float = Field(86_400.0, gt=0)
    """The longest that a request may ask for."""
    snapshot_ttl_s: float = Field(86_400.0, gt=0)
    """From its last use."""
    waiting_starts: int = Field(1000, ge=1)
    """Sandboxes asked for and not ready; beyond these a request is told to come again later."""
    keep_s: float = Field(86_400.0, gt=0)
    """How long answers and ended sandboxes are remembered."""
    keep_mb: int = Field(256, ge=1)
    """What the remembered answers may take; the oldest are forgotten first."""


@dataclass(eq=False)
class Teardown:
    """Why a sandbox is over, and how far its removal has got."""

    step: str
    """Of its life: destroyed, expired or failed."""
    state: str
    """The kind of error it is to ask for it from now on."""
    why: str
    attempt: asyncio.Task[None] | None = None
    """Under way now; whoever else wants it gone waits for the same one."""
    pause_s: float = _FIRST_PAUSE_S
    last_error: str | None = None
    """What the last attempt failed of."""

    def next_pause(self) -> float:
        pause_s, self.pause_s = self.pause_s, min(2 * self.pause_s, _LONGEST_PAUSE_S)
        return pause_s


@dataclass(eq=False)
class LiveSandbox:
    """A sandbox that is there. It is until nothing of it is left and the journal has that, however long this takes."""

    id: str
    sandbox: Sandbox
    backend: str
    spec: SandboxSpec
    """As it was asked for, less its files; its TTL is the one granted."""
    born: float
    """By the wall clock, for telling."""
    since: float
    """The same by the clock that is not set, for reckoning."""
    expires: float
    """By the wall clock, for telling."""
    timer: asyncio.TimerHandle
    paused: bool = False
    ending: Teardown | None = None
    """Set once it is over: nobody may use it any more."""
    processes: dict[int, Process] = field(default_factory=dict)
    """The last ones in the background, held so that their output stays; the backend finds the others again."""

    def track_process(self, process: Process) -> None:
        self.processes[process.id] = process
        while len(self.processes) > _PROCESSES_HELD:
            del self.processes[next(iter(self.processes))]


@dataclass(eq=False)
class LiveSnapshot:
    """A snapshot that is there."""

    id: str
    snapshot: Snapshot
    backend: str
    image: str
    sandbox_id: str
    timer: asyncio.TimerHandle | None = None


class Timers:
    """Work to be begun later, on one event loop."""

    def __init__(self) -> None:
        self._begun: set[asyncio.Task[None]] = set()
        self._set: set[asyncio.TimerHandle] = set()

    def later(self, delay_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.TimerHandle:
        """Begin `work` after `delay_s`, unless the handle is given to `stop` before."""
        loop = asyncio.get_running_loop()

        def begin() -> None:
            self._set.discard(handle)
            task = loop.create_task(work())
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

        handle = loop.call_later(delay_s, begin)
        self._set.add(handle)
        return handle

    def stop(self, handle: asyncio.TimerHandle | None) -> None:
        if handle is not None:
            handle.cancel()
            self._set.discard(handle)

    async def close(self) -> None:
        """Begin nothing more, and wait for what was begun."""
        for handle in list(self._set):
            self.stop(handle)
        await asyncio.gather(*self._begun, return_exceptions=True)
