"""A session in a sandbox of its own, sealed when it is over, and what is said of it afterwards: verdict and audit.

    play ──► Sealed: what was said, and the files that were left ──► judge ──► Judgement

Owns `play_to_seal` and `judge`, the one path that rollouts, evaluations, the benchmark and `etude play` go. The two
halves share nothing but what is sealed, so that the second can be done by another process, on another machine and
later, where the agent never was. Sandboxes are destroyed whatever happens. Knows neither policy nor reward: the caller
brings the session, and scores what comes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from etude.environments.archive import Archive, lay_down, take_out
from etude.environments.base import Backend, Sandbox, SandboxSpec
from etude.harness.session import SessionResult
from etude.records import InfraFailed, Task
from etude.rewards.audit import Report, audit_session
from etude.rewards.verifier import Verdict, verify


@dataclass(frozen=True)
class Sealed:
    """A session that is over, and /workspace as it left it."""

    result: SessionResult
    final: Archive
    blocked: str = ""
    """Why the workspace could not be taken out, where the session saw to that; `final` is empty then."""


@dataclass(frozen=True)
class Judgement:
    """What fresh sandboxes and the auditor say of a sealed session."""

    verdict: Verdict | InfraFailed
    report: Report | None
    """The auditor's; None where nobody asked for it."""


async def play_to_seal(
    task: Task,
    backend: Backend,
    play: Callable[[Sandbox], Awaitable[SessionResult]],
    start: Archive | None = None,
) -> Sealed:
    """`play` gets the sandbox with the task in it, and does not destroy it.

    `start` is what the sandbox holds at first, for a session that goes on; the task's own files, if it is not given.
    Raises what `play` and the sandbox raise for failures of their own. Cancelling it is safe.
    """
    sandbox = await backend.create(SandboxSpec(files=task.files if start is None else {}, image=task.image))
    try:
        if start is not None:
            await lay_down(start, sandbox)
        return await seal(await play(sandbox), sandbox)
    finally:
        await sandbox.destroy()


async def seal(result: SessionResult, sandbox: Sandbox) -> Sealed:
    """What a session that has just ended left in its sandbox."""
    try:
        return Sealed(result, await take_out(sandbox))
    except OSError as error:
        return Sealed(result, Archive(), f"the workspace cannot be taken out: {error}")


async def judge(task: Task, sealed: Sealed, backend: Backend, *, audited: bool = False) -> Judgement:
    """Verify in a fresh sandbox; the auditor reads the session where it is asked to. What fails of the verifier's
    sandbox is InfraFailed. Cancelling it is safe, and doing it again gives the same."""
    if sealed.blocked:
        verdict: Verdict | InfraFailed = Verdict(0.0, "blocked", sealed.blocked)
    else:
        verdict = await verify(task, sealed.final, backend)
    return Judgement(verdict, audit_session(task, sealed.result.events, sealed.final) if audited else None)
