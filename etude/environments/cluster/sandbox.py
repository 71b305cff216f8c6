"""A sandbox of a cluster, as its caller has it: its calls go straight to the agent of its machine.

Owns the calls of one sandbox. See base for the meaning of every method. When the machine's agent has died, every call
ends in Unreachable, or, once it is back, in ServerError "lost": the sandbox is gone, and the work may be tried again.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from etude.environments.base import (
    WORKSPACE,
    DirEntry,
    ExecResult,
    Metrics,
    Part,
    Process,
    ProcessInfo,
    Sandbox,
    SandboxSpec,
    Snapshot,
)
from etude.environments.cluster.calls import Unreachable, followed
from etude.environments.cluster.service import Standing
from etude.environments.guest_sandbox import all_or_none
from etude.environments.wire import ExecBody, ServerError, asked_until_ended
from etude.errors import ConfigError

if TYPE_CHECKING:
    from etude.environments.cluster.backend import ClusterBackend

_WAIT_S = 20.0
"""How long an agent holds a question about a background command before it says that there is no news."""


class ClusterSandbox:
    """See the module; made by ClusterBackend.create."""

    def __init__(self, backend: ClusterBackend, request: str, standing: Standing, spec: SandboxSpec) -> None:
        assert standing.sandbox is not None and standing.node is not None
        self._backend, self._request, self._id = backend, request, standing.sandbox
        self._agent, self._spec = standing.agent, spec
        self.node = standing.node
        """The machine it is on."""
        # weak: whoever lets go of a background command has no more of it here; the agent knows it by its number
        self._processes: weakref.WeakValueDictionary[int, ClusterProcess] = weakref.WeakValueDictionary()

    @property
    def id(self) -> str:
        return self._id

    async def exec(
        self,
        command: str,
        *,
        cwd: str = WORKSPACE,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        max_output_bytes: int = 30_000,
    ) -> ExecResult:
        body = _command(command, cwd, timeout_s, env, max_output_bytes)
        return await self.ask("exec", f"the command {command[:60]!r} to end", body)

    async def start(
        self,
        command: str,
        *,
        cwd: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int = 1_000_000,
    ) -> Process:
        body = _command(command, cwd, timeout_s, env, max_output_bytes)
        return self._process(await self.ask("start", f"the command {command[:60]!r} to be running", body))

    async def connect(self, process_id: int) -> Process:
        await self.ask("connect", f"its command {process_id}", process_id)
        return self._process(process_id)

    async def processes(self) -> list[ProcessInfo]:
        return await self._call("processes")

    async def read_file(self, path: str, max_bytes: int = 10_000_000) -> bytes:
        return await self._call("read_file", path, max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._call("write_file", path, data)

    async def list_dir(self, path: str) -> list[DirEntry]:
        return await self._call("list_dir", path)

    async def remove(self, path: str, recursive: bool = False) -> None:
        await self._call("remove", path, recursive)

    async def upload(self, archive: bytes, path: str) -> None:
        await self._call("upload", archive, path)

    async def download(self, path: str) -> bytes:
        return await self._call("download", path)

    async def part(self, path: str, skip: int = 0) -> Part:
        return await self._call("part", path, skip)

    async def metrics(self) -> Metrics:
        return await self._call("metrics")

    async def snapshot(self) -> Snapshot:
        return self._backend.kept(await self.ask("snapshot", "a snapshot"))

    async def fork(self, n: int) -> Sequence[Sandbox]:
        """On the machine of this one, which alone has its state; the forks wait in the queue for room there."""
        if n < 1:
            raise ConfigError(f"fork: {n} sandboxes cannot be made; ask for one or more")
        snapshot = await self.snapshot()
        try:
            return await all_or_none(self._backend, replace(self._spec, files={}, base=snapshot), n)
        except ServerError as error:
            if error.kind != "not_found":
                raise
            # its snapshot is gone, and this sandbox was on the same machine
            raise ServerError("lost", f"sandbox {self._id} was lost while {n} forks of it started: {error}") from None
        finally:
            await self._backend.release(snapshot)

    async def pause(self) -> None:
        await self.ask("pause", "it to stand still")

    async def resume(self) -> None:
        await self.ask("resume", "it to go on")

    async def destroy(self) -> None:
        """Both are told, the scheduler first: what its owner ends is not lost."""
        await self._backend.end(self._request, "destroyed")
        with suppress(Unreachable):  # its agent was killed, and the sandbox with it
            await self.ask("destroy", "it to be destroyed")

    async def ask(self, method: str, what: str, *arguments: Any) -> Any:
        """A call of the agent about this sandbox."""
        what = f"sandbox {self._id}: {what}"
        return await followed(
            getattr(self._agent, method).remote(self._id, *arguments), lambda: self._agent.ping.remote(), what
        )

    def _process(self, number: int) -> ClusterProcess:
        return self._processes.setdefault(number, ClusterProcess(self, number))

    async def _call(self, method: str, *arguments: Any) -> Any:
        about = next((each for each in arguments if isinstance(each, str)), "")
        return await self.ask("call", f"{method} {about}".rstrip(), method, arguments)


class ClusterProcess:
    """A command in the background of a sandbox of a cluster."""

    def __init__(self, box: ClusterSandbox, number: int) -> None:
        self._box, self._id = box, number

    @property
    def id(self) -> int:
        return self._id

    async def output(self) -> AsyncIterator[bytes]:
        at, ended = 0, False
        while not ended:
            what = f"the output of process {self._id}"
            piece, ended = await self._box.ask("output", what, self._id, at, _WAIT_S)
            at += len(piece)
            if piece:
                yield piece

    async def wait(self, timeout_s: float) -> ExecResult:
        what = f"process {self._id} of sandbox {self._box.id} to end"
        return await asked_until_ended(
            lambda wait_s: self._box.ask("wait", what, self._id, wait_s), _WAIT_S, what, timeout_s
        )

    async def kill(self) -> None:
        await self._box.ask("kill", f"process {self._id} to be killed", self._id)


def _command(
    command: str, cwd: str, timeout_s: float | None, env: Mapping[str, str] | None, max_output_bytes: int
) -> ExecBody:
    # not checked: what no process can be given is for the sandbox to answer, as one of this process would
    return ExecBody.model_construct(
        command=command, cwd=cwd, timeout_s=timeout_s, env=dict(env or {}), max_output_bytes=max_output_bytes
    )
