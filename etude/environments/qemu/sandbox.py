"""One sandbox in a virtual machine of its own.

Owns the life of the machine: its start (from a kernel, or from another machine's memory), standing still, being copied,
its end. After every start and every pause the agent is told, before anything else, which sandbox it is and what time
it is, and given entropy of its own (see guest/resume.c): copies of one memory must not share random numbers. Its
processes are stopped by the agent before the machine is, so that nothing runs ahead of that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from etude.environments.base import WORKSPACE, Backend, Resources, SandboxSpec, Snapshot
from etude.environments.cgroups import CgroupTree
from etude.environments.channel import Channel
from etude.environments.guest_sandbox import GuestSandbox
from etude.environments.images.store import Image
from etude.environments.laid import archives
from etude.environments.qemu.config import QemuConfig
from etude.environments.qemu.kernel import Kernel
from etude.environments.qemu.machine import HOST_OVERHEAD_MB, Boot, Machine, Owner, Shape
from etude.environments.qemu.ram import Ram
from etude.errors import DeadlineExceeded, SandboxError

_ADVICE = "`etude environments doctor` tells what is missing"
_UIDS = 10_000
_THREADS = 64


@dataclass(frozen=True)
class Disk:
    """An image as machines see it: an open erofs file, and what is said of it."""

    image: Image
    fd: int
    env: Mapping[str, str]


@dataclass(frozen=True)
class Frozen:
    """A machine that stood still: what others start from. Lives as long as anybody refers to it."""

    disk: Disk
    shape: Shape
    ram: Ram
    devices: bytes
    next_id: int
    """Of its agent's requests: it still knows the earlier ones."""


@dataclass(frozen=True)
class Fresh:
    """A machine that has yet to boot."""

    disk: Disk
    shape: Shape
    ram: Ram
    kernel: Kernel
    hints: Sequence[str]
    """For the kernel, of this machine's clock."""
    next_id: int = 1


Start = Frozen | Fresh


class Host(Backend, Protocol):
    """What a sandbox asks of its backend."""

    config: QemuConfig
    program: Path
    groups: CgroupTree | None

    def place(self, number: int) -> tuple[str, Path]:
        """The name of sandbox `number`, and its log."""
        ...

    def remember(self, frozen: Frozen) -> Snapshot: ...

    def forget(self, number: int) -> None: ...


class QemuSandbox(GuestSandbox):
    """See base.Sandbox for the meaning of its methods; made by QemuBackend.create."""

    def __init__(self, host: Host, number: int, spec: SandboxSpec, start: Start) -> None:
        name, self._log = host.place(number)
        super().__init__(host, Channel(name, start.next_id), name, spec, host.config.file_timeout_s)
        self._host = host
        self._number = number
        self._disk = start.disk
        self._machine = Machine(name, start.shape, start.ram, host.config.file_timeout_s)
        self._ending: asyncio.Task[None] | None = None

    async def boot(self, start: Start) -> None:
        """Start the machine, and wait until its agent has answered."""
        config, first = self._host.config, isinstance(start, Fresh)
        source = self._first_words(start) if isinstance(start, Fresh) else start.devices
        line = self._machine.start(self._host.program, self._disk.fd, source, self._owner(), self._log)
        await asyncio.get_running_loop().create_unix_connection(lambda: self._channel, sock=line)
        wait_s = config.boot_timeout_s if first else config.start_timeout_s
        try:
            if first:
                await self._channel.ready(wait_s)
            await self._tell(wait_s)
            if not first:
                await self._channel.thaw(wait_s)
        except (SandboxError, DeadlineExceeded) as error:
            why = f"machine {self.id} did not start with accel {config.accel!r} ({error}); it said"
            raise SandboxError(f"{why}: {_gist(self._log)}; {_ADVICE}") from None

    async def lay(self, files: Mapping[str, bytes]) -> None:
        """Put a task's files into the workspace."""
        for archive in archives(files):
            try:
                await self._channel.unpack(archive, WORKSPACE, self._wait_s)
            except OSError as error:
                raise SandboxError(f"sandbox {self.id}: cannot lay down its files: {error}") from error

    async def freeze(self) -> Frozen:
        """A copy of the machine as it stands."""
        async with self._stopped():
            return await self._copy()

    async def destroy(self) -> None:
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        await asyncio.shield(self._ending)  # a cancelled caller leaves no half-destroyed sandbox

    # for GuestSandbox -----------------------------------------------------------------------------------------------

    async def _capture(self) -> Snapshot:
        return self._host.remember(await self._copy())

    async def _freeze(self) -> None:
        async with self._within("to stand still", self._wait_s):
            await super()._freeze()
            self._channel.hold()
            await self._machine.stop()

    async def _thaw(self) -> None:
        async with self._within("to go on", self._wait_s):
            await self._machine.go_on()
            await self._tell(self._wait_s)
            await super()._thaw()

    # ----------------------------------------------------------------------------------------------------------------

    async def _copy(self) -> Frozen:
        async with self._within("to be copied", self._host.config.copy_timeout_s):
            ram, devices = await self._machine.copy()
        return Frozen(self._disk, self._machine.shape, ram, devices, self._channel.next_id)

    async def _tell(self, wait_s: float) -> None:
        env = {**self._disk.env, **self._host.config.env}
        await self._channel.resume(self._spec.resources.pids, self.id, env, wait_s)

    def _first_words(self, start: Fresh) -> Boot:
        image, shape = start.disk.image, start.shape
        numbers = (shape.disk_mb << 20, shape.memory_mb << 20, image.uid, image.gid)
        return Boot(start.kernel, start.hints, [*map(str, numbers), image.workspace])

    def _owner(self) -> Owner:
        user = self._host.config.first_uid + self._number % _UIDS
        if self._host.groups is None:
            return Owner(user, user, ())
        memory_mb = (self._machine.shape.ram_bytes >> 19) + HOST_OVERHEAD_MB  # twice: see qemu.ram
        limits = Resources(memory_mb=memory_mb, pids=_THREADS, cpus=self._spec.resources.cpus)
        return Owner(user, user, self._host.groups.add(str(self._number), limits))

    @asynccontextmanager
    async def _within(self, what: str, wait_s: float) -> AsyncGenerator[None]:
        """The channel's own deadlines stand still with the machine; this one does not."""
        try:
            async with asyncio.timeout(wait_s):
                yield
        except TimeoutError:
            raise DeadlineExceeded(f"machine {self.id} {what}", wait_s) from None

    async def _end(self) -> None:
        self._channel.close()
        await self._machine.end(self._host.config.stop_timeout_s)
        if self._host.groups is not None:
            self._host.groups.remove(str(self._number))
        self._log.unlink(missing_ok=True)
        self._host.forget(self._number)


def _gist(log: Path) -> str:
    """What the emulator and our own process 1 said; where they said nothing, the end of what the kernel did."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    own = [line for line in lines if line and not line.startswith("[")]
    return " ".join(own)[:300] or " ".join(lines)[-500:] or "nothing"


def shape_of(resources: Resources, config: QemuConfig) -> Shape:
    """The size of a machine for these limits. What is left of `cpus` after whole processors is the emulator's quota."""
    return Shape(resources.memory_mb, math.ceil(resources.cpus), resources.disk_mb, config.accel)
