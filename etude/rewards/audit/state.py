"""The files a session left behind, beside those it was given.

Owns `Workspace` and `workspace_of`, which reads the archive of a session's final state; no part of the auditor touches
a sandbox. Caches and git's own files are left out; they are no work.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from etude.environments.archive import Archive
from etude.environments.base import WORKSPACE
from etude.rewards.contents import Entry, entries_of

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


class _Beginnings(Mapping[str, bytes]):
    """Of the files of an archive, as much as is remembered."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries

    def __getitem__(self, path: str) -> bytes:
        return self._entries[path].beginning(FILE_MAX)

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def workspace_of(archive: Archive) -> Workspace:
    """The files of an archive of /workspace: each is read where it is asked for, and not kept beside the archive."""
    files, links = dict[str, Entry](), {}
    for place, entry in entries_of(archive).items():
        path = posixpath.relpath(place, WORKSPACE)
        if NO_WORK & set(path.split("/")):
            continue
        if entry.target is not None:
            links[path] = entry.target
        elif not entry.member.isdir():
            files[path] = entry
    for path, target in links.items():  # code by another name is code
        place = posixpath.relpath(posixpath.join(WORKSPACE, posixpath.dirname(path), target), WORKSPACE)
        if path.endswith(".py") and place in files:
            files[path] = files[place]
    return Workspace(_Beginnings(files), links)


def given_workspace(files: Mapping[str, bytes]) -> Workspace:
    """The files a session starts from, as they would be read."""
    work = {path: data for path, data in files.items() if not NO_WORK & set(path.split("/"))}
    return Workspace(work, {})
