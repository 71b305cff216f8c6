"""The lints that a session brought in, found where it never was.

Owns `introduced`. The workspace as it was left is laid into a fresh sandbox, with the linters' settings as they were
given: a session cannot silence its judge by switching rules off, and lines that ask linters to look away count as
findings. What a linter finds is compared as the agent's own `read_lints` compares it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from etude.environments.archive import Archive, lay_down
from etude.environments.base import WORKSPACE, Backend, Sandbox, SandboxSpec
from etude.errors import EtudeError
from etude.harness.tools.agent.lints import new_lints
from etude.harness.tools.base import BEGINNING, ToolConfig, ToolError
from etude.records import InfraFailed, Task
from etude.rewards.quality.style import added_lines

_SETTINGS = {
    "pyproject.toml", "setup.cfg", "tox.ini", "ruff.toml", ".ruff.toml", ".flake8", "eslint.config.js", ".eslintrc",
    ".eslintrc.json", ".eslintrc.js", "eslint.config.mjs", ".shellcheckrc",
}  # fmt: skip
_LOOK_AWAY = re.compile(
    r"#\s*noqa\b|#\s*type:\s*ignore|#\s*(?:ruff|flake8|pylint|mypy):"
    r"|eslint-disable|@ts-(?:ignore|nocheck)|shellcheck disable"
)


class _Given:
    """The task's files, as `read_lints` asks for what was there when a session began."""

    def __init__(self, before: Mapping[str, bytes], changed: list[str]) -> None:
        self._before, self._changed = before, changed

    async def changed(self) -> list[str]:
        return self._changed

    async def read(self, path: str) -> bytes | None:
        return self._before.get(path)


async def introduced(
    task: Task, final: Archive, after: Mapping[str, bytes], backend: Backend
) -> tuple[str, ...] | InfraFailed:
    """One line a finding; InfraFailed where the sandbox or a linter failed."""
    changed = sorted(path for path in after if after[path] != task.files.get(path))
    looked_away = [line for path in changed for line in _looks_away(path, task.files.get(path, b""), after[path])]
    if not changed:
        return ()
    sandbox = None
    token = BEGINNING.set(_Given(task.files, changed))
    try:
        sandbox = await backend.create(SandboxSpec(image=task.image))
        await lay_down(final, sandbox)
        await _settings_as_given(task, after, sandbox)
        found = await new_lints(sandbox, ToolConfig(), None)
    except (EtudeError, OSError, ToolError) as error:
        return InfraFailed(f"lints of {task.id}: {type(error).__name__}: {error}")
    finally:
        BEGINNING.reset(token)
        if sandbox is not None:
            await sandbox.destroy()
    return (*(f"{name}:{each.line}: {each.text}" for name, each in found.findings), *looked_away)


async def _settings_as_given(task: Task, after: Mapping[str, bytes], sandbox: Sandbox) -> None:
    for path in sorted({*task.files, *after}):
        if posixpath.basename(path) not in _SETTINGS or task.files.get(path) == after.get(path):
            continue
        if path in task.files:
            await sandbox.write_file(f"{WORKSPACE}/{path}", task.files[path])
        else:
            await sandbox.remove(f"{WORKSPACE}/{path}")


def _looks_away(path: str, old: bytes, new: bytes) -> list[str]:
    before, after = old.decode("utf-8", "replace"), new.decode("utf-8", "replace")
    lines = after.split("\n")
    return [
        f"{path}:{number}: asks a linter to look away: {lines[number - 1].strip()[:80]}"
        for number in sorted(added_lines(before, after))
        if _LOOK_AWAY.search(lines[number - 1])
    ]
