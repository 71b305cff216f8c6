"""One machine of Firecracker's: what it is asked to be, its start, its end.

Owns the requests that make a machine (of one read-only disk, a vsock device, no network) and what its process may
touch: it is confined by `vm.machine.spawn`, and filters its own system calls. Firecracker takes paths, not descriptors,
so it is told the paths of its descriptors: nothing is opened by a name of the host's file system, and all machines know
their disk and their vsock by the same paths, as a machine that is started from another's memory must. Only its two
sockets have names, in a directory of its own. It dies with the calling thread. Knows nothing of sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import stat
import subprocess
from pathlib import Path

from etude.environments.child import FIRST_FD
from etude.environments.firecracker.api import Api
from etude.environments.vm.machine import Boot, MachineShape, MachineSnapshot, ProcessOwner, bytes_file, kill, spawn
from etude.environments.vm.ram import Ram
from etude.errors import MissingDependency, SandboxError

PROGRAM = "firecracker"
OLDEST = (1, 8)
"""Since then the guest's kernel finds its devices by ACPI; ours is told of them in no other way."""
MOST_CPUS = 32
RELEASES = "https://github.com/firecracker-microvm/firecracker/releases"
_GUEST_PORT = 512
_GUEST_CID = 3
"""Any number: every machine has a vsock of its own, on which there is nobody else."""
_DIRECTORY, _DISK, _MEMORY, _STATE, _FIRST, _SECOND = range(FIRST_FD, FIRST_FD + 6)
"""Its descriptors: the directory of its sockets, the image, the files it writes copies into; the last two, a kernel and
its initial file system, or the state and the memory to start from."""
_API_NAME, _LINE_NAME = "api", "line"
_OVERHEAD_MB = 64
_POLL_S = 0.005
_ANSWER_MAX = 32
_WORDS = ("reboot=k", "i8042.noaux", "i8042.nomux", "i8042.dumbkbd")


class FirecrackerMachine:
    """See vm.machine.Machine. `name` is seen by `ps` and by `leftovers`; `directory` is made, and removed at the end.

    The guest's console, and what Firecracker complains of, go to `log`.
    """

    guest_port = _GUEST_PORT
    keeps_line = False

    def __init__(
        self, name: str, shape: MachineShape, program: str, guest: Path, disk: int, log: Path, directory: Path
    ) -> None:
        self.name = name
        self.shape = shape
        self._program = program
        self._guest = guest
        self._disk = disk
        self._log = log
        self._directory = directory
        self._files = contextlib.ExitStack()
        self._pid: int | None = None
        self._api: Api | None = None
        self._place = self._memory = self._state = -1
        self._sockets: dict[str, int] = {}
        self._ram: Ram | None = None

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def host_memory_mb(self) -> int:
        return 3 * (self.shape.ram_bytes >> 20) + _OVERHEAD_MB  # twice: see vm.ram; and once written out for a copy

    async def start(self, source: Boot | MachineSnapshot, owner: ProcessOwner) -> None:
        self._make_place(owner)
        self._memory = self._keep(os.memfd_create("etude-written", os.MFD_CLOEXEC))
        self._state = self._keep(os.memfd_create("etude-written", os.MFD_CLOEXEC))
        self._ram = source.ram if isinstance(source, MachineSnapshot) else None
        with contextlib.ExitStack() as handed:
            files = _files(source, handed)
            descriptors = [self._place, self._disk, self._memory, self._state, *files]
            limit = self.shape.ram_bytes + (64 << 20)
            self._pid = spawn(self._guest, owner, self._command(), descriptors, self._log, True, limit)
        api = await self._made(_API_NAME)
        while not _listening(api):
            self._check_alive()
            await asyncio.sleep(_POLL_S)
        self._api = Api(api, self.name)
        if isinstance(source, Boot):
            await self._boot(source)
        else:
            backend = {"backend_type": "File", "backend_path": _at(_SECOND)}
            await self._ask("PUT", "/snapshot/load", snapshot_path=_at(_FIRST), mem_backend=backend, resume_vm=True)

    async def line(self) -> socket.socket:
        """Calls the agent, again and again until it listens."""
        place = await self._made(_LINE_NAME)
        while True:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            line.setblocking(False)
            try:
                if await _called(line, place):
                    return line
            except BaseException:
                line.close()
                raise
            line.close()
            self._check_alive()
            await asyncio.sleep(_POLL_S)

    async def pause(self) -> None:
        await self._ask("PATCH", "/vm", state="Paused")

    async def resume(self) -> None:
        await self._ask("PATCH", "/vm", state="Resumed")

    async def copy(self) -> MachineSnapshot:
        body = {"snapshot_type": "Full", "snapshot_path": _at(_STATE), "mem_file_path": _at(_MEMORY)}
        try:
            await self._ask("PUT", "/snapshot/create", **body)
            state = os.pread(self._state, os.fstat(self._state).st_size, 0)
            return MachineSnapshot(await asyncio.to_thread(Ram.written, self._memory, self.shape.ram_bytes), state)
        finally:
            if self._memory >= 0:  # else it has been ended meanwhile
                os.ftruncate(self._memory, 0)
                os.ftruncate(self._state, 0)

    async def end(self, timeout_s: float) -> None:
        if self._api is not None:
            await self._api.close()
            self._api = None
        if self._pid is not None:
            await kill(self._pid, self.name, timeout_s)
            self._pid = None
        self._ram = None
        self._place = self._memory = self._state = -1
        self._sockets.clear()
        self._files.close()

    # ----------------------------------------------------------------------------------------------------------------

    def _make_place(self, owner: ProcessOwner) -> None:
        self._directory.mkdir(mode=0o700)
        self._files.callback(shutil.rmtree, self._directory, ignore_errors=True)
        if os.geteuid() == 0:
            os.chown(self._directory, owner.uid, owner.gid)
        self._place = self._keep(os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    def _keep(self, fd: int) -> int:
        self._files.callback(os.close, fd)
        return fd

    def _command(self) -> list[str]:
        known_as = self.name.replace("/", "-")
        arguments = ["--api-sock", f"{_at(_DIRECTORY)}/{_API_NAME}", "--id", known_as, "--level", "Warning"]
        return [self._program, *arguments, "--", self.name]  # the last is for whoever reads the process list

    async def _boot(self, source: Boot) -> None:
        size_mb = self.shape.ram_bytes >> 20
        await self._ask("PUT", "/machine-config", vcpu_count=self.shape.cpus, mem_size_mib=size_mb, smt=False)
        await self._ask(
            "PUT",
            "/boot-source",
            kernel_image_path=_at(_FIRST),
            initrd_path=_at(_SECOND),
            boot_args=source.command_line(*_WORDS),
        )
        await self._ask(
            "PUT",
            "/drives/disk",
            drive_id="disk",
            path_on_host=_at(_DISK),
            is_root_device=False,
            is_read_only=True,
        )
        await self._ask("PUT", "/vsock", guest_cid=_GUEST_CID, uds_path=f"{_at(_DIRECTORY)}/{_LINE_NAME}")
        await self._ask("PUT", "/actions", action_type="InstanceStart")

    async def _ask(self, method: str, path: str, **body: object) -> None:
        if self._api is None:
            raise SandboxError(f"machine {self.name} has not been started, or has been ended")
        await self._api.ask(method, path, body)

    async def _made(self, name: str) -> str:
        """A path to one of its sockets, as soon as it is there.

        By a descriptor: a path by name may be longer than a socket's can be, and in a directory of the machine's user
        could come to lead to somebody else's socket if ever its guest broke out."""
        while name not in self._sockets:
            self._check_alive()
            try:
                fd = self._keep(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._place))
            except FileNotFoundError:
                await asyncio.sleep(_POLL_S)
                continue
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise SandboxError(f"machine {self.name}: its {name!r} is no socket")
            self._sockets[name] = fd
        return _at(self._sockets[name])

    def _check_alive(self) -> None:
        try:
            if self._pid and os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return
        except ChildProcessError:
            pass  # someone in this process reaps every child; it has ended either way
        raise SandboxError(f"machine {self.name} has ended")


