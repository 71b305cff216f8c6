"""The sandbox seam: what every backend offers, and nothing of how.

Owns the `Sandbox` and `Backend` protocols and the small records they exchange. A backend declares what it can do and is
never swapped for a weaker one in silence. Used by the harness (tools), rewards (verification in a fresh sandbox) and
the controller; implemented by `environments.namespace`.

The agent's files live in /workspace. Paths given to a sandbox are absolute inside it; nothing given here can reach
outside, symlinks included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

WORKSPACE = "/workspace"


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; recorded on every trajectory."""

    name: str
    isolation: Literal["namespace", "vm"]
    snapshot: Literal["disk", "full"]
    network: bool


@dataclass(frozen=True)
class Resources:
    """Limits of one sandbox. They bind its commands, not the agent that serves them."""

    memory_mb: int = 512
    pids: int = 128
    cpus: float = 1.0
    disk_mb: int = 128
    """What /workspace may take in changes. Where that is kept in memory it counts as such: at most memory_mb / 2."""


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


class Sandbox(Protocol):
    """One isolated machine holding one task. Every method raises SandboxError when the sandbox itself has failed."""

    @property
    def id(self) -> str: ...

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
        ...

    async def read_file(self, path: str, max_bytes: int = 10_000_000) -> bytes:
        """Raises OSError as open() would: FileNotFoundError, IsADirectoryError, PermissionError (also for what is no
        regular file), ENOTDIR, ELOOP …; and EFBIG, never a cut file, when it is longer than `max_bytes`."""
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Creates parent directories. Raises OSError as open() would."""
        ...

    async def list_dir(self, path: str) -> list[DirEntry]:
        """Sorted by name. Raises FileNotFoundError or NotADirectoryError."""
        ...

    async def snapshot(self) -> Snapshot:
        """Freeze the state of /workspace; all else, processes included, only where the backend's snapshot is "full"."""
        ...

    async def destroy(self) -> None:
        """Kill every process, unmount, remove. Safe to call twice."""
        ...


class Backend(Protocol):
    """Makes sandboxes."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    async def release(self, snapshot: Snapshot) -> None:
        """Forget a snapshot. Sandboxes that already started from it are not affected."""
        ...

    async def close(self) -> None:
        """Destroy every sandbox and snapshot; leave no process, mount or cgroup behind."""
        ...
