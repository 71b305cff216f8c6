"""A sandbox as far as its guest agent serves it, the same whatever machine the agent runs in.

Owns commands, files, archives, freezing and forking over a `Channel`, and the rule of what a paused sandbox refuses.
A backend adds how its sandboxes start, how their state is captured and how they end. Not a second seam: callers know
only the protocols of `base`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from etude.deadlines import scaled
from etude.environments.base import WORKSPACE, Backend, Sandbox, SandboxSpec, Snapshot, TarChunk
from etude.environments.channel import Channel
from etude.environments.verbs import WHILE_PAUSED
from etude.errors import ConfigError, SandboxError

SLOWEST_MB_S, SLOWEST_ENTRIES_S = 1.0, 200.0
"""Of a disk that is used by others too. What is taken out of a sandbox, and laid down in another, is waited for at such
a speed: a policy must not be able to make its own final state the one that nobody waits for."""


class GuestSandbox(Sandbox):
    """Base of the sandboxes of one backend. See base.Sandbox for the meaning of its methods."""

    def __init__(self, backend: Backend | None, channel: Channel, name: str, spec: SandboxSpec, wait_s: float) -> None:
        """Without a `backend` it has no snapshots and no forks."""
        self._backend = backend
        self._channel = channel
        channel.starving = self._starving
        self._id = name
        self._wait_s = wait_s
        self._still = asyncio.Lock()
        """Held while the sandbox is being captured, paused or resumed; nothing else is asked of the agent meanwhile."""
        self._paused = False
        self._spec = spec
        self._ending: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self._id

    async def call(self, verb: str, **arguments: Any) -> Any:
        if verb not in WHILE_PAUSED:
            await self._awake()
        match verb:
            case "upload" | "part" | "snapshot" | "fork" | "pause" | "resume" | "destroy":
                return await getattr(self, f"_{verb}")(**arguments)
        return await self._channel.call(verb, self._wait_s, **arguments)

    async def unpack(self, archives: Iterable[bytes]) -> None:
        """Unpack what its workspace begins with."""
        try:
            for archive in archives:
                await self._upload(WORKSPACE, archive)
        except OSError as error:
            raise SandboxError(f"sandbox {self.id}: cannot unpack its files: {error}") from error

    # what a backend has a part in ---------------------------------------------------------------------------------

    async def _upload(self, path: str, archive: bytes) -> None:
        entries = min(archive.count(b"ustar"), len(archive) // 512)  # the word that every header has
        wait_s = self._wait_s + scaled(len(archive) / 1e6 / SLOWEST_MB_S + entries / SLOWEST_ENTRIES_S)
        await self._channel.call("upload", wait_s, path=path, archive=archive)

    async def _part(self, path: str, skip: int) -> TarChunk:
        async with self._still:
            if not self._paused:
                return await self._pack(path, skip)
            async with self._heard():
                return await self._pack(path, skip)

    async def _snapshot(self) -> Snapshot:
        self._copier()
        async with self._stopped():
            return await self._capture()

    async def _fork(self, n: int) -> list[Sandbox]:
        backend, snapshot = self._copier(), await self._snapshot()
        try:
            return await create_all(backend, replace(self._spec, files={}, base=snapshot), n)
        finally:
            await backend.release(snapshot)

    async def _pause(self) -> None:
        async with self._still:
            if not self._paused:
                self._paused = True  # at once: who gives up waiting may find it stopped, and must be able to resume it
                await self._freeze()

    async def _resume(self) -> None:
        async with self._still:
            if self._paused:
                await self._thaw()
                self._paused = False

    async def _destroy(self) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._ended())
        await asyncio.shield(self._ending)  # a cancelled caller leaves no half-destroyed sandbox

    # for a backend ------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """See to it that nothing of the sandbox is left. Begun anew after it failed."""
        raise NotImplementedError

    async def _capture(self) -> Snapshot:
        """Keep the state of the sandbox, which is stopped meanwhile."""
        raise NotImplementedError

    async def _starving(self) -> str:
        """What its commands do that keeps its agent from answering; "" where they do nothing of the kind, or we cannot
        know. Where the agent has processors and memory that no command can take, there is nothing to look at."""
        return ""

    async def _freeze(self) -> None:
        await self._channel.freeze(self._wait_s)

    async def _thaw(self) -> None:
        await self._channel.thaw(self._wait_s)

    @asynccontextmanager
    async def _heard(self) -> AsyncGenerator[None]:
        """The agent answers, while every command goes on standing still. It does so anyway where it runs by itself."""
        yield

    # ----------------------------------------------------------------------------------------------------------------

    async def _ended(self) -> None:
        try:
            await self._end()
        except BaseException:
            self._ending = None  # else whoever asks again is told of the same failure for ever
            raise

    async def _pack(self, path: str, skip: int) -> TarChunk:
        wait_s = self._wait_s + scaled(self._spec.resources.state_mb / SLOWEST_MB_S)
        return await self._channel.call("part", wait_s, path=path, skip=skip, resources=self._spec.resources)

    def _copier(self) -> Backend:
        if self._backend is None:
            raise ConfigError(f"sandbox {self._id} is a directory of this machine, which has no snapshots and no forks")
        return self._backend

    async def _awake(self) -> None:
        """Wait for a capture under way to end; refuse what a paused sandbox cannot do."""
        if self._still.locked():
            async with self._still:
                pass
        if self._paused:
            raise SandboxError(f"sandbox {self._id} is paused: resume() it first")

    @asynccontextmanager
    async def _stopped(self) -> AsyncGenerator[None]:
        async with self._still:
            try:
                if not self._paused:
                    await self._freeze()
                yield
            except OSError as error:
                raise SandboxError(f"snapshot of sandbox {self._id}: {error}") from error
            finally:
                if not self._paused and self._channel.failure is None:
                    await self._thaw()


async def create_all(backend: Backend, spec: SandboxSpec, n: int) -> list[Sandbox]:
    """`n` sandboxes of one spec; where one fails to start, the others are destroyed and its error is raised."""
    starting = [asyncio.ensure_future(backend.create(spec)) for _ in range(n)]
    try:
        return list(await asyncio.gather(*starting))
    except BaseException:
        for start in starting:
            start.cancel()
        started = await asyncio.gather(*starting, return_exceptions=True)
        alive = [box for box in started if not isinstance(box, BaseException)]
        await asyncio.gather(*(box.destroy() for box in alive), return_exceptions=True)
        raise
