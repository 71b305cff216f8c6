"""The `namespace` backend: a sandbox is a set of Linux namespaces around an overlay, with cgroup limits.

Owns the life of such sandboxes: their start (the native launcher, then bubblewrap, then the guest agent as process 1),
their snapshots and their end. What a command can write is /workspace (an overlay), and tmpfs at /tmp, HOME, /tests,
/logs and /dev/shm, all sized and gone with the sandbox; the rest is the host's toolchain, read-only, or the image
the sandbox starts on (see `root`). No network: what a sandbox may reach, it reaches through a proxy of its own, which
runs in this process and ends with it (see `egress`). No capability, system calls filtered (guest/confine.c), and the
user inside is nobody outside.
A snapshot holds /workspace and nothing else: what an agent did elsewhere never reaches a verifier that starts from it.

A namespace sandbox shares the host's kernel: it holds a misbehaving program, not an attacker with a kernel exploit.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from etude.deadlines import Wait
from etude.environments import cgroups, store
from etude.environments.base import Capabilities, Resources, SandboxSpec, Snapshot, gather_all
from etude.environments.build import default_cache_dir, guest_program
from etude.environments.channel import Channel
from etude.environments.egress.gate import open_proxy
from etude.environments.egress.policy import EgressConfig, allowing
from etude.environments.freezer import Freezer
from etude.environments.launcher import UPPER, Groups, Launcher, View
from etude.environments.plugin import BackendTable, Plugin
from etude.environments.roots import HOST, ImagesConfig, Root, Roots, open_roots
from etude.environments.spawned import SpawnedSandbox
from etude.environments.starving import processors_in_use, starved_of
from etude.environments.toolchain import SANDBOX_UID, find_toolchain
from etude.environments.trees import copy_upper, remove_tree
from etude.environments.uids import FIRST_UID, RANGES, open_uids
from etude.errors import ConfigError, DeadlineExceeded, SandboxError, SandboxSpoiled

if TYPE_CHECKING:
    from etude.environments.egress.proxy import EgressProxy, Resolver

T = TypeVar("T")


CACHED_LAYERS = 256
"""Tasks' files that are kept for the next sandbox of the same task: more than a run has tasks under way."""


class NamespaceConfig(BackendTable):
    """How namespace sandboxes are made; the defaults need root, or a delegated cgroup."""

    kind: Literal["namespace"] = "namespace"
    isolation: Literal["namespace"] = "namespace"
    state_dir: Path | None = None
    """A local directory for tasks' files and snapshots; None: /dev/shm/etude-UID. Sandboxes write elsewhere."""
    python: Path | None = None
    """The interpreter commands find as python3; None: /usr/bin/python3 if of this version, else this one's."""
    binds: dict[str, Path] = {}
    """Further host directories to show, read-only: absolute path inside -> host directory."""
    env: dict[str, str] = {}
    """Further environment variables of every command."""
    images: ImagesConfig = ImagesConfig()
    """Where images other than "host" are found."""
    egress: EgressConfig = EgressConfig()
    """What a sandbox may reach: `hosts`, where its spec names none; the rest of it in any case."""
    limits: Literal["cgroup", "rlimit"] = "cgroup"
    """`rlimit` limits memory per process and CPU not at all: weaker, for where no cgroup can be written."""
    concurrent_starts: ClassVar[int] = 8
    """More at once only wait for each other: mounts of one kernel take turns."""
    start_timeout_s: ClassVar[Wait] = Wait(30.0)
    """A start takes a tenth of a second, and a hundred at once on a busy machine some."""
    file_timeout_s: ClassVar[Wait] = Wait(30.0)
    stop_timeout_s: ClassVar[Wait] = Wait(15.0)
    disk_timeout_s: ClassVar[Wait] = Wait(120.0)
    """For copying or removing one sandbox's files, which may be a gigabyte of small ones."""


