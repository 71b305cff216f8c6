"""The files a session left behind, beside those it was given.

Owns `Workspace`, `read_workspace` and `look`, the only parts of the auditor that touch a sandbox: they read it, or a
fresh one made from its snapshot, and run nothing in it. Caches and git's own files are left out; they are no work.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from etude.environments.base import WORKSPACE, Backend, Sandbox, SandboxSpec, Snapshot
from etude.errors import SandboxError
from etude.records import Task

NO_WORK = {
    ".git", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".pytype", ".pyre", "node_modules", ".venv",
}  # fmt: skip
"""Directories that tools fill by themselves."""
FILE_MAX = 1 << 20
"""Longer files are remembered by their beginning."""


@dataclass(frozen=True)
class Workspace:
    """Contents by path relative to /workspace; `links` are symbolic links, by where they point."""

    files: Mapping[str, bytes]
    links: Mapping[str, str]

    def text(self, path: str) -> str | None:
        """None for a file that is not there; what is no UTF-8 is replaced."""
        data = self.files.get(path)
        return None if data is None else data.decode("utf-8", "replace")


async def read_workspace(sandbox: Sandbox) -> Workspace:
    """The files below /workspace. Raises SandboxError when they cannot be had."""
    try:
        archive = await sandbox.download(WORKSPACE)
    except OSError as error:
        raise SandboxError(f"the workspace cannot be taken out to be audited: {error}") from error
    files, links = {}, {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = member.name.removeprefix("./")
            if NO_WORK & set(path.split("/")):
                continue
            if member.issym():
                links[path] = member.linkname
            elif (content := tar.extractfile(member)) is not None:
                files[path] = content.read(FILE_MAX)
    return Workspace(files, links)


async def look(task: Task, snapshot: Snapshot, backend: Backend) -> Workspace:
    """The files of a snapshot, from a fresh sandbox of its own. Raises SandboxError."""
    sandbox = await backend.create(SandboxSpec(image=task.image, base=snapshot))
    try:
        return await read_workspace(sandbox)
    finally:
        await sandbox.destroy()


def given_workspace(files: Mapping[str, bytes]) -> Workspace:
    """The files a session starts from, as they would be read."""
    work = {path: data for path, data in files.items() if not NO_WORK & set(path.split("/"))}
    return Workspace(work, {})
