"""A session in a sandbox of its own, sealed when it is over, and what is said of it afterwards.

    play ──► Sealed: what was said, and the files that were left ──► judge ──► Judgement

Owns `play_to_seal` and `judge`, the one path that rollouts, evaluations, the benchmark and `etude play` go. The two
halves share nothing but what is sealed, so that the second can be done by another process, on another machine and
later, where the agent never was. Sandboxes are destroyed whatever happens. Knows neither policy nor reward: the caller
brings the session, and scores what comes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property

from etude.environments.archive import Archive, lay_down, take_out
from etude.environments.base import Backend, Sandbox, SandboxSpec, Snapshot
from etude.errors import SandboxError
from etude.harness.session import SessionResult
from etude.records import InfraFailed, Task
from etude.rewards.audit import Workspace
from etude.rewards.audit.state import given_workspace, workspace_of
from etude.rewards.judge import Change
from etude.rewards.judge.outcomes import change_of
from etude.rewards.judgement import Judgement, Judges
from etude.rewards.quality import quality_of
from etude.rewards.quality.talk import last_message
from etude.rewards.verifier import Verdict, verify

_TESTS_ALONE = Judges()


@dataclass(frozen=True)
class Sealed:
    """A session that is over, and /workspace as it left it."""

    result: SessionResult
    final: Archive
    blocked: str = ""
    """Why the workspace could not be taken out, where the session saw to that; `final` is empty then."""

    @cached_property
    def left(self) -> Workspace:
        """The files of `final`, read once for all who judge them."""
        return workspace_of(self.final)


async def play_to_seal(
    task: Task,
    backend: Backend,
    play: Callable[[Sandbox], Awaitable[SessionResult]],
    start: Archive | None = None,
    memory: Snapshot | None = None,
) -> Sealed:
    """`play` gets the sandbox with the task in it, and does not destroy it.

    `start` is what the sandbox holds at first, for a session that goes on; the task's own files, if it is not given.
    `memory` is the same with all that ran there, and is preferred where it can still be had. Raises what `play` and the
    sandbox raise for failures of their own. Cancelling it is safe.
    """
    sandbox = await _from_memory(task, backend, memory)
    revived = sandbox is not None
    if sandbox is None:
        sandbox = await backend.create(SandboxSpec(files=task.files if start is None else {}, image=task.image))
    try:
        if start is not None and not revived:
            await lay_down(start, sandbox)
        return await seal(await play(sandbox), sandbox)
    finally:
        await sandbox.destroy()


async def _from_memory(task: Task, backend: Backend, memory: Snapshot | None) -> Sandbox | None:
    if memory is None:
        return None
    try:
        return await backend.create(SandboxSpec(image=task.image, base=memory))
    except SandboxError:  # its server has forgotten it
        return None


async def seal(result: SessionResult, sandbox: Sandbox) -> Sealed:
    """What a session that has just ended left in its sandbox."""
    try:
        return Sealed(result, await take_out(sandbox))
    except OSError as error:
        return Sealed(result, Archive(), f"the workspace cannot be taken out: {error}")


async def judge(task: Task, sealed: Sealed, backend: Backend, judges: Judges = _TESTS_ALONE) -> Judgement:
    """Verify in a fresh sandbox, then ask whoever else is to be asked. What fails of the sandboxes is InfraFailed.
    Cancelling it is safe, and doing it again gives the same, as far as a model that judges does."""
    if sealed.blocked:
        verdict: Verdict | InfraFailed = Verdict(0.0, "blocked", sealed.blocked)
    else:
        verdict = await verify(task, sealed.final, backend)
    try:
        report = await judges.auditor.audit(task, sealed.result.events, sealed.left) if judges.audited else None
    except SandboxError as error:
        return Judgement(InfraFailed(f"audit of {task.id}: {error}"))
    quality = rubric = None
    if isinstance(verdict, InfraFailed) or not (verdict.reward == 1.0 or judges.always):
        return Judgement(verdict, report)
    if judges.quality.looked_at:
        quality = await quality_of(task, sealed.result.events, sealed.final, sealed.left, backend, judges.quality)
        if isinstance(quality, InfraFailed):
            return Judgement(quality, report)
    criteria = (*judges.aspects.values(), *task.rubric)
    if judges.rubric is not None and criteria:
        rubric = await judges.rubric.judge(criteria, _change(task, sealed))
    return Judgement(verdict, report, quality, rubric)


def _change(task: Task, sealed: Sealed) -> Change:
    given, left = given_workspace(task.files), sealed.left
    return change_of(task.instruction, given.files, left.files, last_message(sealed.result.events))
