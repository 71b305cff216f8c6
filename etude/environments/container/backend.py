"""What all backends do alike whose sandboxes are containers of images that somebody else keeps.

Owns the containers of one process and their snapshots. The agent is the guest program of every backend, process 1 of
the container; a sandbox sees its image read-only, under a workspace in memory that begins with the image's own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from etude.environments import store
from etude.environments.base import SandboxSpec, Snapshot, gather_all
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.container.config import ContainerConfig
from etude.environments.container.sandbox import ContainerSandbox
from etude.environments.roots import HOST
from etude.environments.task_archives import archives
from etude.errors import ConfigError, SandboxError

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Image:
    """What is known of an image before a container of it runs."""

    id: str
    env: dict[str, str] = field(default_factory=dict)
    workspace: list[bytes] = field(default_factory=list)
    """The tars of what its /workspace holds, where the container does not take that over by itself."""


class ContainerBackend:
    """Base of the backends. The first sandbox of a process removes what killed processes left."""

    def __init__(self, config: ContainerConfig, name: str) -> None:
        self._config = config
        self._name = name
        self.program = guest_program(default_cache_dir())
        self.instance = store.new_instance()
        self._numbers = itertools.count(1)
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._snapshots: dict[str, tuple[str, list[bytes]]] = {}
        self.live: dict[int, ContainerSandbox] = {}
        """Sandboxes that have not been destroyed."""
        self._starts = asyncio.Semaphore(config.concurrent_starts)
        self.closed = False

    async def create(self, spec: SandboxSpec) -> ContainerSandbox:
        """Start a sandbox. Raises SandboxError quoting who refused it. Starts beyond `concurrent_starts` wait."""
        self._check_open()
        if spec.egress:
            raise ConfigError(f"egress: the {self._name} backend lets nothing out; leave it out, or use `namespace`")
        store.workspace_paths(spec.files)
        image = await self._image(spec.image)
        parts = image.workspace if spec.base is None else self._base(spec.base, image, spec.image)
        async with self._starts:
            self._check_open()
            number = next(self._numbers)
            sandbox = self.live[number] = self._new(f"{self.instance}/{number}", number, image, spec)
            try:
                await sandbox.boot()
                await sandbox.unpack(itertools.chain(parts, archives(spec.files)))
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
        try:
            await gather_all(*(box.destroy() for box in list(self.live.values())))
        finally:
            self._snapshots.clear()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._disconnect()

    # for ContainerSandbox -------------------------------------------------------------------------------------------

    def remember(self, image: str, tars: list[bytes]) -> Snapshot:
        snapshot = Snapshot(f"{self.instance}/{next(self._numbers)}")
        self._snapshots[snapshot.id] = image, tars
        return snapshot

    def forget(self, number: int) -> None:
        self.live.pop(number, None)

    # for a backend ------------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Once, before the first sandbox."""

    async def _look_at(self, name: str) -> Image:
        """What is known of an image; asked once a backend, so a name moved meanwhile is not followed."""
        raise NotImplementedError

    def _new(self, name: str, number: int, image: Image, spec: SandboxSpec) -> ContainerSandbox:
        raise NotImplementedError

    async def _disconnect(self) -> None:
        """Last of all, when no sandbox is left."""

    # ----------------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise SandboxError("this backend is closed")

    def _base(self, base: Snapshot, image: Image, name: str) -> list[bytes]:
        if base.id not in self._snapshots:
            raise SandboxError(f"no snapshot {base.id}: it was released, or another backend made it")
        of, parts = self._snapshots[base.id]
        if of != image.id:
            raise ConfigError(f"image: the snapshot {base.id} was not taken on {name!r}; name its own image")
        return parts

    async def _image(self, named: str) -> Image:
        name = (self._config.image or "") if named == HOST else named
        if not name:
            raise ConfigError(
                "image: a container cannot show the host's toolchain; name an image in the task, or one for all tasks "
                "that name none with `image` in the environment config"
            )
        await self._once("prepare", self._prepare)
        return await self._once(f"image {name}", lambda: self._look_at(name))

    async def _once(self, key: str, make: Callable[[], Coroutine[Any, Any, _Made]]) -> _Made:
        """What `make` brings: done once for all who ask, and again only where it has failed."""
        task = self._tasks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._tasks[key] = asyncio.get_running_loop().create_task(make())
        return await asyncio.shield(task)
