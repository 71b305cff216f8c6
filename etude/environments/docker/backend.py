"""The `docker` backend: a sandbox is a container of a Docker engine, or of one that speaks its API (Podman).

Owns what the engine's images say, and the removal of what killed processes left in it. Images are the engine's own, by
its names. The agent is shown to the container, and spoken to over its attached streams.

A container shares the host's kernel: it holds a misbehaving program, not an attacker with a kernel exploit. With a
`runtime` such as runsc that changes; it still reports "container", since we cannot see what a runtime does.
"""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

from etude.environments import store
from etude.environments.base import WORKSPACE, Capabilities, SandboxSpec
from etude.environments.container.backend import ContainerBackend, Image
from etude.environments.container.places import INSTANCE_LABEL
from etude.environments.container.trees import workspace_of_image
from etude.environments.docker.config import DockerConfig
from etude.environments.docker.container import container_body
from etude.environments.docker.engine import Engine, EngineError
from etude.environments.docker.sandbox import DockerSandbox, check_workdir
from etude.environments.images.root import image_environment
from etude.errors import ConfigError


class DockerBackend(ContainerBackend):
    """Makes containers. Opening one fails where no engine answers."""

    def __init__(self, config: DockerConfig | None = None) -> None:
        self.config = config or DockerConfig()
        self.engine = Engine(self.config.socket, self.config.engine_timeout_s)
        super().__init__(self.config, "docker")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="docker", isolation="container", snapshot="disk", network=False, services=True)

    # for ContainerBackend -------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Remove containers whose process is gone and that never started, or that the engine has failed to end."""
        filters = json.dumps({"label": [INSTANCE_LABEL]})
        found = await self.engine.ask("GET", "/containers/json", "list containers", all="true", filters=filters)
        for container in found:
            instance = (container.get("Labels") or {}).get(INSTANCE_LABEL, "")
            if store.INSTANCE.fullmatch(instance) and not store.owner_is_alive(instance):
                path = f"/containers/{container['Id']}"
                await self.engine.ask("DELETE", path, "remove a container", fine=(404, 409), force="true", v="true")

    async def _look_at(self, name: str) -> Image:
        try:
            said = await self.engine.ask("GET", f"/images/{quote(name, safe='')}/json", f"show the image {name!r}")
        except EngineError as error:
            if error.status != 404:
                raise
            raise ConfigError(
                f"image {name!r}: the engine at {self.config.socket} has none of that name; `docker pull {name}`, or "
                "`docker load` or `docker import` a tar of it"
            ) from None
        described = said.get("Config") or {}
        check_workdir(name, described.get("WorkingDir") or "/")
        env = dict(line.partition("=")[::2] for line in described.get("Env") or ())
        return Image(said["Id"], env, await self._workspace(said["Id"], name))

    def _new(self, name: str, number: int, image: Image, spec: SandboxSpec) -> DockerSandbox:
        env = {**image_environment(self.config.uid, image.env), **self.config.env}
        body = container_body(image.id, name, self.instance, self.program, spec.resources, env, self.config)
        return DockerSandbox(self, name, number, image.id, spec, body)

    async def _disconnect(self) -> None:
        await self.engine.close()

    # ----------------------------------------------------------------------------------------------------------------

    async def _workspace(self, image: str, name: str) -> list[bytes]:
        """From a container that never runs: the workspace in memory of those that do hides what the image has there."""
        labels = {INSTANCE_LABEL: self.instance}
        body = {"Image": image, "Labels": labels, "Cmd": ["/nothing"], "HostConfig": {"NetworkMode": "none"}}
        made = await self.engine.ask("POST", "/containers/create", f"look into the image {name!r}", body)
        path = f"/containers/{made['Id']}"
        try:
            archive = await self.engine.archive(made["Id"], WORKSPACE, f"read {WORKSPACE} of the image {name!r}")
        finally:
            await self.engine.ask("DELETE", path, "remove a container", fine=(404, 409), force="true", v="true")
        return [] if archive is None else await asyncio.to_thread(lambda: list(workspace_of_image(archive, name)))
