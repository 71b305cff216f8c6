"""Whether the search helps an agent: the same scripted one with `codebase_search` and without, on mined tasks.

Owns `sought`, which plays `seeker` on each task both ways, by the product's own tools in a directory of this machine. A
file is found where lines of it were read; a row of a grep or of an outline reads none. What had been spent when the
first right file was read is told beside it: all, where none was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from searching.seeker import POLICY, Found, Policy, Seeker
from searching.sets import Question
from searching.trees import git

from etude.environments.base import Sandbox
from etude.environments.build import guest_program
from etude.environments.local import WorkspaceConfig, open_workspace
from etude.harness.tools import ToolConfig
from etude.harness.tools.agent.codebase import CODEBASE_SEARCH
from etude.harness.tools.agent.files import READ_FILE
from etude.harness.tools.agent.find import GLOB, GREP
from etude.harness.tools.agent.indexed import keep_on_disk
from etude.harness.tools.base import ToolError
from etude.host.home import default_cache

WAYS = {"with": True, "without": False}
_TOOLS = {tool.name: tool for tool in (CODEBASE_SEARCH, GLOB, GREP, READ_FILE)}
Figures = dict[str, list[float]]


async def sought(questions: Iterable[Question], policy: Policy = POLICY) -> dict[str, Figures]:
    """By way, each figure of each question. Trees of one repository follow each other."""
    figures: dict[str, Figures] = {way: {} for way in WAYS}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, cache_at(Path(place) / "cache"):
        here: Workspace | None = None
        try:
            for question in questions:
                if here is None or here.repository != question.repository:
                    if here is not None:
                        await here.sandbox.destroy()
                    here = await opened(Path(place), question.repository)
                here.become(question.tree)
                for way, searches in WAYS.items():
                    found = await Seeker(here.ask, question.text, searches, policy).seek()
                    for key, value in figures_of(question, found).items():
                        figures[way].setdefault(key, []).append(value)
        finally:
            if here is not None:
                await here.sandbox.destroy()
    return figures


def figures_of(question: Question, found: Found) -> dict[str, float]:
    """Shares of the right files and functions that were read, what was spent, and what by the first right file."""
    files = {path for _, _, path, _, _ in found.read} & question.files
    spans = [
        any(path == read and a <= last and first <= b for _, _, read, a, b in found.read)
        for path, first, last in question.functions
    ]
    first = next(((s, t) for s, t, path, _, _ in found.read if path in question.files), (found.steps, found.tokens))
    return {
        "files_found": len(files) / len(question.files),
        "functions_found": sum(spans) / len(spans) if spans else float("nan"),
        "tokens": found.tokens, "steps": found.steps,
        "tokens_to_first": first[1], "steps_to_first": first[0],
    }  # fmt: skip


@contextlib.contextmanager
def cache_at(place: Path) -> Iterator[None]:
    """An index of its own; the sandbox's program, which lies in the same cache, is not built anew for that."""
    (place / "etude").mkdir(parents=True)
    shutil.copy(guest_program(default_cache()), place / "etude")
    before, os.environ["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME"), str(place)
    try:
        yield
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        os.environ |= {} if before is None else {"XDG_CACHE_HOME": before}


class Workspace:
    """A directory that becomes one tree after the other, and a sandbox in it."""

    def __init__(self, root: Path, repository: str, sandbox: Sandbox) -> None:
        self.root, self.repository, self.sandbox = root, repository, sandbox
        self._tree: dict[str, bytes] = {}
        self._config = ToolConfig(command_timeout_s=600)  # a busy machine is no answer

    def become(self, tree: dict[str, bytes]) -> None:
        for path in self._tree.keys() - tree.keys():
            (self.root / path).unlink()
            for folder in map(self.root.joinpath, Path(path).parents[:-1]):
                if next(folder.iterdir(), None) is not None:
                    break
                folder.rmdir()
        for path, data in tree.items():
            if self._tree.get(path) != data:
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                (self.root / path).write_bytes(data)
        self._tree = tree

    async def ask(self, tool: str, arguments: dict[str, Any]) -> str:
        try:
            return await _TOOLS[tool].run(self.sandbox, self._config, arguments)
        except ToolError as error:
            return str(error)


async def opened(place: Path, repository: str) -> Workspace:
    root = Path(tempfile.mkdtemp(dir=place))
    git(root, "init", "-q")
    sandbox = await open_workspace(root, WorkspaceConfig())
    keep_on_disk(sandbox, root)
    return Workspace(root, repository, sandbox)
