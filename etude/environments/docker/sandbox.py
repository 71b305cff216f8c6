"""One sandbox in a container of its own.

Owns the container's life: made, attached to, started, removed. A snapshot holds the files of the workspace and nothing
else, as archives that the agent packs while every command stands still; a tree deeper than a path can name, or one file
larger than an archive, makes it fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from etude.environments.base import WORKSPACE, Backend, SandboxSpec, Snapshot
from etude.environments.channel import Channel
from etude.environments.docker import trees
from etude.environments.docker.attach import Attachment, attach
from etude.environments.docker.config import DockerConfig
from etude.environments.docker.engine import Engine
from etude.environments.guest_sandbox import GuestSandbox
from etude.environments.laid import archives
from etude.errors import ConfigError, DeadlineExceeded, SandboxError

_GONE = (404, 409)
"""What the engine says to the removal of a container that is removed, or that it is removing already."""


class Host(Backend, Protocol):
    """What a sandbox asks of its backend."""

    config: DockerConfig
    engine: Engine

    def remember(self, image: str, parts: list[trees.Part]) -> Snapshot: ...

    def forget(self, number: int) -> None: ...


class DockerSandbox(GuestSandbox):
    """See base.Sandbox for the meaning of its methods; made by DockerBackend.create."""

    def __init__(self, host: Host, name: str, number: int, image: str, spec: SandboxSpec) -> None:
        super().__init__(host, Channel(name), name, spec, host.config.file_timeout_s)
        self._host = host
        self._number = number
        self._image = image
        self._container: str | None = None
        self._ending: asyncio.Task[None] | None = None

    async def boot(self, body: Mapping[str, Any]) -> None:
        """Make and start the container, and wait for the agent's first words."""
        engine, config = self._host.engine, self._host.config
        name = f"etude-{self.id.replace('/', '-')}"
        made = asyncio.ensure_future(engine.ask("POST", "/containers/create", "make a container", body, name=name))
        try:
            self._container = (await asyncio.shield(made))["Id"]
        except asyncio.CancelledError:
            await asyncio.wait({made})  # else the engine could make it after we have removed it
            if made.exception() is None:
                self._container = made.result()["Id"]
            raise
        attachment = await attach(
            engine.socket, engine.version, self._container, self._channel, config.engine_timeout_s
        )
        await engine.ask("POST", f"/containers/{self._container}/start", "start a container")
        await self._hear(attachment)

    async def lay(self, parts: Sequence[trees.Part], files: Mapping[str, bytes]) -> None:
        """Put files into the empty workspace: those it starts from, then a task's."""
        laid = [*parts, *(trees.Part(WORKSPACE, archive) for archive in archives(files))]
        try:
            await trees.unpack(self._channel, laid, self._wait_s)
        except OSError as error:
            raise SandboxError(f"sandbox {self.id}: cannot lay down its files: {error}") from error

    async def destroy(self) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._ending)  # a cancelled caller leaves no half-destroyed sandbox

    async def _capture(self) -> Snapshot:
        try:
            parts = await trees.pack(self._channel, WORKSPACE, self._wait_s)
        except OSError as error:  # whose path may be thousands of characters long
            raise SandboxError(f"snapshot of sandbox {self.id}: cannot pack its files: {error.strerror}") from error
        return self._host.remember(self._image, parts)

    # ----------------------------------------------------------------------------------------------------------------

    async def _hear(self, attachment: Attachment) -> None:
        try:
            await self._channel.ready(self._host.config.start_timeout_s)
        except DeadlineExceeded:
            raise
        except SandboxError:
            said = attachment.said.decode(errors="replace").strip()[-500:]
            raise SandboxError(
                f"sandbox {self.id} did not start: {said or 'its agent ended silently'}; "
                "`etude environments doctor --backend docker` tells what is missing"
            ) from None

    async def _end(self) -> None:
        """Hanging up ends the agent and so the container, which the engine then removes; we insist on both."""
        self._channel.close()
        if self._container is not None:
            path = f"/containers/{self._container}"
            await self._host.engine.ask("DELETE", path, "remove a container", fine=_GONE, force="true", v="true")
        self._host.forget(self._number)


def check_workdir(image: str, workdir: str) -> None:
    """Refuse an image whose agents work elsewhere: a container has one workspace, and that is not it."""
    place = workdir.rstrip("/")
    if place and place != WORKSPACE and not place.startswith(f"{WORKSPACE}/"):
        raise ConfigError(
            f"image {image}: its working directory is {workdir}, and containers have theirs at {WORKSPACE}; build it "
            f"with `WORKDIR {WORKSPACE}`, or use the namespace or qemu backend, which show both"
        )
