"""A project's rules for agents, word by word: its AGENTS.md and CLAUDE.md files.

Owns `read_rules`, of a workspace on this machine; `sandbox_rules`, the same words of one in a sandbox; and
`file_rules`, of files that a sandbox is about to get. They are looked for from the top of the repository down to the
workspace, and below the workspace; who asks again gets them as they are then. Rules stand in the system prompt, so that
no summary can lose them.

What is on this machine goes to a model's endpoint before anybody was asked, so it is read as an enemy's: plain files of
that name, none that is a link or has a second name, none that a rule forbids to read. A link to a file of the
workspace, as many projects have it, is named instead: the model reads that by its tools, which are held by the sandbox
and by the rules. What is above the workspace is read only where the repository's top belongs to the user or to the
workspace's owner: on a shared machine anybody can put a `.git` into /tmp.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from etude.environments.base import WORKSPACE, Sandbox
from etude.host import beneath
from etude.host.repository import find

NAMES = ("AGENTS.md", "CLAUDE.md")
"""Where both lie in a directory they are read in this order, and what says the same, or leads to the other, once."""
_DEPTH = 4
_ENTRIES = 100_000
_MAX_BYTES = 64_000
_SKIPPED = {"node_modules", "target", "build", "dist", "vendor", "venv", "__pycache__"}
_LOOK_S, _MOST_NAMES = 30.0, 1 << 20
_LOOK = (
    f"find . -maxdepth {_DEPTH + 1} -type d \\( -name '.?*' {' '.join(f'-o -name {each}' for each in sorted(_SKIPPED))}"
    f" \\) -prune -o \\( {' -o '.join(f'-name {each}' for each in NAMES)} \\) \\( -type f -links 1 -print0 -o "
    r"\( -type f -o -type l \) -exec sh -c "
    """'for each; do printf "%s\\0=%s\\0" "$each" "$(readlink -f -- "$each")"; done' sh {} + \\)"""
)
"""Prints the path of each file, a NUL after it; after one that is a link or has a second name, `=` and where it is."""
_TOLD_OF = (errno.EFBIG, errno.ELOOP, errno.EMLINK)
"""Why a file is not read and the model is told that it is there."""
_HEAD = (
    "Rules of this project, from its AGENTS.md and CLAUDE.md files. They hold for every file beside or below theirs; "
    "where two disagree, the one that is nearer to the file counts."
)


def read_rules(workspace: Path, forbidden: Sequence[str] = ()) -> str:
    """All rules as one text; empty where there are none. What is too long is left out, and its file is named.
    `forbidden` are files and directories of the workspace that no rule lets be read."""
    workspace = workspace.resolve()
    top = _top(workspace)
    found = _Found()
    for directory in (*_above(top, workspace), *_below(workspace)):
        for path in (directory / each for each in NAMES):
            name = os.path.relpath(path, workspace)
            if any(name == each or name.startswith(f"{each}/") for each in forbidden):
                continue
            try:
                found.take(name, beneath.read(top, str(path.relative_to(top)), found.room, alone=True))
            except OSError as error:
                if error.errno in _TOLD_OF and _leads_on(path, workspace):
                    found.left_out.append(name)
    return found.text()


async def sandbox_rules(sandbox: Sandbox, may_read: Callable[[str], bool]) -> str:
    """The same of the workspace in a sandbox, looked for by a command there; empty where that does not end."""
    done = await sandbox.exec(_LOOK, timeout_s=_LOOK_S, max_output_bytes=_MOST_NAMES)
    if done.timed_out or done.log_path:
        return ""
    plain, links = _told_by(done.output.decode("utf-8", "surrogateescape").split("\0"))
    found = _Found()
    for name in sorted({*plain, *links}, key=_order):
        if not may_read(name):
            continue
        if name in links:
            real = posixpath.relpath(links[name], WORKSPACE)
            beside = real != name and real in plain and posixpath.dirname(real) == posixpath.dirname(name)
            if not real.startswith("../") and not (beside and posixpath.basename(real) in NAMES):
                found.left_out.append(name)
            continue
        try:
            found.take(name, await sandbox.read_file(f"{WORKSPACE}/{name}", max_bytes=found.room))
        except OSError as error:
            if error.errno in _TOLD_OF:
                found.left_out.append(name)
    return found.text()


def file_rules(files: Mapping[str, bytes]) -> str:
    """The same of files by their paths in a workspace that nobody has touched yet."""
    found = _Found()
    for name in sorted(filter(_is_looked_at, files), key=_order):
        if len(files[name]) > found.room:
            found.left_out.append(name)
        else:
            found.take(name, files[name])
    return found.text()


class _Found:
    """The rules that were found so far, directory by directory."""

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self.room = _MAX_BYTES
        self._blocks: list[str] = []
        self._directory, self._said = "", set[str]()

    def take(self, name: str, data: bytes) -> None:
        if (directory := posixpath.dirname(name)) != self._directory:
            self._directory, self._said = directory, set()
        text = data.decode("utf-8", "replace").strip()
        if text and text not in self._said:
            self._said |= {text, *(f"@{each}" for each in NAMES)}  # the whole of a file that includes the other
            self.room -= len(data)
            self._blocks.append(f"## {name}\n{text}")

    def text(self) -> str:
        blocks = self._blocks
        if self.left_out:
            blocks = [*blocks, f"Read these too before you work below them: {', '.join(self.left_out)}"]
        return "\n\n".join([_HEAD, *blocks]) if blocks else ""


def _told_by(said: Sequence[str]) -> tuple[set[str], dict[str, str]]:
    """Plain files, and what is none or has a second name, with where it leads."""
    plain, links = set[str](), dict[str, str]()
    for name, more in zip(said, [*said[1:], ""], strict=True):
        if name.startswith("./") and more.startswith("="):
            links[name[2:]] = more[1:]
        elif name.startswith("./"):
            plain.add(name[2:])
    return plain, links


def _order(name: str) -> tuple[tuple[str, ...], int]:
    """As a walk from the top meets them."""
    *directories, base = name.split("/")
    return tuple(directories), NAMES.index(base)


def _is_looked_at(name: str) -> bool:
    *directories, base = name.split("/")
    return base in NAMES and len(directories) <= _DEPTH and all(map(_holds_rules, directories))


def _leads_on(path: Path, workspace: Path) -> bool:
    """To a file of the workspace that is not read anyway."""
    real = Path(os.path.realpath(path))
    beside = real.parent == path.parent.resolve() and real.name in NAMES and real.name != path.name
    return real.is_relative_to(workspace) and not (beside and real.is_file())


def _top(workspace: Path) -> Path:
    """Of the repository that the workspace lies in; the workspace where there is none, or it is somebody else's."""
    found = find(workspace)
    return found.top if found is not None and found.top is not None else workspace


def _above(top: Path, workspace: Path) -> list[Path]:
    """The directories from the repository's top down to the one above the workspace."""
    return [each for each in reversed(workspace.parents) if each.is_relative_to(top)]


def _below(workspace: Path) -> Iterator[Path]:
    """The workspace and what is in it, but for where dependencies and builds lie."""
    for directory, _ in beneath.walk(workspace, depth=_DEPTH, most_entries=_ENTRIES, enter=_holds_rules):
        yield workspace / directory


def _holds_rules(name: str) -> bool:
    return not name.startswith(".") and name not in _SKIPPED
