"""One sandbox in a virtual machine of its own.

Owns the life of the machine: its start (from a kernel, or from another machine's memory), standing still, being copied,
its end. After every start and every pause the agent is told, before anything else, which sandbox it is and what time
it is, and given entropy of its own (see guest/resume.c): copies of one memory must not share random numbers. Its
processes are stopped by the agent before the machine is, so that nothing runs ahead of that; and where the line to the
agent does not outlive that, it is hung up in between. What runs the machine, `vm.machine` hides.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from etude.environments.base import Backend, Resources, SandboxSpec, Snapshot
from etude.environments.cgroups import CgroupTree
from etude.environments.channel import Channel
from etude.environments.guest_sandbox import GuestSandbox
from etude.environments.images.store import Image
from etude.environments.starving import processors_in_use, starved_of
from etude.environments.vm.config import MachineConfig
from etude.environments.vm.kernel import Kernel
from etude.environments.vm.machine import Boot, Machine, MachineShape, MachineSnapshot, ProcessOwner
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
class FrozenMachine:
    """A machine that stood still: what others start from. Lives as long as anybody refers to it."""

    disk: Disk
    shape: MachineShape
    copy: MachineSnapshot
    next_id: int
    """Of its agent's requests: it still knows the earlier ones."""


@dataclass(frozen=True)
class FreshMachine:
    """A machine that has yet to boot."""

    disk: Disk
    shape: MachineShape
    kernel: Kernel
    hints: Sequence[str]
    """For the kernel, of this machine's clock."""
    next_id: int = 1


Start = FrozenMachine | FreshMachine


class MachineHost(Backend, Protocol):
    """What a sandbox asks of its backend."""

    @property
    def config(self) -> MachineConfig: ...

    groups: CgroupTree | None

    def place(self, number: int) -> tuple[str, Path]:
        """The name of sandbox `number`, and its log."""
        ...

    def machine(self, number: int, disk: Disk, shape: MachineShape) -> Machine: ...

    def remember(self, frozen: FrozenMachine) -> Snapshot: ...

    def forget(self, number: int) -> None: ...


