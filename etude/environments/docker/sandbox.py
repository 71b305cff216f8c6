"""One sandbox in a container of a Docker engine.

Owns the container's life: made, attached to, started, removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol

from etude.environments.base import WORKSPACE, SandboxSpec
from etude.environments.channel import Loss
from etude.environments.container.sandbox import ContainerHost, ContainerSandbox
from etude.environments.docker.attach import Attachment, attach
from etude.environments.docker.config import DockerConfig
from etude.environments.docker.engine import Engine
from etude.environments.starving import starved_of
from etude.errors import ConfigError, DeadlineExceeded, SandboxError, SandboxSpoiled

_GONE = (404, 409)
"""What the engine says to the removal of a container that is removed, or that it is removing already."""
_TOLD_S, _LOOK_S = 5.0, 0.1
"""How long after an agent's end the engine may take to know of it, and how often it is asked."""


class DockerHost(ContainerHost, Protocol):
    """What a sandbox asks of its backend."""

    config: DockerConfig
    engine: Engine


class DockerSandbox(ContainerSandbox):
    """See base.Sandbox for the meaning of its methods; made by DockerBackend.create."""

    def __init__(
        self, host: DockerHost, name: str, number: int, image: str, spec: SandboxSpec, body: Mapping[str, Any]
    ) -> None:
        super().__init__(host, name, number, image, spec, host.config.file_timeout_s)
        self._host = host
        self._body = body
        self._container: str | None = None

    async def boot(self) -> None:
        engine, config = self._host.engine, self._host.config
        name = f"etude-{self.id.replace('/', '-')}"
        asked = engine.ask("POST", "/containers/create", "make a container", self._body, name=name)
        made = asyncio.ensure_future(asked)
        try:
            self._container = (await asyncio.shield(made))["Id"]
        except asyncio.CancelledError:
            await asyncio.wait({made})  # else the engine could make it after we have removed it
            if made.exception() is None:
                self._container = made.result()["Id"]
            raise
        attachment = await attach(
            engine.socket, engine.version, self._container, self._channel, self._why, config.engine_timeout_s
        )
        await engine.ask("POST", f"/containers/{self._container}/start", "start a container")
        await self._hear(attachment)

    async def _remove(self) -> None:
        """The engine removes it by itself as soon as its agent has ended; it may have failed to."""
        if self._container is not None:
            path = f"/containers/{self._container}"
            await self._host.engine.ask("DELETE", path, "remove a container", fine=_GONE, force="true", v="true")

    # ----------------------------------------------------------------------------------------------------------------

    async def _starving(self) -> str:
        """The agent is inside the container's limits."""
        assert self._container is not None
        try:
            use = await self._host.engine.use(self._container)
        except (SandboxError, DeadlineExceeded):  # the engine is what fails
            return ""
        return starved_of(use.processors, self._spec.resources.cpus, use.memory)

    async def _why(self) -> Loss:
        """Why the agent ended; the engine has heard of it a moment later than we. Podman tells of no lack of memory."""
        assert self._container is not None
        end = time.monotonic() + _TOLD_S
        try:
            while not (happened := await self._host.engine.ends(self._container)) and time.monotonic() < end:
                await asyncio.sleep(_LOOK_S)
        except (SandboxError, DeadlineExceeded) as error:
            return f"the connection to its container was lost, and {error}", SandboxError
        if "oom" in happened:
            return "what ran in it left no memory, not even to its agent", SandboxSpoiled
        return "its processes have ended", SandboxError

    async def _hear(self, attachment: Attachment) -> None:
        try:
            await self._channel.ready(self._host.config.start_timeout_s)
        except DeadlineExceeded:
            raise
        except SandboxError:
            said = attachment.stderr.decode(errors="replace").strip()[-500:]
            raise SandboxError(
                f"sandbox {self.id} did not start: {said or 'its agent ended silently'}; "
                "`etude environments doctor --backend docker` tells what is missing"
            ) from None


def check_workdir(image: str, workdir: str) -> None:
    """Refuse an image whose agents work elsewhere: a container has one workspace, and that is not it."""
    place = workdir.rstrip("/")
    if place and place != WORKSPACE and not place.startswith(f"{WORKSPACE}/"):
        raise ConfigError(
            f"image {image}: its working directory is {workdir}, and containers have theirs at {WORKSPACE}; build it "
            f"with `WORKDIR {WORKSPACE}`, or use the namespace or qemu backend, which show both"
        )
