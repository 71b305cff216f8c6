"""One machine of QEMU's: its command line, its start, its end.

Owns what a machine consists of (one processor architecture, a read-only disk, a serial line to its agent, no network)
and what its process may touch: it is confined by `vm.machine.spawn`, filters its own system calls, and everything it
needs from the file system it is handed as an open descriptor. Knows nothing of sandboxes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path

from etude.environments.child import FIRST_FD
from etude.environments.qemu.monitor import Monitor
from etude.environments.vm.machine import (
    SERIAL_LINE,
    Boot,
    MachineShape,
    MachineSnapshot,
    ProcessOwner,
    bytes_file,
    kill,
    spawn,
)
from etude.environments.vm.ram import Ram
from etude.errors import MissingDependency, SandboxError

PROGRAM = "qemu-system-x86_64"
_AGENT, _MONITOR, _DISK, _RAM, _SAVED, _FIRST, _SECOND = range(FIRST_FD, FIRST_FD + 7)
"""The emulator's descriptors. The last two: a kernel and its initial file system, or the devices to restore."""
_TRANSLATION_MB = 32
"""QEMU's cache of translated code, which by default grows to a third of a gigabyte a machine."""
_OVERHEAD_MB = 128 + _TRANSLATION_MB
"""What an emulator may take beside its machine's memory."""
_FILE_MAX = 64 << 20
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
_ACCEL = {"tcg": (f"tcg,tb-size={_TRANSLATION_MB}", "max"), "kvm": ("kvm", "host")}


class QemuMachine:
    """See vm.machine.Machine. `name` is seen by `ps` and by `leftovers`.

    What the emulator complains of, and at a first start the guest's console, goes to `log`.
    """

    guest_port = SERIAL_LINE
    keeps_line = True

    def __init__(self, name: str, shape: MachineShape, guest: Path, disk: int, log: Path, wait_s: float) -> None:
        self.name = name
        self.shape = shape
        self._guest = guest
        self._disk = disk
        self._log = log
        self._wait_s = wait_s
        self._ram: Ram | None = None
        self._pid: int | None = None
        self._agent: socket.socket | None = None
        self._monitor: Monitor | None = None
        self._saved = os.memfd_create("etude-devices", os.MFD_CLOEXEC)
        # what the emulator writes through, so that both move one position
        self._saving = os.open(f"/proc/self/fd/{self._saved}", os.O_WRONLY | os.O_CLOEXEC)

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def host_memory_mb(self) -> int:
        return (self.shape.ram_bytes >> 19) + _OVERHEAD_MB  # twice: see vm.ram

    async def start(self, source: Boot | MachineSnapshot, owner: ProcessOwner) -> None:
        self._ram = source.ram if isinstance(source, MachineSnapshot) else Ram(self.shape.ram_bytes)
        agent, its_agent = socket.socketpair()
        monitor, its_monitor = socket.socketpair()
        files = [os.dup(self._disk), os.dup(self._ram.fd), os.dup(self._saving)]
        try:
            files += _files(source)
            descriptors = [its_agent.fileno(), its_monitor.fileno(), *files]
            command = [find_qemu(), *self._arguments(source)]
            kvm = self.shape.accel == "kvm"
            self._pid = spawn(self._guest, owner, command, descriptors, self._log, kvm, _FILE_MAX)
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
        self._agent = agent

    async def line(self) -> socket.socket:
        agent, self._agent = self._agent, None
        if agent is None:
            raise SandboxError(f"machine {self.name} has one line to its agent, which is taken")
        return agent

    async def pause(self) -> None:
        await self._ask("stop")

    async def resume(self) -> None:
        await self._ask("cont")

    async def copy(self) -> MachineSnapshot:
        assert self._pid is not None
        assert self._ram is not None
        os.lseek(self._saving, 0, os.SEEK_SET)
        os.ftruncate(self._saved, 0)
        await self._ask("xen-save-devices-state", filename="/dev/fdset/2", live=False)
        size = os.fstat(self._saved).st_size
        devices = os.pread(self._saved, size, 0)
        return MachineSnapshot(await asyncio.to_thread(self._ram.copy_of, self._pid), devices)

    async def end(self, timeout_s: float) -> None:
        if self._monitor is not None:
            self._monitor.close()
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        if self._pid is not None:
            await kill(self._pid, self.name, timeout_s)
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

    def _arguments(self, source: Boot | MachineSnapshot) -> list[str]:
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
        if isinstance(source, MachineSnapshot):
            return [*arguments, "-incoming", f"fd:{_FIRST}", "-serial", "null"]
        arguments += ["-kernel", f"/proc/self/fd/{_FIRST}", "-initrd", f"/proc/self/fd/{_SECOND}"]
        arguments += ["-append", source.command_line("reboot=t")]
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


def _files(source: Boot | MachineSnapshot) -> list[int]:
    if isinstance(source, MachineSnapshot):
        return [bytes_file(source.devices)]
    return [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (source.kernel.image, source.kernel.initial)]