class MachineSandbox(GuestSandbox):
    """See base.Sandbox for the meaning of its methods; made by a backend of machines."""

    def __init__(self, host: MachineHost, number: int, spec: SandboxSpec, start: Start) -> None:
        name, self._log = host.place(number)
        super().__init__(host, Channel(name, start.next_id), name, spec, host.config.file_timeout_s)
        self._host = host
        self._number = number
        self._disk = start.disk
        self._machine = host.machine(number, start.disk, start.shape)

    async def boot(self, start: Start) -> None:
        """Start the machine, and wait until its agent has answered."""
        config, first = self._host.config, isinstance(start, FreshMachine)
        wait_s = config.boot_timeout_s if first else config.start_timeout_s
        try:
            async with self._within("to start", wait_s):
                source = self._first_words(start) if isinstance(start, FreshMachine) else start.copy
                await self._machine.start(source, self._owner())
                if first:
                    await self._connect()
                    await self._channel.ready(wait_s)
                    await self._tell(wait_s)
                else:
                    await self._wake(wait_s)
        except (SandboxError, DeadlineExceeded) as error:
            why = f"machine {self.id} did not start with accel {self._machine.shape.accel!r} ({error}); it said"
            raise SandboxError(f"{why}: {_gist(self._log)}; {_ADVICE}") from None

    async def freeze(self) -> FrozenMachine:
        """A copy of the machine as it stands."""
        async with self._stopped():
            return await self._copy()

    # for GuestSandbox -----------------------------------------------------------------------------------------------

    async def _capture(self) -> Snapshot:
        return self._host.remember(await self._copy())

    async def _starving(self) -> str:
        """Its memory the machine keeps apart from its commands'; not its processors."""
        taken = await processors_in_use(self._machine.pid) if self._machine.pid is not None else 0.0
        return starved_of(taken, self._spec.resources.cpus)

    async def _freeze(self) -> None:
        async with self._within("to stand still", self._wait_s):
            await self._channel.freeze(self._wait_s, hold=True)
            if not self._machine.keeps_line:
                self._channel.hang_up()
            await self._machine.pause()

    async def _thaw(self) -> None:
        await self._wholly(self._resume_machine())

    @asynccontextmanager
    async def _heard(self) -> AsyncGenerator[None]:
        await self._wholly(self._resume_machine(thaw=False))
        try:
            yield
        finally:
            await self._freeze()

    async def _wholly(self, going_on: Coroutine[None, None, None]) -> None:
        going = asyncio.get_running_loop().create_task(going_on)
        try:
            await asyncio.shield(going)
        except asyncio.CancelledError:  # whoever has given up leaves no machine half awake
            await asyncio.wait({going})
            raise

    async def _resume_machine(self, thaw: bool = True) -> None:
        """The machine, and its commands where they are to `thaw` as well."""
        try:
            async with self._within("to go on", self._wait_s):
                await self._machine.resume()
                await self._wake(self._wait_s, thaw)
        except (SandboxError, DeadlineExceeded) as error:
            self._channel.close(f"it did not go on after it stood still ({error})")
            raise

    # ----------------------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        line = await self._machine.line()
        await asyncio.get_running_loop().create_unix_connection(lambda: self._channel, sock=line)

    async def _wake(self, wait_s: float, thaw: bool = True) -> None:
        """Let the agent of a machine that stood still know who it is now, and go on. Has no deadline of its own."""
        if not self._machine.keeps_line:
            await self._call(wait_s)
        else:
            if not self._channel.connected:
                await self._connect()
            await self._tell(wait_s)
        if thaw:
            await self._channel.thaw(wait_s)

    async def _call(self, wait_s: float) -> None:
        while True:
            self._channel.hang_up()
            await self._connect()
            try:
                return await self._tell(wait_s)
            except ConnectionResetError:
                continue  # by the guest's kernel, which learned late that all earlier lines are dead

    async def _copy(self) -> FrozenMachine:
        async with self._within("to be copied", self._host.config.copy_timeout_s):
            copy = await self._machine.copy()
        return FrozenMachine(self._disk, self._machine.shape, copy, self._channel.next_id)

    async def _tell(self, wait_s: float) -> None:
        env = {**self._disk.env, **self._host.config.env}
        await self._channel.resume(self._spec.resources.pids, self.id, env, wait_s)

    def _first_words(self, start: FreshMachine) -> Boot:
        image, shape = start.disk.image, start.shape
        numbers = (shape.disk_mb << 20, shape.memory_mb << 20, image.uid, image.gid)
        words = [*map(str, numbers), image.workspace, str(self._machine.guest_port)]
        return Boot(start.kernel, start.hints, words)

    def _owner(self) -> ProcessOwner:
        user = self._host.config.first_uid + self._number % _UIDS
        if self._host.groups is None:
            return ProcessOwner(user, user, ())
        memory_mb, cpus = self._machine.host_memory_mb, self._spec.resources.cpus
        limits = Resources(memory_mb=memory_mb, pids=_THREADS, cpus=cpus)
        return ProcessOwner(user, user, self._host.groups.add(str(self._number), limits))

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
            await asyncio.to_thread(self._host.groups.remove, str(self._number))
        self._log.unlink(missing_ok=True)
        self._host.forget(self._number)


def _gist(log: Path) -> str:
    """What the machine's process and our process 1 said; where they said nothing, the end of what the kernel did."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()] if log.exists() else []
    own = [line for line in lines if line and not line.startswith("[")]
    return " ".join(own)[:300] or " ".join(lines)[-500:] or "nothing"


def shape_of(resources: Resources, accel: Literal["tcg", "kvm"]) -> MachineShape:
    """The size of a machine for these limits. What is left of `cpus` after whole processors is its process's quota."""
    return MachineShape(resources.memory_mb, math.ceil(resources.cpus), resources.disk_mb, accel)