class NamespaceBackend:
    """Makes namespace sandboxes. Opening one sweeps what killed processes left, and fails if limits cannot be set."""

    def __init__(
        self,
        config: NamespaceConfig | None = None,
        resolve: Resolver | None = None,
        sweep: bool = True,
        uid_ranges: int = RANGES,
        cached_layers: int = CACHED_LAYERS,
    ) -> None:
        """`resolve` looks up the names that sandboxes ask their proxies for; None: as this machine does. Without
        `sweep` what killed processes left is let be. `uid_ranges` sandboxes have users, and so the kernel's quotas of
        a user, to themselves; more share them."""
        self.config = config or NamespaceConfig()
        self.egress: Counter[str] = Counter()
        """What became of sandboxes' requests to their proxies: "allowed", or the reason of a refusal."""
        self._resolve = resolve
        program = self._program = guest_program(default_cache_dir())
        state_dir = self.config.state_dir or store.default_state_dir()
        if sweep:
            store.sweep(state_dir)
        self.store = store.LayerStore(state_dir, cached_layers)
        self.groups: cgroups.CgroupTree | None = None
        self._roots: Roots | None = None
        try:
            self.uids = open_uids(program, self.store.root, FIRST_UID, uid_ranges)
            if self.config.limits == "cgroup":
                self.groups = cgroups.open_tree(self.store.instance)
                self.store.note_groups(self.groups.bases)
            view = View(find_toolchain(self.config.python), self.config.binds, self.config.env)
            self.launcher = Launcher(program, self.store.root, self.uids, view)
        except BaseException as error:
            self._remove_all()
            if isinstance(error, OSError):  # a write that the disk refuses names no path
                error.filename = error.filename or str(self.store.root)
            raise
        self._disk_pool = ThreadPoolExecutor(2, thread_name_prefix="etude-disk")
        self._live: dict[int, NamespaceSandbox] = {}
        self._snapshots: dict[str, tuple[Root | None, tuple[str, ...]]] = {}
        self._snapshot_ids = itertools.count(1)
        self._unused: set[Path] = set()
        """Trees of snapshots that nobody stands on; here until they are removed."""
        self._starts = asyncio.Semaphore(self.config.concurrent_starts)
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(name="namespace", isolation="namespace", snapshot="disk", network=True, services=True)

    @property
    def roots(self) -> Roots:
        """Images for its sandboxes; opened when the first asks for one."""
        if self._roots is None:
            self._roots = open_roots(self._program, self.store.root, self.config.images, tuple(self.config.binds))
        return self._roots

    async def create(self, spec: SandboxSpec) -> NamespaceSandbox:
        """Start a sandbox. Raises SandboxError quoting what the launcher or bubblewrap said.

        Starts beyond `concurrent_starts` wait for their turn; the deadline counts from there.
        """
        if self._closed:
            raise SandboxError("this backend is closed")
        proxy = self._proxy(allowing(self.config.egress, spec.egress))
        root = None if spec.image == HOST else await self.on_disk("an image to be mounted", self.roots.find, spec.image)
        return await self._create(spec, self._lowers(spec, root), root, proxy)

    async def create_build(
        self, trees: Sequence[Path], root: Root, resources: Resources, egress: EgressConfig
    ) -> NamespaceSandbox:
        """Start a sandbox in which a step of an image's build runs: `trees`, highest first, all of it writable."""
        mounted = await self.on_disk("layers to be mounted", self.roots.on, trees, root)
        return await self._create(SandboxSpec(resources=resources), (), mounted, self._proxy(egress))

    async def _create(
        self, spec: SandboxSpec, lowers: tuple[str, ...], root: Root | None, proxy: EgressProxy | None
    ) -> NamespaceSandbox:
        try:
            owner = self.uids.stored(root.owner if root else (SANDBOX_UID, SANDBOX_UID))
            disk = self.store.acquire(spec.files, lowers, owner)
        except OSError as error:
            raise SandboxError(f"cannot prepare a sandbox: {error}; is {self.store.root.parent} full?") from error
        sandbox = self._live[disk.number] = NamespaceSandbox(self, disk, spec, root, proxy)
        try:
            async with self._starts:
                await sandbox.boot()
        except BaseException as error:
            await sandbox.destroy()
            if isinstance(error, OSError):
                raise SandboxError(f"cannot start sandbox {sandbox.id}: {error}") from error
            raise
        return sandbox

    async def release(self, snapshot: Snapshot) -> None:
        """Forget a snapshot; its files go when no sandbox and no other snapshot stands on them. Safe to call twice."""
        await self.drop(self._snapshots.pop(snapshot.id, (None, ()))[1])

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await gather_all(*(box.destroy() for box in list(self._live.values())))
        finally:
            await self.on_disk("the directories of the backend to be removed", self._remove_all)
            self._disk_pool.shutdown()

    # for NamespaceSandbox -----------------------------------------------------------------------------------------

    async def remember(self, disk: store.Disk, upper: Path, first: int, root: Root | None) -> Snapshot:
        """Copy the upper of a sandbox whose range of users begins at `first` into a snapshot."""
        lowers = self.store.retain(disk, upper)
        try:
            if lowers[0] != disk.lowers[0]:
                target, shift = self.store.root / lowers[0], self.uids.shift(first)
                await self.on_disk("a snapshot to be copied", copy_upper, upper, target, shift)
        except BaseException:
            await self.drop(lowers)
            raise
        snapshot = Snapshot(f"{self.store.instance}/{next(self._snapshot_ids)}")
        self._snapshots[snapshot.id] = root, lowers
        return snapshot

    async def forget(self, disk: store.Disk, first: int) -> None:
        """Remove a sandbox's group and its hold on disk and users; its processes and mounts have ended."""
        if self.groups is not None:  # on a thread: it waits for processes that a sick disk may hold
            await asyncio.to_thread(self.groups.remove, str(disk.number))
        self.store.log(disk).unlink(missing_ok=True)
        if self._live.pop(disk.number, None) is not None:  # once, also where what follows fails and is asked for again
            self.uids.release(first)
            self._unused.update(self.store.release(disk.lowers))
        await self._remove_unused()

    async def drop(self, lowers: tuple[str, ...]) -> None:
        self._unused.update(self.store.release(lowers))
        await self._remove_unused()

    async def _remove_unused(self) -> None:
        while self._unused:
            tree = self._unused.pop()  # taken before the wait: no two remove the same one
            try:
                await self.on_disk("a snapshot to be removed", remove_tree, tree)
            except BaseException:
                self._unused.add(tree)
                raise

    async def on_disk(self, what: str, work: Callable[..., T], *arguments: object) -> T:
        """Run a tree operation on a worker thread, so that a large one does not stop the loop.

        Who is cancelled meanwhile leaves when it has ended, for what it writes cannot be removed under it.
        """
        running = asyncio.get_running_loop().run_in_executor(self._disk_pool, work, *arguments)
        try:
            done, _ = await asyncio.wait({running}, timeout=self.config.disk_timeout_s)
        except asyncio.CancelledError:
            if (await asyncio.wait({running}, timeout=self.config.disk_timeout_s))[0]:
                running.exception()  # nobody will ask for it; asyncio would log it as never retrieved
            raise
        if not done:
            raise DeadlineExceeded(what, self.config.disk_timeout_s)
        return running.result()

    # ----------------------------------------------------------------------------------------------------------------

    def _proxy(self, egress: EgressConfig) -> EgressProxy | None:
        return open_proxy(egress, self._resolve, self.egress) if egress.hosts else None

    def _lowers(self, spec: SandboxSpec, root: Root | None) -> tuple[str, ...]:
        if spec.base is None:
            return ()
        if spec.base.id not in self._snapshots:
            raise SandboxError(f"no snapshot {spec.base.id}: it was released, or another backend made it")
        of, lowers = self._snapshots[spec.base.id]
        if of != root:
            raise ConfigError(f"image: the snapshot {spec.base.id} was not taken on {spec.image!r}; name its own image")
        return lowers

    def _remove_all(self) -> None:
        if self._roots is not None:
            self._roots.close()
        if self.groups is not None:
            self.groups.close()
        self.store.close()


