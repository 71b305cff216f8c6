"""Whether files that a task protects, the visible tests, were changed at all.

Owns `touched_protected`. Verdicts do not depend on it, as hidden tests come from outside; it is counted, and punished
where `RewardConfig` says so. What a change amounts to is `audit.tests`' question. Reads a sandbox, changes nothing.
"""

from __future__ import annotations

from etude.environments.base import WORKSPACE, Sandbox
from etude.errors import ConfigError
from etude.records import Task


async def touched_protected(task: Task, sandbox: Sandbox) -> tuple[str, ...]:
    """The files named in `task.provenance["protected"]` that are gone or differ from the task's, sorted.

    `sandbox` is a fresh one holding the final state. Raises SandboxError when it cannot be reached.
    """
    touched = []
    for path in sorted(task.provenance.get("protected", ())):
        if path not in task.files:
            raise ConfigError(f"provenance.protected: task {task.id} has no file {path!r}")
        given = task.files[path]
        try:
            found = await sandbox.read_file(f"{WORKSPACE}/{path}", max_bytes=len(given))
        except OSError:  # gone, grown, or no longer a plain file
            found = None
        if found != given:
            touched.append(path)
    return tuple(touched)
