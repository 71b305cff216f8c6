"""The `docker` backend: a sandbox is a container of a Docker engine, or of one that speaks its API (Podman).

Owns the containers of one process, what their images say, and their snapshots. Images are the engine's own, by its
names; a sandbox sees one read-only under a workspace in memory that begins with the image's /workspace. The agent is
the guest program of every backend, shown to the container and spoken to over its attached streams.

A container shares the host's kernel: it holds a misbehaving program, not an attacker with a kernel exploit. With a
`runtime` such as runsc or kata that changes; it still reports "container", since we cannot see what a runtime does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass
from urllib.parse import quote

from etude.environments import store
from etude.environments.base import WORKSPACE, Capabilities, SandboxSpec, Snapshot
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.docker.config import DockerConfig
from etude.environments.docker.container import INSTANCE_LABEL, container_body
from etude.environments.docker.engine import Engine, EngineError
from etude.environments.docker.sandbox import DockerSandbox, check_workdir
from etude.environments.docker.trees import Part, workspace_of_image
from etude.environments.root import image_environment
from etude.environments.rootfs import HOST
from etude.errors import ConfigError, SandboxError


@dataclass(frozen=True)
class _Image:
    id: str
    env: dict[str, str]
    workspace: list[Part]
    """What its /workspace holds."""


class DockerBackend:
    """Makes containers. Opening one fails where no engine answers; the first sandbox removes what killed ones left."""

    def __init__(self, config: DockerConfig | None = None) -> None:
        self.config = config or DockerConfig()
        self.engine = Engine(self.config.socket, self.config.engine_timeout_s)
        self._program = guest_program(self.config.cache_dir or default_cache_dir())
        self.instance = store.new_instance()
        self._numbers = itertools.count(1)
        self._images: dict[str, asyncio.Task[_Image]] = {}
        self._snapshots: dict[str, tuple[str, list[Part]]] = {}
        self.live: dict[int, DockerSandbox] = {}
        """Sandboxes that have not been destroyed."""
        self._starts = asyncio.Semaphore(self.config.concurrent_starts)
        self._swept: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="docker", isolation="container", snapshot="disk", network=False, services=True)

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """Start a sandbox. Raises SandboxError quoting the engine. Starts beyond `concurrent_starts` wait."""
        if self.closed:
            raise SandboxError("this backend is closed")
        if spec.egress:
            raise ConfigError("egress: the docker backend lets nothing out; leave it out, or use `namespace`")
        store.workspace_paths(spec.files)
        image = await self._image(spec.image)
        parts = image.workspace if spec.base is None else self._base(spec.base, image, spec.image)
        async with self._starts:
            if self.closed:
                raise SandboxError("this backend is closed")
            number = next(self._numbers)
            name = f"{self.instance}/{number}"
            sandbox = self.live[number] = DockerSandbox(self, name, number, image.id, spec)
            env = {**image_environment(self.config.uid, image.env), **self.config.env}
            body = container_body(image.id, name, self.instance, self._program, spec.resources, env, self.config)
            try:
                await sandbox.boot(body)
                await sandbox.lay(parts, spec.files)
            except BaseException:
                await sandbox.destroy()
                raise
        return sandbox

    async def release(self, snapshot: Snapshot) -> None:
        """Forget a snapshot. Safe to call twice."""
        self._snapshots.pop(snapshot.id, None)

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        ended = await asyncio.gather(*(box.destroy() for box in list(self.live.values())), return_exceptions=True)
        self._snapshots.clear()
        tasks = [task for task in (*self._images.values(), self._swept) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.engine.close()
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    # for DockerSandbox ----------------------------------------------------------------------------------------------

    def remember(self, image: str, parts: list[Part]) -> Snapshot:
        snapshot = Snapshot(f"{self.instance}/{next(self._numbers)}")
        self._snapshots[snapshot.id] = image, parts
        return snapshot

    def forget(self, number: int) -> None:
        self.live.pop(number, None)

    # ----------------------------------------------------------------------------------------------------------------

    def _base(self, base: Snapshot, image: _Image, name: str) -> list[Part]:
        if base.id not in self._snapshots:
            raise SandboxError(f"no snapshot {base.id}: it was released, or another backend made it")
        of, parts = self._snapshots[base.id]
        if of != image.id:
            raise ConfigError(f"image: the snapshot {base.id} was not taken on {name!r}; name its own image")
        return parts

    async def _image(self, named: str) -> _Image:
        """What the engine says of an image; asked once a backend, so a name moved meanwhile is not followed."""
        name = (self.config.image or "") if named == HOST else named
        if not name:
            raise ConfigError(
                "image: a container cannot show the host's toolchain; name an image in the task, or one for all tasks "
                "that name none with `image` in the environment config"
            )
        loop = asyncio.get_running_loop()
        if self._swept is None:
            self._swept = loop.create_task(self._sweep())
        await asyncio.shield(self._swept)
        task = self._images.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._images[name] = loop.create_task(self._look_at(name))
        return await asyncio.shield(task)

    async def _look_at(self, name: str) -> _Image:
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
        return _Image(said["Id"], env, await self._workspace(said["Id"], name))

    async def _workspace(self, image: str, name: str) -> list[Part]:
        """From a container that never runs: the workspace in memory of those that do hides what the image has there."""
        labels = {INSTANCE_LABEL: self.instance}
        body = {"Image": image, "Labels": labels, "Cmd": ["/nothing"], "HostConfig": {"NetworkMode": "none"}}
        made = await self.engine.ask("POST", "/containers/create", f"look into the image {name!r}", body)
        path = f"/containers/{made['Id']}"
        try:
            archive = await self.engine.archive(made["Id"], WORKSPACE, f"read {WORKSPACE} of the image {name!r}")
        finally:
            await self.engine.ask("DELETE", path, "remove a container", fine=(404, 409), force="true", v="true")
        return [] if archive is None else await asyncio.to_thread(workspace_of_image, archive, name)

    async def _sweep(self) -> None:
        """Remove containers whose process is gone and that never started, or that the engine has failed to end."""
        filters = json.dumps({"label": [INSTANCE_LABEL]})
        found = await self.engine.ask("GET", "/containers/json", "list containers", all="true", filters=filters)
        for container in found:
            instance = (container.get("Labels") or {}).get(INSTANCE_LABEL, "")
            if store.INSTANCE.fullmatch(instance) and not store.owner_lives(instance):
                path = f"/containers/{container['Id']}"
                await self.engine.ask("DELETE", path, "remove a container", fine=(404, 409), force="true", v="true")
