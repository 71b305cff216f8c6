"""One emulator process: its command line, its start, its end.

Owns what a machine consists of (one processor architecture, a read-only disk, a serial line to its agent, no network)
and what its process may touch: it runs as a user of its own, in a network namespace of its own, under QEMU's own
system-call filter, and everything it needs from the file system it is handed as an open descriptor. It dies with the
calling thread. Knows nothing of sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etude.environments.child import ended
from etude.environments.qemu.kernel import Kernel
from etude.environments.qemu.monitor import Monitor
from etude.environments.qemu.ram import Ram
from etude.errors import DeadlineExceeded, MissingDependency, SandboxError

PROGRAM = "qemu-system-x86_64"
_AGENT, _MONITOR, _DISK, _RAM, _SAVED, _FIRST, _SECOND = range(3, 10)
"""The emulator's descriptors. The last two: a kernel and its initial file system, or the devices to restore."""
_ABOVE_ALL = 64
_TRANSLATION_MB = 32
"""QEMU's cache of translated code, which by default grows to a third of a gigabyte a machine."""
HOST_OVERHEAD_MB = 128 + _TRANSLATION_MB
"""What an emulator may take beside its machine's memory."""
_THREADS = 64
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_BOOT = "console=ttyS0 quiet reboot=t panic=-1 nokaslr mitigations=off cryptomgr.notests random.trust_cpu=on"
_ACCEL = {"tcg": (f"tcg,tb-size={_TRANSLATION_MB}", "max"), "kvm": ("kvm", "host")}


@dataclass(frozen=True)
class Shape:
    """What a copied memory fixes for every machine that starts from it."""

    memory_mb: int
    cpus: int
    disk_mb: int
    accel: Literal["tcg", "kvm"]

    @property
    def ram_bytes(self) -> int:
        """What commands may take, and room for the kernel, the agent and the files that it writes."""
        return (self.memory_mb + self.disk_mb + 128) << 20


@dataclass(frozen=True)
class Boot:
    """A first start: the kernel, further words for it, and for its process 1 (see guest/boot.c)."""

    kernel: Kernel
    hints: Sequence[str]
    arguments: Sequence[str]


@dataclass(frozen=True)
class Owner:
    """Who the emulator is on the host, and the cgroup.procs files it writes itself to."""

    uid: int
    gid: int
    joins: Sequence[Path]


