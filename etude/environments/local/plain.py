"""The user's directory without a sandbox: commands run as the user runs them. For a machine that is a sandbox itself.

Owns `PlainWorkspace` and `PlainProcess`. File tools still write nowhere but in the workspace and in /tmp, symlinks
followed; commands are held by nothing but permission rules, and whoever opens one is told so. Nothing here needs Linux.
What ends with a command is its process group: a child that leaves it lives on, as it would in a terminal.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from etude.durable import overwrite
from etude.environments.base import WORKSPACE, DirEntry, ExecResult, ProcessInfo, Sandbox
from etude.environments.local.config import WorkspaceConfig
from etude.environments.process import BroadcastOutput
from etude.errors import ConfigError, DeadlineExceeded
from etude.host.processes import start_process

_LOG_MAX = 16 << 20
_REMEMBERED = 16
_DRAIN_S = 0.2
"""How long output is still read after the end of a command whose children hold its pipe."""


class PlainProcess(BroadcastOutput):
    """See base.Process."""

    def __init__(
        self,
        number: int,
        command: str,
        process: asyncio.subprocess.Process,
        printed: tuple[asyncio.StreamReader, asyncio.ReadTransport],
        log: Path,
        cap: int,
    ) -> None:
        super().__init__()
        self._id, self.command, self._process, self._log, self._cap = number, command, process, log, cap
        self._reader, self._pipe = printed
        self._tail, self._total = bytearray(), 0
        self.timed_out = False
        self._ended = asyncio.ensure_future(self._follow())

    @property
    def id(self) -> int:
        return self._id

    @property
    def running(self) -> bool:
        return not self._ended.done()

    def output(self) -> AsyncIterator[bytes]:
        return self._pieces(self._ended)

    async def wait(self, timeout_s: float) -> ExecResult:
        done, _ = await asyncio.wait({self._ended}, timeout=timeout_s)
        if not done:
            raise DeadlineExceeded(f"the command {self.command[:60]!r} to end", timeout_s)
        return self._result(self._ended.result())

    async def kill(self) -> None:
        self.tell(signal.SIGKILL)
        await asyncio.wait({self._ended}, timeout=10)

    def tell(self, number: signal.Signals) -> None:
        """Tell the whole process group."""
        if self.running:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def _follow(self) -> int:
        """Read until the command has ended; its children may keep the pipe open for ever."""
        reading = asyncio.ensure_future(self._read())
        code = await self._process.wait()
        await asyncio.wait({reading}, timeout=_DRAIN_S)
        reading.cancel()
        self._pipe.close()
        self._tell()
        return code

    async def _read(self) -> None:
        with self._log.open("wb") as log:
            while piece := await self._reader.read(65536):
                if log.tell() < _LOG_MAX:
                    log.write(piece[: _LOG_MAX - log.tell()])
                    log.flush()
                self._total += len(piece)
                fits = self._cap - len(self._printed)
                self._printed += piece[:fits]
                self._tail = (self._tail + piece)[-(self._cap // 2) :]
                self._tell()

    def _result(self, code: int) -> ExecResult:
        code = 124 if self.timed_out else 128 - code if code < 0 else code
        if self._total <= len(self._printed):
            return ExecResult(code, bytes(self._printed), self.timed_out)
        tail = bytes(self._tail)
        first = bytes(self._printed[: max(self._cap - len(tail), 0)])
        note = f"\n[... {self._total - len(first) - len(tail)} bytes cut, whole output in {self._log} ...]\n".encode()
        return ExecResult(code, first + note + tail, self.timed_out, str(self._log))


class PlainWorkspace(Sandbox):
    """See base.Sandbox for the meaning of its methods. It has no snapshots and no forks: its files are the user's."""

    def __init__(self, directory: Path, config: WorkspaceConfig, env: Mapping[str, str]) -> None:
        self._root, self._config = directory, config
        self._env = {**env, **config.env}
        self._numbers = itertools.count(1)
        self._processes: dict[int, PlainProcess] = {}
        self._logs = Path(tempfile.mkdtemp(prefix="etude-logs-"))

    @property
    def id(self) -> str:
        return f"plain/{self._root.name}"

    async def call(self, verb: str, **arguments: Any) -> Any:
        does: dict[str, Callable[..., Awaitable[Any]]] = {
            "exec": self._exec, "start": self._start, "processes": self._list, "connect": self._connect,
            "read_file": self._read, "write_file": self._write, "list_dir": self._entries, "remove": self._remove,
            "pause": self._pause, "resume": self._resume, "destroy": self._destroy,
        }  # fmt: skip
        if verb not in does:
            raise ConfigError(f"sandbox {self.id} is a directory of this machine, opened as it is: it has no {verb}")
        return await does[verb](**arguments)

    async def _exec(self, timeout_s: float, **command: Any) -> ExecResult:
        process = await self._spawn(**command)
        try:
            return await process.wait(timeout_s)
        except DeadlineExceeded:
            process.timed_out = True
            await process.kill()
            return await process.wait(self._config.stop_timeout_s)
        except asyncio.CancelledError:
            await process.kill()
            raise
        finally:
            self._processes.pop(process.id, None)

    async def _start(self, timeout_s: float | None, **command: Any) -> PlainProcess:
        process = await self._spawn(**command)
        if timeout_s is not None:
            asyncio.get_running_loop().call_later(timeout_s, _expire, process)
        ended = [number for number, each in self._processes.items() if not each.running]
        for number in ended[:-_REMEMBERED]:
            del self._processes[number]
        return process

    async def _list(self) -> list[ProcessInfo]:
        return [ProcessInfo(each.id, each.command[:2000], each.running) for each in self._processes.values()]

    async def _connect(self, process: int) -> PlainProcess:
        if process not in self._processes:
            raise ProcessLookupError(errno.ESRCH, f"no background command has the id {process}, or it ended long ago")
        return self._processes[process]

    async def _read(self, path: str, max_bytes: int) -> bytes:
        file = self._at(path)
        if not file.is_file():
            if file.is_dir():
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
            if file.exists():
                raise PermissionError(errno.EACCES, "is no regular file", path)
        if file.stat().st_size > max_bytes:
            raise OSError(errno.EFBIG, "file too large", path)
        return await asyncio.to_thread(file.read_bytes)

    async def _write(self, path: str, data: bytes) -> None:
        file = self._own(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not file.is_file():
            raise PermissionError(errno.EACCES, "is no regular file", path)
        await asyncio.to_thread(overwrite, file, data)

    async def _entries(self, path: str) -> list[DirEntry]:
        with os.scandir(self._at(path)) as entries:
            found = [
                (entry.name, entry.stat(follow_symlinks=False), entry.is_dir(follow_symlinks=False))
                for entry in entries
            ]
        return [DirEntry(name, is_dir, seen.st_size) for name, seen, is_dir in sorted(found)]

    async def _remove(self, path: str, recursive: bool) -> None:
        # what is removed is the link itself, so only what it lies in is followed
        at = self._at(path)
        target = self._own(str(at.parent)) / at.name
        if target.is_symlink() or not target.is_dir():
            target.unlink()
        elif recursive:
            await asyncio.to_thread(shutil.rmtree, target)
        else:
            target.rmdir()

    async def _pause(self) -> None:
        for process in self._processes.values():
            process.tell(signal.SIGSTOP)

    async def _resume(self) -> None:
        for process in self._processes.values():
            process.tell(signal.SIGCONT)

    async def _destroy(self) -> None:
        await asyncio.gather(*(process.kill() for process in list(self._processes.values())))
        await asyncio.to_thread(shutil.rmtree, self._logs, ignore_errors=True)

    # ----------------------------------------------------------------------------------------------------------------

    async def _spawn(self, command: str, cwd: str, env: Mapping[str, str], max_output_bytes: int) -> PlainProcess:
        number, (read, write) = next(self._numbers), os.pipe()
        reader = asyncio.StreamReader()
        try:  # the pipe first: once the process is there nothing may be waited for, else nobody knows of it
            pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb", 0)
            )
            try:
                process = await start_process(
                    "sh", "-c", command, cwd=self._at(cwd), env={**self._env, **env}, start_new_session=True,
                    stdin=asyncio.subprocess.DEVNULL, stdout=write, stderr=asyncio.subprocess.STDOUT,
                )  # fmt: skip
            except BaseException:
                pipe.close()
                raise
        finally:
            os.close(write)
        log = self._logs / f"exec-{number}.log"
        self._processes[number] = PlainProcess(number, command, process, (reader, pipe), log, max_output_bytes)
        return self._processes[number]

    def _at(self, path: str) -> Path:
        """A path as tools write it, on this machine."""
        inside = path == WORKSPACE or path.startswith(f"{WORKSPACE}/")
        return self._root / path[len(WORKSPACE) + 1 :] if inside else Path(path)

    def _own(self, path: str) -> Path:
        """The same with its links followed, if it may be written."""
        real = Path(os.path.realpath(self._at(path)))
        writable = [self._root, Path("/tmp").resolve(), *(each.resolve() for each in self._config.writable)]
        protected = [self._root / name for name in self._config.protected]
        if not any(real.is_relative_to(place) for place in writable) or any(map(real.is_relative_to, protected)):
            raise PermissionError(errno.EACCES, "only the workspace may be written", path)
        return real


def _expire(process: PlainProcess) -> None:
    if process.running:
        process.timed_out = True
        process.tell(signal.SIGKILL)
