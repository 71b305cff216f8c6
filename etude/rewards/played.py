"""A session in a sandbox of its own, and what is said of it in fresh ones: verdict and audit.

Owns `play_and_verify`, the one path that rollouts, evaluations and the benchmark judge by. Sandboxes are destroyed
whatever happens. Knows neither policy nor reward: the caller brings the session, and scores what comes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from etude.environments.base import Backend, Sandbox, SandboxSpec
from etude.harness.session import SessionResult
from etude.records import InfraFailed, Task
from etude.rewards.audit import Report, audit_session
from etude.rewards.verifier import Verdict, verify


async def play_and_verify(
    task: Task, backend: Backend, play: Callable[[Sandbox], Awaitable[SessionResult]], *, audited: bool = False
) -> tuple[SessionResult, Verdict | InfraFailed, Report | None]:
    """`play` gets the sandbox with the task in it, and does not destroy it. The auditor reads the session where it is
    asked to. Raises what `play`, the sandbox and the auditor's raise for failures of their own; those of the verifier's
    sandbox are InfraFailed. Cancelling it is safe."""
    sandbox = await backend.create(SandboxSpec(files=task.files, image=task.image))
    try:
        result = await play(sandbox)
        snapshot = await sandbox.snapshot()
    finally:
        await sandbox.destroy()
    try:
        verdict = await verify(task, snapshot, backend)
        return result, verdict, await audit_session(task, result.events, snapshot, backend) if audited else None
    finally:
        await backend.release(snapshot)
