"""One sandbox that is a container, as far as it does not matter who made the container.

Owns the files that are laid into it, and what a snapshot holds: those of the workspace and nothing else, as archives
that the agent packs while every command stands still; a tree deeper than a path can name, one file larger than an
archive, or more than the sandbox's `state_mb`, makes it fail. A backend adds how its containers start and
how they are removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from etude.environments.archive import blamed
from etude.environments.base import WORKSPACE, Backend, SandboxSpec, Snapshot
from etude.environments.channel import Channel
from etude.environments.container import trees
from etude.environments.guest_sandbox import GuestSandbox
from etude.environments.laid import archives
from etude.errors import SandboxError


class Keeper(Backend, Protocol):
    """What a sandbox asks of its backend."""

    def remember(self, image: str, parts: list[trees.Part]) -> Snapshot: ...

    def forget(self, number: int) -> None: ...


class ContainerSandbox(GuestSandbox):
    """Base of the sandboxes of one backend. See base.Sandbox for the meaning of its methods."""

    def __init__(self, keeper: Keeper, name: str, number: int, image: str, spec: SandboxSpec, wait_s: float) -> None:
        super().__init__(keeper, Channel(name), name, spec, wait_s)
        self._keeper = keeper
        self._number = number
        self._image = image

    async def lay(self, parts: Sequence[trees.Part], files: Mapping[str, bytes]) -> None:
        """Put files into the empty workspace: those it starts from, then a task's."""
        laid = [*parts, *(trees.Part(WORKSPACE, archive) for archive in archives(files))]
        try:
            await trees.unpack(self._channel, laid, self._wait_s)
        except OSError as error:
            raise SandboxError(f"sandbox {self.id}: cannot lay down its files: {error}") from error

    # for a backend ------------------------------------------------------------------------------------------------

    async def boot(self) -> None:
        """Make and start the container, and wait for the agent's first words."""
        raise NotImplementedError

    async def _remove(self) -> None:
        """See to it that the container, whose agent we have hung up on, is gone; it may never have been made."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------------------

    async def _capture(self) -> Snapshot:
        try:
            parts = await trees.pack(self._channel, WORKSPACE, self._spec.resources, self._wait_s)
        except OSError as error:
            raise blamed(error, f"snapshot of sandbox {self.id}: cannot pack its files") from error
        return self._keeper.remember(self._image, parts)

    async def _end(self) -> None:
        """Hanging up ends the agent and so the container; we insist on it."""
        self._channel.close()
        await self._remove()
        self._keeper.forget(self._number)