class NamespaceSandbox(SpawnedSandbox):
    """One sandbox; made by NamespaceBackend.create. See base.Sandbox for the meaning of its methods."""

    def __init__(
        self,
        backend: NamespaceBackend,
        disk: store.Disk,
        spec: SandboxSpec,
        root: Root | None,
        proxy: EgressProxy | None,
    ) -> None:
        name = f"{backend.store.instance}/{disk.number}"
        super().__init__(backend, Channel(name), name, spec, backend.config.file_timeout_s)
        self._own = backend
        self._disk = disk
        self._root = root
        self.proxy = proxy
        self._freezer: Freezer | None = None
        self._first = backend.uids.acquire()

    async def boot(self) -> None:
        """Spawn and wait for the guest's first words."""
        groups, log = None, self._own.store.log(self._disk)
        if (tree := self._own.groups) is not None:
            commands = tree.add(str(self._disk.number), self._spec.resources)
            self._freezer = tree.freezer(str(self._disk.number))
            groups = Groups([tree.agents], commands)

        def spawn(control: socket.socket) -> int:
            disk, resources, way = self._disk, self._spec.resources, self.proxy is not None
            start = self._own.launcher.spawn
            return start(self.id, disk.lowers, resources, groups, control, log, self._first, self._root, way)

        try:
            await self._begin(spawn, self._own.config.start_timeout_s)
        except SandboxError:
            said = log.read_text(errors="replace").strip()[-500:]
            raise SandboxError(
                f"sandbox {self.id} did not start: {said or 'its launcher ended silently'}; "
                "`etude environments doctor` tells what is missing"
            ) from None

    async def call(self, verb: str, **arguments: Any) -> Any:
        value = await super().call(verb, **arguments)
        if verb != "metrics" or self._own.groups is None:
            return value
        try:
            return replace(value, memory_bytes=self._own.groups.memory(str(self._disk.number)))
        except OSError as error:
            raise SandboxError(f"sandbox {self.id}: cannot read what memory it uses: {error}") from error

    async def copy_changes(self, target: Path) -> None:
        """Copy what the step of a build has changed anywhere to `target`, its owners in the image's own numbers."""
        async with self._stopped():
            await self._own.on_disk("a layer to be copied", copy_upper, self._upper, target, self._first)

    @property
    def _upper(self) -> Path:
        """Through bubblewrap, which waits in the launcher's mount namespace, where the upper can be reached."""
        return Path(f"/proc/{self._pid}/root{UPPER}")

    async def _starving(self) -> str:
        """Without groups nothing keeps a processor for the agent. How many a sandbox may have nobody has said then."""
        if self._own.groups is not None or self._pid is None:
            return ""
        return starved_of(await processors_in_use(self._pid), self._spec.resources.cpus)

    async def _freeze(self) -> None:
        await self._channel.freeze(self._wait_s, clock_only=self._freezer is not None)
        if self._freezer is not None:
            try:
                await self._freezer.freeze(f"sandbox {self.id}", self._wait_s)
            except OSError as error:
                raise SandboxError(f"sandbox {self.id} cannot be stopped: {error}") from error
            except DeadlineExceeded as error:
                raise SandboxSpoiled(str(error)) from None

    async def _thaw(self) -> None:
        if self._freezer is not None:
            self._freezer.thaw()
        await self._channel.thaw(self._wait_s)

    async def _capture(self) -> Snapshot:
        return await self._own.remember(self._disk, self._upper, self._first, self._root)

    @property
    def _stop_s(self) -> float:
        return self._own.config.stop_timeout_s

    async def _kill_rest(self) -> None:
        if self._own.groups is not None:
            await asyncio.to_thread(self._own.groups.remove, str(self._disk.number))

    async def _end(self) -> None:
        if self._freezer is not None:
            self._channel.close()
            self._freezer.thaw()  # a frozen agent could not see that we hung up
        await super()._end()
        await self._own.forget(self._disk, self._first)


PLUGIN = Plugin(
    NamespaceConfig,
    NamespaceBackend,
    "etude.environments.namespace_probe:probe",
    sweep=store.sweep_of,
    meant_by="namespace",
)