class Machine:
    """A started emulator. `name` is seen by `ps` and by `leftovers`."""

    def __init__(self, name: str, shape: Shape, ram: Ram, wait_s: float) -> None:
        self.name = name
        self.shape = shape
        self._ram: Ram | None = ram
        self._pid: int | None = None
        self._monitor: Monitor | None = None
        self._saved = os.memfd_create("etude-devices", os.MFD_CLOEXEC)
        # what the emulator writes through, so that both move one position
        self._saving = os.open(f"/proc/self/fd/{self._saved}", os.O_WRONLY | os.O_CLOEXEC)
        self._wait_s = wait_s

    def start(self, guest: Path, disk: int, source: Boot | bytes, owner: Owner, log: Path) -> socket.socket:
        """Start it, at the kernel's first instruction or where the devices of `source` stood. Returns the agent's line.

        `disk` is an open descriptor. A machine that is restored runs at once: its agent must hear `resume` first. What
        the emulator complains of, and at a first start the guest's console, goes to `log`.
        """
        agent, its_agent = socket.socketpair()
        monitor, its_monitor = socket.socketpair()
        assert self._ram is not None
        files = [os.dup(disk), os.dup(self._ram.fd), os.dup(self._saving)]
        try:
            files += _files(source)
            descriptors = [its_agent.fileno(), its_monitor.fileno(), *files]
            arguments = self._arguments(source)
            self._pid = _spawn(guest, owner, [find_qemu(), *arguments], descriptors, log, self.shape.accel)
        except BaseException:
            agent.close()
            monitor.close()
            raise
        finally:
            for fd in files:
                os.close(fd)
            its_agent.close()
            its_monitor.close()
        self._monitor = Monitor(monitor, self.name, self._wait_s)
        agent.setblocking(False)
        return agent

    async def stop(self) -> None:
        await self._ask("stop")

    async def go_on(self) -> None:
        await self._ask("cont")

    async def copy(self) -> tuple[Ram, bytes]:
        """The memory, and the state of all else, of a machine that stands still."""
        assert self._pid is not None
        assert self._ram is not None
        os.lseek(self._saving, 0, os.SEEK_SET)
        os.ftruncate(self._saved, 0)
        await self._ask("xen-save-devices-state", filename="/dev/fdset/2", live=False)
        size = os.fstat(self._saved).st_size
        devices = os.pread(self._saved, size, 0)
        return await asyncio.to_thread(self._ram.copy_of, self._pid), devices

    async def end(self, timeout_s: float) -> None:
        """Kill it: there is nothing in it that a shutdown would save. Safe to call twice."""
        if self._monitor is not None:
            self._monitor.close()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):  # someone in this process reaps every child
                os.kill(self._pid, signal.SIGKILL)
            if not await ended(self._pid, timeout_s):
                raise DeadlineExceeded(f"the process of machine {self.name} to end", timeout_s)
            self._pid = None
        self._ram = None
        if self._saved >= 0:
            os.close(self._saved)
            os.close(self._saving)
            self._saved = -1

    # ----------------------------------------------------------------------------------------------------------------

    async def _ask(self, command: str, **arguments: object) -> None:
        if self._monitor is None:
            raise SandboxError(f"machine {self.name} has not been started")
        await self._monitor.ask(command, **arguments)

    def _arguments(self, source: Boot | bytes) -> list[str]:
        accel, cpu = _ACCEL[self.shape.accel]
        size = self.shape.ram_bytes
        arguments = ["-name", self.name, "-M", "microvm,memory-backend=ram,suppress-vmdesc=on", "-accel", accel]
        arguments += ["-cpu", cpu, "-smp", str(self.shape.cpus), "-m", f"{size >> 20}M", "-sandbox", _SANDBOX]
        arguments += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        arguments += ["-global", "migration.send-configuration=off"]
        arguments += ["-object", f"memory-backend-file,id=ram,size={size},mem-path=/proc/self/fd/{_RAM},share=off"]
        arguments += ["-add-fd", f"fd={_DISK},set=1", "-add-fd", f"fd={_SAVED},set=2"]
        arguments += ["-drive", "id=disk,if=none,format=raw,readonly=on,file=/dev/fdset/1"]
        arguments += ["-device", "virtio-blk-device,drive=disk", "-device", "virtio-serial-device,max_ports=2"]
        arguments += ["-chardev", f"socket,id=agent,fd={_AGENT}", "-device", "virtserialport,chardev=agent,name=agent"]
        arguments += ["-chardev", f"socket,id=monitor,fd={_MONITOR}", "-mon", "chardev=monitor,mode=control"]
        if isinstance(source, bytes):
            return [*arguments, "-incoming", f"fd:{_FIRST}", "-serial", "null"]
        words = " ".join([_BOOT, *source.hints, "rdinit=/guest", "--", "boot", *source.arguments])
        arguments += ["-kernel", f"/proc/self/fd/{_FIRST}", "-initrd", f"/proc/self/fd/{_SECOND}", "-append", words]
        return [*arguments, "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]


def clock_hints(guest: Path, accel: str) -> tuple[str, ...]:
    """What the guest's kernel must believe of its clock: an emulated one's has nothing to measure it by, and hangs."""
    if accel != "tcg":
        return ()
    measured = subprocess.run([str(guest), "ticks"], capture_output=True, text=True, timeout=10)
    if not measured.stdout.strip().isdigit():
        raise MissingDependency("this processor has no time stamp counter to emulate one with: use an x86-64 machine")
    return (f"tsc_early_khz={measured.stdout.strip()}",)


def find_qemu() -> str:
    """The emulator's path."""
    path = shutil.which(PROGRAM)
    if path is None:
        raise MissingDependency(f"no {PROGRAM} to run virtual machines with: apt-get install -y qemu-system-x86 lz4")
    return path


def _files(source: Boot | bytes) -> list[int]:
    if not isinstance(source, bytes):
        return [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (source.kernel.image, source.kernel.initial)]
    devices = os.memfd_create("etude-devices", os.MFD_CLOEXEC)
    os.write(devices, source)
    os.lseek(devices, 0, os.SEEK_SET)
    return [devices]


def _spawn(guest: Path, owner: Owner, command: Sequence[str], fds: Iterable[int], log: Path, accel: str) -> int:
    argv = [str(guest), "emulate", str(os.getpid()), str(owner.uid), str(owner.gid)]
    # first out of the way of the numbers they shall have
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE_ALL) for fd in fds]
    try:
        argv.append(str(_AGENT + len(high) - 1))
        if accel == "kvm":
            argv.append("-k")
        argv += [argument for path in owner.joins for argument in ("-j", str(path))]
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high, _AGENT)
        ]
        actions += [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        defaults = [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE]
        return os.posix_spawn(
            argv[0], [*argv, "--", *command], {}, file_actions=actions, setpgroup=0, setsigmask=[], setsigdef=defaults
        )
    finally:
        for fd in high:
            os.close(fd)
