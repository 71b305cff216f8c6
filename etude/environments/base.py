"""The sandbox seam: what every backend offers, and nothing of how.

Owns `Sandbox`, the `Process` and `Backend` protocols and the small records they exchange. What a verb of a sandbox
takes, means and refuses is written here and nowhere else. A kind of sandbox is a subclass with `id` and `call`, which
carries out a verb: by the guest agent (`guest_sandbox`), in another process (`far`) or by this one (`local.plain`).
`start` and `connect` give back a `Process` of its own. docs/extending.md has one that starts the guest agent itself.

A backend declares what it can do and is never swapped for a weaker one in silence. Used by the harness (tools), rewards
(verification in a fresh sandbox), the controller and the server.

The agent's files live in /workspace. Paths given to a sandbox are absolute inside it; nothing given here can reach
outside, symlinks included. What every backend must do alike is held by tests/environments/conformance.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import ConfigDict, Field

from etude.errors import ConfigError

WORKSPACE = "/workspace"
ARCHIVE_MAX = 48 << 20
"""The largest archive `upload` and `download` move at once, in bytes."""
WRITE_MAX = (64 << 20) - (64 << 10)
"""The longest file `write_file` takes, in bytes."""
_MOST_MB = 1 << 30


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; recorded on every trajectory."""

    name: str
    isolation: Literal["namespace", "container", "vm"]
    snapshot: Literal["disk", "full"]
    """What a snapshot and a fork carry: the files of /workspace, or memory and processes too."""
    network: bool
    """Whether a sandbox can be given hosts to reach; without a list of them none reaches anything."""
    services: bool = False
    """Whether a server, a database say, can run in it from one command to the next."""
    accel: Literal["tcg", "kvm"] | None = None
    """How a VM runs its guest; None where there is no VM, or where only its host could tell."""
    lasting: bool = False
    """Whether a snapshot outlives the process that had it taken, and others that reach the same server can use it."""


def find_offer(offers: Sequence[Capabilities], backend: str | None, isolation: str | None) -> Capabilities | None:
    """The first of several backends with this name and isolation; None is any."""
    fits = (each for each in offers if backend in (None, each.name) and isolation in (None, each.isolation))
    return next(fits, None)


def describe_offers(offers: Sequence[Capabilities]) -> str:
    """Backends, as messages name them."""
    return ", ".join(f"{each.name} (isolation {each.isolation})" for each in offers)


def describe_requirement(backend: str | None, isolation: str | None) -> str:
    """What of `find_offer` was asked for, as messages name it."""
    asked = {"backend": backend, "isolation": isolation}
    return " and ".join(f"{key} = {value!r}" for key, value in asked.items() if value is not None)


