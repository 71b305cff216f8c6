"""What a virtual machine is to the sandbox in it, and how its process is confined on the host.

Owns the records that a machine is started from, the protocol its two kinds (`qemu`, `firecracker`) keep, and `spawn`,
which starts their processes: each as a user of its own, in a network namespace and control group of its own, with no
descriptor but those it is handed, dying with the calling thread. Knows neither QEMU nor Firecracker, nor sandboxes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from etude.environments import child
from etude.environments.child import FIRST_FD
from etude.environments.vm.kernel import Kernel
from etude.environments.vm.ram import Ram
from etude.errors import DeadlineExceeded, MissingDependency

KVM = Path("/dev/kvm")
KERNEL_WORDS = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off cryptomgr.notests random.trust_cpu=on"
"""For the guest's kernel, whatever it runs on."""
SERIAL_LINE = 0
"""In the place of a vsock port: the agent's line is a virtio-serial port."""


@dataclass(frozen=True)
class MachineShape:
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

    def command_line(self, *own: str) -> str:
        return " ".join([KERNEL_WORDS, *own, *self.hints, "rdinit=/guest", "--", "boot", *self.arguments])


@dataclass(frozen=True)
class MachineSnapshot:
    """A machine that stood still: its memory, and the state of all else."""

    ram: Ram
    devices: bytes


@dataclass(frozen=True)
class ProcessOwner:
    """Who a machine's process is on the host, and the cgroup.procs files it writes itself to."""

    uid: int
    gid: int
    joins: Sequence[Path]


class Machine(Protocol):
    """One machine on one image, made but not yet started. Any method but `end` may raise SandboxError."""

    shape: MachineShape

    @property
    def pid(self) -> int | None:
        """Of the process that is the machine, while it runs."""
        ...

    @property
    def guest_port(self) -> int:
        """Where its agent waits for calls: a vsock port, or SERIAL_LINE."""
        ...

    @property
    def keeps_line(self) -> bool:
        """Whether the line to the agent outlives a `pause`. If not, hang up before, and ask for a new one after."""
        ...

    @property
    def host_memory_mb(self) -> int:
        """What its process may take of the host's memory at most."""
        ...

    async def start(self, source: Boot | MachineSnapshot, owner: ProcessOwner) -> None:
        """Start it, at the kernel's first instruction or where the copied machine stood. It runs at once: the agent
        of a copy must hear `resume` before anything else."""
        ...

    async def line(self) -> socket.socket:
        """A line to the agent, once it answers. Has no deadline of its own."""
        ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def copy(self) -> MachineSnapshot:
        """Of a machine that stands still."""
        ...

    async def end(self, timeout_s: float) -> None:
        """Kill it: there is nothing in it that a shutdown would save. Safe to call twice."""
        ...


def need_kvm(otherwise: str) -> None:
    """Raise MissingDependency where virtualization cannot be used. That it can, only a probe proves."""
    if not os.access(KVM, os.R_OK | os.W_OK):
        raise MissingDependency(
            f"{KVM} cannot be opened: load kvm_intel or kvm_amd on the host and run as root, or {otherwise}"
        )


def spawn(
    guest: Path, owner: ProcessOwner, command: Sequence[str], fds: Iterable[int], log: Path, kvm: bool, file_max: int
) -> int:
    """Start a machine's process, confined (see guest/emulate.c); its id.

    It gets `fds` from FIRST_FD on, and can write no file beyond `file_max` bytes. What it says goes to `log`.
    """
    given = [*fds]
    argv = [str(guest), "emulate", str(os.getpid()), str(owner.uid), str(owner.gid)]
    argv += [str(FIRST_FD + len(given) - 1), str(file_max), *(["-k"] if kvm else [])]
    argv += [argument for path in owner.joins for argument in ("-j", str(path))]
    with log.open("ab") as said:
        return child.spawn([*argv, "--", *command], given, said.fileno())


async def kill(pid: int, name: str, timeout_s: float) -> None:
    """End the process of machine `name`, and wait for it."""
    with contextlib.suppress(ProcessLookupError):  # someone in this process reaps every child
        os.kill(pid, signal.SIGKILL)
    if not await child.ended(pid, timeout_s):
        raise DeadlineExceeded(f"the process of machine {name} to end", timeout_s)


def bytes_file(content: bytes) -> int:
    """An open file without a name that holds this; the caller closes it."""
    fd = os.memfd_create("etude-devices", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
