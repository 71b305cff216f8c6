"""A sandbox whose guest agent is a process below this one: how its first words are waited for, and how it is ended.

Owns the line over a socket pair, the sandbox's way out (see `egress`), and the end of the process. A backend adds what
it starts, and what else goes with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from etude.environments.child import ended
from etude.environments.egress.gate import take_listener
from etude.environments.guest_sandbox import GuestSandbox
from etude.errors import DeadlineExceeded

if TYPE_CHECKING:
    from etude.environments.egress.proxy import EgressProxy


class SpawnedSandbox(GuestSandbox):
    """Base of such sandboxes. See base.Sandbox for the meaning of its methods."""

    proxy: EgressProxy | None = None
    """Its way out; None where it may reach nothing."""
    _pid: int | None = None

    async def _begin(self, spawn: Callable[[socket.socket], int], wait_s: float) -> None:
        """Have `spawn` start the agent with its end of the line; take its greeting, and what comes with it."""
        ours, theirs = socket.socketpair()
        loop, child = asyncio.get_running_loop(), -1
        try:
            try:
                ours.setblocking(False)
                with theirs:
                    self._pid = spawn(theirs)
                child = os.pidfd_open(self._pid)
                if (
                    self.proxy is not None
                    and (listener := await take_listener(ours, child, self.id, wait_s)) is not None
                ):
                    self.proxy.listen(listener, self.id)
                await loop.create_unix_connection(lambda: self._channel, sock=ours)
            except BaseException:
                ours.close()  # which ends the agent: `destroy` has no channel to close
                raise
            loop.add_reader(child, self._channel.give_up)  # its child may wait for it for ever, and not hang up
            await self._channel.ready(wait_s)
        finally:
            if child >= 0:
                loop.remove_reader(child)
                os.close(child)

    async def _end(self) -> None:
        """Hanging up ends the agent, which is process 1: the kernel kills every other, then its starter ends."""
        self._channel.close()
        if self.proxy is not None:
            await self.proxy.close()
        if self._pid is None:
            return
        wait_s = self._stop_s
        if not await ended(self._pid, wait_s / 3):
            os.kill(self._pid, signal.SIGKILL)
            await self._kill_rest()
            if not await ended(self._pid, wait_s):
                raise DeadlineExceeded(f"the processes of sandbox {self.id} to end", wait_s)
        self._pid = None

    # for a backend ------------------------------------------------------------------------------------------------

    @property
    def _stop_s(self) -> float:
        """How long its processes may take to end."""
        raise NotImplementedError

    async def _kill_rest(self) -> None:
        """Of a sandbox that did not end by itself."""
