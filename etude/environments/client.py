"""The `remote` backend: sandboxes of an environment server, of the same shape as those of this process.

Owns the routes of the server's API as a caller sees them, and the list of what this caller has made, which it takes
down when it closes. See base for the meaning of every method. Retries are `connection`'s; the words are `wire`'s.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx2

from etude.environments.base import (
    ARCHIVE_MAX,
    WORKSPACE,
    WRITE_MAX,
    Capabilities,
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
from etude.environments.connection import WAIT_S, Connection, read_token
from etude.environments.remote import RemoteConfig, default_state_dir
from etude.environments.wire import (
    READ_MAX,
    ServerError,
    asked_until_ended,
    create_body,
    dump,
    error_of,
    exec_result,
    part_of,
)
from etude.errors import ConfigError, SandboxError, Unreachable

_OPEN_DEADLINE_S = 10.0


class RemoteBackend:
    """Makes sandboxes on a server. Opening one asks the server what it offers, and fails where that is not enough."""

    def __init__(self, config: RemoteConfig) -> None:
        self.config = config
        token = read_token(config.token_file or default_state_dir() / "token")
        self._capabilities = _offered(config, token)
        self.connection = Connection(config, token)
        self.live: dict[str, RemoteSandbox] = {}
        self._snapshots: set[str] = set()
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        if self._closed:
            raise SandboxError("this backend is closed")
        spec = replace(spec, ttl_s=spec.ttl_s or self.config.ttl_s)
        body = create_body(spec, self._capabilities.name, self.config.isolation)
        said = await self.connection.ask("POST", "/sandboxes", "a sandbox to start", body)
        return self.adopt(said["id"])

    def holds(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot was made through this object, and not released through it."""
        return snapshot.id in self._snapshots

    async def release(self, snapshot: Snapshot) -> None:
        self._snapshots.discard(snapshot.id)
        try:
            await self.connection.ask("DELETE", f"/snapshots/{quote(snapshot.id)}", "a snapshot to be released")
        except ServerError as error:
            if error.kind != "not_found":  # the server may have forgotten it first: its time ran out, or it restarted
                raise

    async def close(self) -> None:
        """Destroy what was made through this object; the server and its other sandboxes live on."""
        if self._closed:
            return
        self._closed = True
        ended = await asyncio.gather(
            *(box.destroy() for box in list(self.live.values())),
            *(self.release(Snapshot(name)) for name in list(self._snapshots)),
            return_exceptions=True,
        )
        await self.connection.close()
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    def adopt(self, name: str) -> RemoteSandbox:
        """A sandbox of the server by its id, from now on this object's to destroy."""
        return self.live.setdefault(name, RemoteSandbox(self, name))

    def kept(self, name: str) -> Snapshot:
        self._snapshots.add(name)
        return Snapshot(name)


