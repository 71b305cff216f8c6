"""What all backends of virtual machines do alike: a sandbox is a machine with a kernel of its own.

Owns the machines of one process, their snapshots, and the templates: for each image and size one machine is booted,
its memory copied, and every sandbox of that kind starts from the copy, in a tenth of the time. A machine maps the copy
and owns only the pages it changes, whether it starts from a template or from a snapshot of a running sandbox; so one
way of copying serves both, and neither needs a second kind of machine.

The machine sees its image read-only, an overlay in its own memory, and a line to its agent; it has no network. A
snapshot holds everything: memory, processes, files. What a guest does to its own kernel stays in its machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from etude.environments import cgroups, store
from etude.environments.base import Capabilities, Resources, SandboxSpec, Snapshot, gather_all
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.images.root import image_environment
from etude.environments.images.store import ImageStore
from etude.environments.roots import HOST
from etude.environments.task_archives import archives
from etude.environments.vm.config import MachineConfig
from etude.environments.vm.kernel import guest_kernel
from etude.environments.vm.machine import Machine, MachineShape
from etude.environments.vm.sandbox import Disk, FreshMachine, FrozenMachine, MachineSandbox, Start, shape_of
from etude.errors import ConfigError, SandboxError


class MachineBackend:
    """Base of the backends. Opening one sweeps what killed ones left; the first machine to boot tells if it works."""

    def __init__(self, config: MachineConfig, name: str, accel: Literal["tcg", "kvm"]) -> None:
        self._config = config
        self._name = name
        self._accel: Literal["tcg", "kvm"] = accel
        self._cache_dir = default_cache_dir()
        self.program = guest_program(self._cache_dir)
        state_dir = config.state_dir or store.default_state_dir()
        store.sweep(state_dir)
        self._place = store.InstanceDirectory(state_dir, ())
        self.instance = self._place.instance
        self.groups: cgroups.CgroupTree | None = None
        try:
            if config.limits == "cgroup":
                self.groups = cgroups.open_tree(self.instance)
                self._place.note_groups(self.groups.bases)
        except BaseException:
            self._place.close()
            raise
        self._held = contextlib.ExitStack()
        self._disks: dict[str, Disk] = {}
        self._templates: dict[tuple[str, MachineShape], asyncio.Task[FrozenMachine]] = {}
        self.live: dict[int, MachineSandbox] = {}
        """Sandboxes that have not been destroyed."""
        self._snapshots: dict[str, FrozenMachine] = {}
        self._numbers = itertools.count(1)
        self._starts = asyncio.Semaphore(config.concurrent_starts)
        self.closed = False

    @property
    def config(self) -> MachineConfig:
        return self._config

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name=self._name, isolation="vm", snapshot="full", network=False, services=True, accel=self._accel
        )

    async def create(self, spec: SandboxSpec) -> MachineSandbox:
        """Start a sandbox. The first of an image and size boots a machine, which takes seconds; others do not.

        Raises SandboxError quoting what the machine said. Starts beyond `concurrent_starts` wait for their turn.
        """
        if self.closed:
            raise SandboxError("this backend is closed")
        if spec.egress:
            raise ConfigError(f"egress: the {self._name} backend lets nothing out; leave it out, or use `namespace`")
        store.workspace_paths(spec.files)
        disk = self._disk(spec.image)
        shape = shape_of(spec.resources, self._accel)
        start = await self._template(disk, shape) if spec.base is None else self._base(spec.base, disk, shape)
        return await self._started(spec, start)

    async def release(self, snapshot: Snapshot) -> None:
        """Forget a snapshot. Its memory goes when no sandbox that started from it is left. Safe to call twice."""
        self._snapshots.pop(snapshot.id, None)

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for template in self._templates.values():
            template.cancel()
        await asyncio.gather(*self._templates.values(), return_exceptions=True)
        try:
            await gather_all(*(box.destroy() for box in list(self.live.values())))
        finally:
            self._templates.clear()
            self._snapshots.clear()
            self._held.close()
            if self.groups is not None:
                self.groups.close()
            self._place.close()

    # for MachineSandbox ---------------------------------------------------------------------------------------------

    def place(self, number: int) -> tuple[str, Path]:
        return f"{self.instance}/{number}", self._place.root / f"{number}.log"

    def machine(self, number: int, disk: Disk, shape: MachineShape) -> Machine:
        raise NotImplementedError

    def remember(self, frozen: FrozenMachine) -> Snapshot:
        snapshot = Snapshot(f"{self.instance}/{next(self._numbers)}")
        self._snapshots[snapshot.id] = frozen
        return snapshot

    def forget(self, number: int) -> None:
        self.live.pop(number, None)

    # for a backend --------------------------------------------------------------------------------------------------

    def _hints(self, shape: MachineShape) -> Sequence[str]:
        """What a guest's kernel must be told of a machine of this kind. Blocks."""
        return ()

    # ----------------------------------------------------------------------------------------------------------------

    async def _started(self, spec: SandboxSpec, start: FrozenMachine) -> MachineSandbox:
        async with self._starts:
            sandbox = self._new(spec, start)
            try:
                await sandbox.boot(start)
                await sandbox.unpack(archives(spec.files))
            except BaseException as error:
                await sandbox.destroy()
                if isinstance(error, OSError):
                    raise SandboxError(f"cannot start sandbox {sandbox.id}: {error}") from error
                raise
        return sandbox

    def _new(self, spec: SandboxSpec, start: Start) -> MachineSandbox:
        if self.closed:
            raise SandboxError("this backend is closed")
        number = next(self._numbers)
        sandbox = self.live[number] = MachineSandbox(self, number, spec, start)
        return sandbox

    def _base(self, base: Snapshot, disk: Disk, shape: MachineShape) -> FrozenMachine:
        frozen = self._snapshots.get(base.id)
        if frozen is None:
            raise SandboxError(f"no snapshot {base.id}: it was released, or another backend made it")
        if frozen.disk is not disk:
            raise ConfigError(f"image: the snapshot {base.id} was not taken on it; name its own image")
        if frozen.shape != shape:
            raise ConfigError(
                f"resources: a machine keeps the size it was copied with: {frozen.shape.memory_mb} MB of memory, "
                f"{frozen.shape.disk_mb} MB of disk, {frozen.shape.cpus} processors; ask for that"
            )
        return frozen

    def _disk(self, image: str) -> Disk:
        name = (self.config.image or "") if image == HOST else image
        if not name:
            raise ConfigError(
                "image: a virtual machine cannot show the host's toolchain; name an image in the task, or one for all "
                "tasks that name none with `image` in the environment config"
            )
        images = ImageStore(self.config.images)
        found = images.get(name)
        if found.id not in self._disks:
            if not found.path.is_file():
                raise ConfigError(f"image {name}: machines start from erofs images; add it again in that form")
            if not found.workspace.isprintable() or set(found.workspace) & set(" \"'"):
                raise ConfigError(f"image {name}: no machine can be told of the directory {found.workspace!r}")
            self._held.enter_context(images.using(found))
            fd = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
            self._held.callback(os.close, fd)
            self._disks[found.id] = Disk(found, fd, image_environment(found.uid, found.env))
        return self._disks[found.id]

    async def _template(self, disk: Disk, shape: MachineShape) -> FrozenMachine:
        """The copy that machines of this image and size start from; booted now where there is none yet."""
        key = disk.image.id, shape
        task = self._templates.pop(key, None)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.get_running_loop().create_task(self._boot_template(disk, shape))
        self._templates[key] = task  # the last used at the end
        for old in list(self._templates)[: -self.config.templates]:
            if self._templates[old].done():
                del self._templates[old]
        return await asyncio.shield(task)

    async def _boot_template(self, disk: Disk, shape: MachineShape) -> FrozenMachine:
        kernel = await asyncio.to_thread(guest_kernel, self._cache_dir, self.program)
        resources = Resources(memory_mb=shape.memory_mb, disk_mb=shape.disk_mb, cpus=shape.cpus)
        start = FreshMachine(disk, shape, kernel, await asyncio.to_thread(self._hints, shape))
        sandbox = self._new(SandboxSpec(resources=resources), start)
        try:
            await sandbox.boot(start)
            await sandbox.exec(self.config.warm_up, timeout_s=self.config.boot_timeout_s)
            return await sandbox.freeze()
        finally:
            await sandbox.destroy()
