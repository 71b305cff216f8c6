"""One sandbox that is a container, as far as it does not matter who made the container.

Owns what a snapshot holds: the files of the workspace and nothing else, as archives
that the agent packs while every command stands still; a tree deeper than a path can name, one file larger than an
archive, or more than the sandbox's `state_mb`, makes it fail. A backend adds how its containers start and
how they are removed.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from etude.environments.archive import all_parts
from etude.environments.base import WORKSPACE, Backend, SandboxSpec, Snapshot
from etude.environments.channel import Channel
from etude.environments.guest_sandbox import GuestSandbox


class ContainerHost(Backend, Protocol):
    """What a sandbox asks of its backend."""

    def remember(self, image: str, tars: list[bytes]) -> Snapshot: ...

    def forget(self, number: int) -> None: ...


class ContainerSandbox(GuestSandbox):
    """Base of the sandboxes of one backend. See base.Sandbox for the meaning of its methods."""

    def __init__(
        self, keeper: ContainerHost, name: str, number: int, image: str, spec: SandboxSpec, wait_s: float
    ) -> None:
        super().__init__(keeper, Channel(name), name, spec, wait_s)
        self._keeper = keeper
        self._number = number
        self._image = image

    # for a backend ------------------------------------------------------------------------------------------------

    async def boot(self) -> None:
        """Make and start the container, and wait for the agent's first words."""
        raise NotImplementedError

    async def _remove(self) -> None:
        """See to it that the container, whose agent we have hung up on, is gone; it may never have been made."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------------------

    async def _capture(self) -> Snapshot:
        tars = await all_parts(partial(self._pack, WORKSPACE), f"snapshot of sandbox {self.id}: cannot pack its files")
        return self._keeper.remember(self._image, tars)

    async def _end(self) -> None:
        """Hanging up ends the agent and so the container; we insist on it."""
        self._channel.close()
        await self._remove()
        self._keeper.forget(self._number)