def _listening(place: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ours:
        return ours.connect_ex(place) == 0


async def _called(line: socket.socket, place: str) -> bool:
    """Ask for the agent's port. False where nobody listens there, which is told by hanging up."""
    loop, said = asyncio.get_running_loop(), b""
    try:
        await loop.sock_connect(line, place)
        await loop.sock_sendall(line, b"CONNECT %d\n" % _GUEST_PORT)
        while not said.endswith(b"\n") and len(said) < _ANSWER_MAX:
            more = await loop.sock_recv(line, 1)  # what comes after this line is the agent's
            if not more:
                return False
            said += more
    except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        return False
    if not re.fullmatch(rb"OK \d+\n", said):
        raise SandboxError(f"a machine's vsock answers a call with {said!r}: is it Firecracker's?")
    return True


def find_firecracker() -> str:
    """The path of a Firecracker that is not too old."""
    path = shutil.which(PROGRAM)
    remedy = (
        f"take a release for this processor from {RELEASES}, and put its program as `{PROGRAM}` into "
        "/usr/local/bin or elsewhere on PATH"
    )
    if path is None:
        raise MissingDependency(f"no {PROGRAM} to run virtual machines with: {remedy}")
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependency(f"{path} cannot be run ({error}): {remedy}") from None
    version = re.search(r"Firecracker v(\d+)\.(\d+)", said)
    if version is None:
        raise MissingDependency(f"{path} does not say that it is Firecracker ({said[:100]!r}): {remedy}")
    if (int(version[1]), int(version[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise MissingDependency(f"{path} is {version[0]}, and machines need {oldest} or newer: {remedy}")
    return path


def _at(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


def _files(source: Boot | MachineSnapshot, handed: contextlib.ExitStack) -> list[int]:
    """Opened, each to be closed with `handed`."""
    if isinstance(source, MachineSnapshot):
        state = bytes_file(source.devices)
        handed.callback(os.close, state)
        return [state, source.ram.fd]
    opened = []
    for path in (source.kernel.image, source.kernel.initial):
        opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        handed.callback(os.close, opened[-1])
    return opened
