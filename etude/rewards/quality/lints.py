"""The lints that a session brought in, found where it never was.

Owns `introduced`. The workspace as it was left is laid into a fresh sandbox, with the linters' settings as they were
given: a session cannot silence its judge by switching rules off, and lines that ask linters to look away count as
findings. What a linter finds is compared as the agent's own `read_lints` compares it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from etude.environments.archive import Archive, blamed
from etude.environments.base import WORKSPACE, Backend, Sandbox, SandboxSpec
from etude.errors import CheckpointError, DeadlineExceeded, SandboxError, SandboxSpoiled
from etude.harness.tools.agent.lints import LintRun, new_lints
from etude.harness.tools.base import BASELINE, ToolConfig, ToolError
from etude.records import InfraFailed, Task
from etude.rewards.fresh import with_state
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
    """One line a finding; InfraFailed where the sandbox or a linter failed. Raises SandboxSpoiled where that is the
    doing of what was left: what the task gave can be linted."""
    changed = sorted(path for path in after if after[path] != task.files.get(path))
    looked_away = [line for path in changed for line in _looks_away(path, task.files.get(path, b""), after[path])]
    if not changed:
        return ()

    async def lint(sandbox: Sandbox) -> LintRun:
        await _settings_as_given(task, after, sandbox)
        return await _linted(sandbox, _Given(task.files, changed))

    async def control(sandbox: Sandbox) -> object:
        return await _linted(sandbox, _Given(task.files, sorted(task.files)))

    try:
        found = await with_state(task, backend, SandboxSpec(image=task.image), final, lint, control)
    except SandboxSpoiled:
        raise
    except (SandboxError, DeadlineExceeded) as error:
        return InfraFailed(f"lints of {task.id}: {type(error).__name__}: {error}")
    return (*(f"{name}:{each.line}: {each.text}" for name, each in found.findings), *looked_away)


async def _linted(sandbox: Sandbox, given: _Given) -> LintRun:
    token = BASELINE.set(given)
    try:
        return await new_lints(sandbox, ToolConfig(), None)
    except (OSError, ToolError, CheckpointError) as error:
        raise SandboxError(f"linters: {type(error).__name__}: {error}") from error
    finally:
        BASELINE.reset(token)


async def _settings_as_given(task: Task, after: Mapping[str, bytes], sandbox: Sandbox) -> None:
    for path in sorted({*task.files, *after}):
        if posixpath.basename(path) not in _SETTINGS or task.files.get(path) == after.get(path):
            continue
        try:
            if path in task.files:
                await sandbox.write_file(f"{WORKSPACE}/{path}", task.files[path])
            else:
                await sandbox.remove(f"{WORKSPACE}/{path}")
        except OSError as error:
            raise blamed(error, f"cannot put {path} back") from error


def _looks_away(path: str, old: bytes, new: bytes) -> list[str]:
    before, after = old.decode("utf-8", "replace"), new.decode("utf-8", "replace")
    lines = after.split("\n")
    return [
        f"{path}:{number}: asks a linter to look away: {lines[number - 1].strip()[:80]}"
        for number in sorted(added_lines(before, after))
        if _LOOK_AWAY.search(lines[number - 1])
    ]
