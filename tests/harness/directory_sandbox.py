"""A directory of this machine behind the sandbox seam: what a session that is killed leaves behind stays there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from etude.environments.base import WORKSPACE, DirEntry, ExecResult, ProcessInfo


class DirectorySandbox:
    """/workspace is `root`, and all else is beside it."""

    id = "directory"

    def __init__(self, root: Path) -> None:
        self.root = root

    def _at(self, path: str) -> Path:
        inside = f"{path}/".startswith(f"{WORKSPACE}/")
        return self.root / path[len(WORKSPACE) + 1 :] if inside else self.root.parent / path.lstrip("/")

    async def exec(self, command: str, *, timeout_s: float = 60.0, env=None, max_output_bytes=30_000, cwd=WORKSPACE):
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", command, cwd=self._at(cwd), env={**os.environ, **(env or {})}, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
        return ExecResult(process.returncode, output[:max_output_bytes])

    async def processes(self) -> list[ProcessInfo]:
        return []

    async def read_file(self, path: str, max_bytes: int = 10_000_000) -> bytes:
        return self._at(path).read_bytes()

    async def write_file(self, path: str, data: bytes) -> None:
        self._at(path).parent.mkdir(parents=True, exist_ok=True)
        self._at(path).write_bytes(data)

    async def list_dir(self, path: str) -> list[DirEntry]:
        entries = sorted(self._at(path).iterdir())
        return [DirEntry(entry.name, entry.is_dir(), entry.stat().st_size) for entry in entries]
