"""A session in a sandbox of its own, sealed when it is over, and what is said of it afterwards.

    play ──► Sealed: what was said, and the files that were left ──► judge ──► Judgement

Owns `run_to_seal` and `judge`, the one path that rollouts, evaluations, the benchmark and `etude play` go. The two
halves share nothing but what is sealed, so that the second can be done by another process, on another machine and
later, where the agent never was. Sandboxes are destroyed whatever happens. Knows neither policy nor reward: the caller
brings the session, and scores what comes back.

A policy cannot choose to be unscored. What it left may make any of this fail; whose fault that is decides between a
verdict of 0 and InfraFailed:

    what is done      what fails                                  whose, and how that is known          outcome
    a command         does not start, is killed, runs too long    theirs: it is an answer               goes on
                      process 1 was ended by commands             theirs: SandboxSpoiled                blocked
                      the sandbox or its server is gone           ours: nothing says otherwise          InfraFailed
    a checkpoint      the files cannot be taken out               theirs: SandboxSpoiled                goes on
                      no snapshot of the memory can be had        nobody asks: the files will do        goes on
    freezing          somebody does not stand still in time       nobody asks: see checkpoint           goes on
    snapshot, fork    what was changed cannot be copied           theirs, if an empty tree can be       SandboxSpoiled
                      too slow, the disk is full                  ours                                  InfraFailed
    taking out        too much, too long a path, not readable     theirs, by the control                blocked
                      the sandbox is gone                         ours, but for SandboxSpoiled          InfraFailed
    laying down       refused by what is in it, no room           theirs, by the control                blocked
                      a torn archive, a disk that fails           ours: StorageFailed                   InfraFailed
                      the sandbox dies or hangs                   theirs, twice and by the control      blocked
    verifier's files  something stands in their way               theirs                                blocked
    verifier's run    exit, endless loop, no number               theirs: it is an answer               failed, …
                      the sandbox dies before the reward is read  theirs, twice and by the control      crashed
    reading it        more names than its size allows, odd ones   theirs, by what is read               blocked
    auditor, diff     what is sealed cannot be read               theirs: it is read as far as it goes  goes on
    lints             the sandbox dies, a linter fails            theirs, by a control that is linted   blocked
    any sandbox       cannot be made, no server answers           ours                                  InfraFailed
                      it lacks what the task has installed        ours                                  InfraFailed

The control is `rewards.fresh`: what the task begins with goes the same way, and fares better.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from etude.environments.archive import Archive, take_out, unpack
from etude.environments.base import Backend, Sandbox, SandboxSpec, Snapshot
from etude.errors import SandboxError, SandboxSpoiled
from etude.harness.claims import last_message
from etude.harness.session import SessionResult
from etude.records import InfraFailed, Task
from etude.rewards.audit import Workspace
from etude.rewards.audit.state import given_workspace, workspace_of
from etude.rewards.fresh import check_control
from etude.rewards.judge import Change
from etude.rewards.judge.outcomes import change_of
from etude.rewards.judgement import Judgement, Judges, Part
from etude.rewards.legible import legible
from etude.rewards.quality import quality_of
from etude.rewards.verifier import Verdict, verify
from etude.tasks.mined.shown import require_environments

_TESTS_ALONE = Judges()


@dataclass(frozen=True)
class Sealed:
    """A session that is over, and /workspace as it left it."""

    result: SessionResult
    final: Archive
    blocked: str = ""
    """Why the workspace could not be taken out, where the session saw to that; `final` is empty then."""

    @cached_property
    def left(self) -> Workspace | None:
        """The files of `final`, read once for all who judge them; None where there is nothing that could be taken out
        or laid down. Raises StorageFailed for a torn archive."""
        try:
            return None if self.blocked else workspace_of(self.final)
        except SandboxSpoiled:
            return None


async def run_to_seal(
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
        await require_environments(task, sandbox)
        if start is not None and not revived:
            await unpack(start, sandbox)
        result = await play(sandbox)
        if result.spoiled:
            return Sealed(result, Archive(), result.spoiled)
        try:
            return Sealed(result, await take_out(sandbox))
        except SandboxSpoiled as error:
            spoiled = error
    finally:
        await sandbox.destroy()
    await check_control(task, backend, spoiled)
    return Sealed(result, Archive(), str(spoiled))


async def _from_memory(task: Task, backend: Backend, memory: Snapshot | None) -> Sandbox | None:
    if memory is None:
        return None
    try:
        return await backend.create(SandboxSpec(image=task.image, base=memory))
    except SandboxError:  # its server has forgotten it
        return None


async def judge(task: Task, sealed: Sealed, backend: Backend, judges: Judges = _TESTS_ALONE) -> Judgement:
    """Verify in a fresh sandbox, then ask whoever else is to be asked. What fails of the sandboxes is InfraFailed.
    Cancelling it is safe, and doing it again gives the same, as far as a model that judges does."""
    if sealed.blocked:
        verdict: Verdict | InfraFailed = _blocked(sealed.blocked)
    else:
        verdict = await verify(task, sealed.final, backend, verdicts=judges.verdicts)
    try:
        left = await asyncio.to_thread(lambda: sealed.left)
        if left is None:  # what nobody has seen was not deleted: only what the session did can be held against it
            left = given_workspace(task.files)
        report = await judges.auditor.audit(task, sealed.result.events, left) if judges.audited else None
    except SandboxError as error:
        return Judgement(InfraFailed(f"audit of {task.id}: {error}"))
    quality = rubric = None
    if isinstance(verdict, InfraFailed):
        return Judgement(verdict, report)
    parts, failed = await asyncio.to_thread(_parts, task, sealed, verdict, judges.parts)
    if not (verdict.reward == 1.0 or judges.always):
        return Judgement(verdict, report, parts=parts, failed_parts=failed)
    if judges.quality.looked_at:
        try:
            seen = (await asyncio.to_thread(legible, task.files, sealed.final)).state  # what the verifier saw
            assert isinstance(seen, Archive)
            quality = await quality_of(task, sealed.result.events, seen, workspace_of(seen), backend, judges.quality)
        except SandboxSpoiled as error:
            return Judgement(_blocked(str(error)), report)
        if isinstance(quality, InfraFailed):
            return Judgement(quality, report)
    criteria = (*judges.aspects.values(), *task.rubric)
    if judges.rubric is not None and criteria:
        rubric = await judges.rubric.judge(criteria, await asyncio.to_thread(_change, task, sealed))
    return Judgement(verdict, report, quality, rubric, parts, failed)


def _parts(
    task: Task, sealed: Sealed, verdict: Verdict, parts: Mapping[str, Part]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Whatever a session leaves, a part of somebody else's that fails on it must not lose the rollout."""
    values, failed = dict.fromkeys(parts, 0.0), []
    for name, part in parts.items():
        try:
            value = float(part(task, sealed.result, sealed.left or Workspace({}, {}), verdict))
            if not math.isfinite(value):
                raise ValueError(f"said {value}")
            values[name] = value
        except Exception as error:
            failed.append(f"rewards.parts.{name}: {type(error).__name__}: {error}"[:500])
    return values, tuple(failed)


def _blocked(why: str) -> Verdict:
    return Verdict(0.0, "blocked", why)


def _change(task: Task, sealed: Sealed) -> Change:
    given = given_workspace(task.files)
    left = sealed.left or given
    return change_of(task.instruction, given.files, left.files, last_message(sealed.result.events))