class RemoteSandbox:
    """One sandbox of a server."""

    def __init__(self, backend: RemoteBackend, name: str) -> None:
        self._backend, self._id, self._at = backend, name, f"/sandboxes/{name}"
        self._processes: weakref.WeakValueDictionary[int, RemoteProcess] = weakref.WeakValueDictionary()

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
        return exec_result(await self._ask("POST", "/exec", f"the command {command[:60]!r} to end", body))

    async def start(
        self,
        command: str,
        *,
        cwd: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int = 1_000_000,
    ) -> Process:
        body = _command(command, cwd, timeout_s, env, max_output_bytes, background=True)
        said = await self._ask("POST", "/exec", f"the command {command[:60]!r} to be running", body)
        return self._process(said["process"])

    async def processes(self) -> list[ProcessInfo]:
        return [ProcessInfo(**each) for each in await self._get("/processes", "its commands")]

    async def connect(self, process_id: int) -> Process:
        await self._get(f"/processes/{process_id}", f"its command {process_id}", {"wait_s": 0})
        return self._process(process_id)

    async def read_file(self, path: str, max_bytes: int = 10_000_000) -> bytes:
        at = f"{self._at}/files?path={_path(path)}&max_bytes={min(max(max_bytes, 0), READ_MAX)}"
        what = f"{path} of sandbox {self._id}"
        return await self._backend.connection.get(at, what)

    async def write_file(self, path: str, data: bytes) -> None:
        if len(data) > WRITE_MAX:
            raise OSError(errno.EFBIG, f"a file written at once may have at most {WRITE_MAX} bytes", path)
        await self._send(f"/files?path={_path(path)}", path, f"{path} to be written", data)

    async def list_dir(self, path: str) -> list[DirEntry]:
        return [
            DirEntry(**each) for each in await self._get(f"/files/list?path={_path(path)}", f"the entries of {path}")
        ]

    async def remove(self, path: str, recursive: bool = False) -> None:
        at = f"/files?path={_path(path)}&recursive={str(recursive).lower()}"
        await self._ask("DELETE", at, f"{path} to be removed")

    async def upload(self, archive: bytes, path: str) -> None:
        if len(archive) > ARCHIVE_MAX:
            raise OSError(errno.EFBIG, f"an archive may have at most {ARCHIVE_MAX} bytes; send it in parts", path)
        await self._send(f"/archive?path={_path(path)}", path, f"an archive to be unpacked at {path}", archive)

    async def download(self, path: str) -> bytes:
        at, what = f"{self._at}/archive?path={_path(path)}", f"an archive of {path} of sandbox {self._id}"
        return await self._backend.connection.get(at, what)

    async def part(self, path: str, skip: int = 0) -> Part:
        at = f"{self._at}/archive/part?path={_path(path)}&skip={skip}"
        return part_of(await self._backend.connection.get(at, f"a part of {path} of sandbox {self._id}"))

    async def snapshot(self) -> Snapshot:
        return self._backend.kept((await self._ask("POST", "/snapshot", "a snapshot"))["id"])

    async def fork(self, n: int) -> Sequence[Sandbox]:
        if n < 1:
            raise ConfigError(f"fork: {n} sandboxes cannot be made; ask for one or more")
        said = await self._ask("POST", "/fork", f"{n} forks to start", dump({"n": n}))
        return [self._backend.adopt(each["id"]) for each in said]

    async def pause(self) -> None:
        await self._ask("POST", "/pause", "it to stand still")

    async def resume(self) -> None:
        await self._ask("POST", "/resume", "it to go on")

    async def metrics(self) -> Metrics:
        return Metrics(**await self._get("/metrics", "what it uses"))

    async def set_ttl(self, ttl_s: float) -> None:
        """It ends `ttl_s` from now, unless this is said again."""
        await self._ask("POST", "/ttl", "its time to live to be set", dump({"ttl_s": ttl_s}))

    async def destroy(self) -> None:
        if self._id not in self._backend.live:
            return  # it is done, and the backend may be closed by now
        await self._ask("DELETE", "", "it to be destroyed")
        self._backend.live.pop(self._id, None)

    # ----------------------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, at: str, what: str, body: bytes = b"") -> Any:
        return await self._backend.connection.ask(method, self._at + at, f"sandbox {self._id}: {what}", body)

    async def _send(self, at: str, path: str, what: str, data: bytes) -> None:
        try:
            await self._ask("PUT", at, what, data)
        except ServerError as error:
            if error.kind == "too_large":  # the server's limit on what one request brings, before it looks at it
                raise OSError(errno.EFBIG, str(error), path) from None
            raise

    async def _get(self, at: str, what: str, params: dict[str, float] | None = None) -> Any:
        return json.loads(await self._backend.connection.get(self._at + at, f"sandbox {self._id}: {what}", params))

    def _process(self, number: int) -> RemoteProcess:
        known = self._processes.get(number)
        if known is None:
            known = RemoteProcess(self._backend.connection, f"{self._at}/processes/{number}", number)
            self._processes[number] = known
        return known


class RemoteProcess:
    """A command in the background of a sandbox of a server."""

    def __init__(self, connection: Connection, at: str, number: int) -> None:
        self._connection, self._at, self._id = connection, at, number

    @property
    def id(self) -> int:
        return self._id

    def output(self) -> AsyncIterator[bytes]:
        return self._connection.events(f"{self._at}/output", f"the output of process {self._id}")

    async def wait(self, timeout_s: float) -> ExecResult:
        what = f"process {self._id} to end"

        async def ask(wait_s: float) -> tuple[ExecResult | None, bool]:
            said = json.loads(await self._connection.get(self._at, what, {"wait_s": round(wait_s, 3)}))
            return exec_result(said["result"]) if said["result"] is not None else None, said["paused"]

        return await asked_until_ended(ask, WAIT_S, what, timeout_s)

    async def kill(self) -> None:
        await self._connection.ask("DELETE", self._at, f"process {self._id} to be killed")


def _offered(config: RemoteConfig, token: str) -> Capabilities:
    """What the backend that will be used can do. Raises where there is no server, or no such backend on it."""
    try:
        answer = httpx2.get(
            f"{config.url.rstrip('/')}/health",
            headers={"Authorization": f"Bearer {token}"},
            timeout=_OPEN_DEADLINE_S,
            trust_env=False,
        )
    except httpx2.TransportError as error:
        raise Unreachable(
            f"no environment server answers at {config.url} ({error}); start one with `etude environments serve`"
        ) from None
    if not answer.is_success:
        raise error_of(answer.content, config.url)
    offers = [Capabilities(**each) for each in answer.json()["backends"]]
    for each in offers:
        if config.backend in (None, each.name) and config.isolation in (None, each.isolation):
            return replace(each, lasting=True)
    offered = ", ".join(f"{each.name} (isolation {each.isolation})" for each in offers)
    wanted = " and ".join(
        f"{name} = {value!r}" for name in ("backend", "isolation") if (value := getattr(config, name)) is not None
    )
    raise ConfigError(f"environment: {wanted} is not offered at {config.url}, only {offered}")


def _command(
    command: str,
    cwd: str,
    timeout_s: float | None,
    env: Mapping[str, str] | None,
    max_output_bytes: int,
    background: bool = False,
) -> bytes:
    said = {"command": command, "cwd": cwd, "timeout_s": timeout_s, "env": dict(env or {})}
    return dump({**said, "max_output_bytes": max_output_bytes, "background": background})


def _path(path: str) -> str:
    """A path as bytes, percent-encoded: names need not be UTF-8. Raises OSError for text no path can hold."""
    try:
        return quote(os.fsencode(path))
    except UnicodeEncodeError:
        raise OSError(errno.EINVAL, "not encodable as UTF-8", path) from None