@dataclass(frozen=True)
class Resources:
    """Limits of one sandbox. They bind its commands, not the agent that serves them.

    A server holds whoever asks to the bounds. The least CPU is what a kernel counts: a millisecond of every tenth of a
    second."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    memory_mb: Annotated[int, Field(ge=1, le=_MOST_MB)] = 512
    pids: Annotated[int, Field(ge=1, le=1 << 22)] = 128
    cpus: Annotated[float, Field(ge=0.01, le=4096)] = 1.0
    disk_mb: Annotated[int, Field(ge=1, le=_MOST_MB)] = 128
    """What /workspace may take in changes. Where that is kept in memory it counts as such: at most memory_mb / 2."""
    state_mb: Annotated[int, Field(ge=1, le=1 << 20)] = 256
    """What may be taken out of one of its directories, what an image brought there and holes in files included."""
    state_entries: Annotated[int, Field(ge=1, le=1 << 32)] = 100_000
    """So many files, links and directories at most."""


@dataclass(frozen=True)
class TarChunk:
    """Of a directory: a tar, and the number of the entry that the next part begins with; 0 where this is the last."""

    next: int
    tar: bytes

    def encoded(self) -> bytes:
        return self.next.to_bytes(8, "little") + self.tar

    @classmethod
    def decoded(cls, body: bytes) -> TarChunk:
        return cls(int.from_bytes(body[:8], "little"), body[8:])


@dataclass(frozen=True)
class Snapshot:
    """A frozen disk state that new sandboxes can start from; belongs to the backend that made it."""

    id: str


@dataclass(frozen=True)
class SandboxSpec:
    """What to create. `files` maps paths relative to /workspace to contents; it is laid over `base` (or the image)."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    image: str = "host"
    base: Snapshot | None = None
    resources: Resources = Resources()
    ttl_s: float | None = None
    """How long it may live before the server destroys it; a backend used directly has no clock for it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The caller's own words, given back in listings; they mean nothing to a backend."""
    egress: tuple[str, ...] | None = None
    """The hosts its commands may reach over HTTP and HTTPS, names or `*.NAME`; None: those of the backend's config,
    which are none unless it lists some. ConfigError from a backend whose `network` is false."""


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. `exit_code` is 124 after a timeout, 128 + the signal when killed.

    Output is capped: past the cap its middle is cut, and the whole (its first 16 MiB) is in `log_path`, inside.
    """

    exit_code: int
    output: bytes
    """stdout and stderr, interleaved as they came."""
    timed_out: bool = False
    log_path: str | None = None


@dataclass(frozen=True)
class DirEntry:
    name: str
    is_dir: bool
    size: int


@dataclass(frozen=True)
class Metrics:
    """What a sandbox uses now, and has used since it started."""

    cpu_s: float
    """Of its commands, user and system, those that have ended included."""
    memory_bytes: int
    pids: int
    """Processes alive, the agent that serves it left out."""
    disk_bytes: int
    """What its changes to /workspace take."""
    uptime_s: float


@dataclass(frozen=True)
class ProcessInfo:
    """One background command. `command` is cut where it is long."""

    id: int
    command: str
    running: bool


class Process(Protocol):
    """A command in the background. Letting go of this object leaves it running; `Sandbox.connect` finds it again."""

    @property
    def id(self) -> int: ...

    def output(self) -> AsyncIterator[bytes]:
        """stdout and stderr interleaved, from the first byte on and then as they come, until the process exits.

        Past the `max_output_bytes` it was started with nothing more comes; only its log has the rest. There is no
        deadline: who listens waits for as long as the process runs."""
        ...

    async def wait(self, timeout_s: float) -> ExecResult:
        """Its end, with what `exec` would have given. DeadlineExceeded leaves it running."""
        ...

    async def kill(self) -> None:
        """Kill its whole session; fine when it has ended. `wait` says 137."""
        ...


class Sandbox:
    """One isolated machine holding one task.

    Every method raises SandboxError when the sandbox itself has failed; while it is paused, so do all but `resume`,
    `part`, `snapshot`, `fork` and `destroy`.
    """

    @property
    def id(self) -> str:
        raise NotImplementedError

    async def call(self, verb: str, **arguments: Any) -> Any:
        """Have one of the verbs below carried out: what a kind of sandbox writes, beside `id`. `verbs` lists them."""
        raise NotImplementedError

    # the verbs ----------------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: str,
        *,
        cwd: str = WORKSPACE,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = 30_000,
    ) -> ExecResult:
        """Run `sh -c command` without stdin in a session of its own; ends when the process exits, not its pipes.

        At `timeout_s` the whole session is killed. What a background child prints later is dropped.
        """
        return await self.call(
            "exec", command=command, cwd=cwd, timeout_s=timeout_s, env=dict(env or {}),
            max_output_bytes=max_output_bytes,
        )  # fmt: skip

    async def start(
        self,
        command: str,
        *,
        cwd: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int = 1_000_000,
    ) -> Process:
        """Run a command as `exec` does, in the background: returns when it runs. Without `timeout_s` it has no end."""
        return await self.call(
            "start", command=command, cwd=cwd, timeout_s=timeout_s, env=dict(env or {}),
            max_output_bytes=max_output_bytes,
        )  # fmt: skip

    async def processes(self) -> list[ProcessInfo]:
        """The background commands, oldest first; of those that have ended, the last 16."""
        return await self.call("processes")

    async def connect(self, process_id: int) -> Process:
        """A background command again, its output from the beginning. Raises ProcessLookupError when it is not known.

        Where it has printed more than its cap meanwhile, the output has a gap; the log and `wait` have the rest."""
        return await self.call("connect", process=process_id)

    async def read_file(self, path: str, max_bytes: int = 10_000_000) -> bytes:
        """Raises OSError as open() would: FileNotFoundError, IsADirectoryError, PermissionError (also for what is no
        regular file), ENOTDIR, ELOOP …; and EFBIG, never a cut file, when it is longer than `max_bytes`."""
        return await self.call("read_file", path=path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        """Creates parent directories. Raises OSError as open() would; EFBIG beyond WRITE_MAX."""
        if len(data) > WRITE_MAX:
            raise OSError(errno.EFBIG, f"a file written at once may have at most {WRITE_MAX} bytes", path)
        await self.call("write_file", path=path, data=data)

    async def list_dir(self, path: str) -> list[DirEntry]:
        """Sorted by name. Raises FileNotFoundError or NotADirectoryError."""
        return await self.call("list_dir", path=path)

    async def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file, a symlink (never what it points to), or a directory: an empty one, or with all below it.

        Raises FileNotFoundError, and OSError(ENOTEMPTY) for a directory with entries when not `recursive`."""
        await self.call("remove", path=path, recursive=recursive)

    async def upload(self, archive: bytes, path: str) -> None:
        """Unpack a tar into the directory `path`, made if it is not there; files in the way are replaced.

        Ustar, pax and GNU long names; files, directories, symlinks and hard links. A member that would land outside
        `path`, by its name or through a symlink, raises PermissionError, and what is no tar OSError(EBADMSG). Unless
        a symlink misled it or the disk is full, it has then written nothing; outside `path`, never. EFBIG beyond
        ARCHIVE_MAX."""
        if len(archive) > ARCHIVE_MAX:
            raise OSError(errno.EFBIG, f"an archive may have at most {ARCHIVE_MAX} bytes; send it in parts", path)
        await self.call("upload", archive=archive, path=path)

    async def download(self, path: str) -> bytes:
        """A tar of what is below the directory `path`, named relative to it; or of one file, by its own name.

        Sorted by name. Sockets, FIFOs and devices are left out. Raises OSError as open() would; EFBIG beyond
        ARCHIVE_MAX."""
        return await self.call("download", path=path)

    async def part(self, path: str, skip: int = 0) -> TarChunk:
        """As `download`, from the entry numbered `skip` on and as many as go into one archive. What is shut to its
        owner is opened, and shut again. A file of several names comes once in each part.

        Raises OSError as open() would; EFBIG for one file larger than ARCHIVE_MAX; ENAMETOOLONG for a path that nobody
        could open; and EFBIG or E2BIG, before anything is read, for more than the `state_mb` or `state_entries` of the
        sandbox, whatever is skipped."""
        return await self.call("part", path=path, skip=skip)

    async def snapshot(self) -> Snapshot:
        """Freeze the state of /workspace; all else, processes included, only where the backend's snapshot is "full"."""
        return await self.call("snapshot")

    async def fork(self, n: int) -> Sequence[Sandbox]:
        """`n` new sandboxes with the limits of this one, from one moment of its state, as after `snapshot`.

        All of them or none: where one fails to start, the others are destroyed and its error is raised."""
        if n < 1:
            raise ConfigError(f"fork: {n} sandboxes cannot be made; ask for one or more")
        return await self.call("fork", n=n)

    async def pause(self) -> None:
        """Stop every process until `resume`; the time-outs of commands stand still. Fine when it is paused already.
        SandboxSpoiled where they cannot be brought to a stand.

        What the task had stopped itself stays stopped after `resume`. A command that is killed meanwhile does nothing
        any more, and is gone at the latest then."""
        await self.call("pause")

    async def resume(self) -> None:
        """Let every process go on. Fine when it is not paused."""
        await self.call("resume")

    async def metrics(self) -> Metrics:
        return await self.call("metrics")

    async def destroy(self) -> None:
        """Kill every process, unmount, remove. Safe to call twice."""
        await self.call("destroy")


async def gather_all(*work: Coroutine[Any, Any, object]) -> None:
    """Let all of it end, and raise the first error there was: one that fails keeps none of the others from its end."""
    for ended in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


class Backend(Protocol):
    """Makes sandboxes."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    async def release(self, snapshot: Snapshot) -> None:
        """Forget a snapshot; fine when there is none. Sandboxes that already started from it are not affected."""
        ...

    async def close(self) -> None:
        """Destroy every sandbox and snapshot; leave no process, mount or cgroup behind."""
        ...
