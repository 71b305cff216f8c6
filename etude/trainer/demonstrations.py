"""Demonstrations for mid-training and for the fine-tuning control: sessions recorded for real.

Owns `play_script`, by which a script plays a task through the real harness in a sandbox of its own, `record`, by
which an expert of the ladder or of the trail plays many, and `recorded`, what a model reads of those. Never invents
an observation for a session: what the tools said is what the tools said.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable

import structlog

from etude.environments.base import Backend, SandboxSpec
from etude.harness.config import HarnessConfig
from etude.harness.sampler import Chat
from etude.harness.scripted import ScriptedSampler
from etude.harness.session import SessionResult, run_session
from etude.harness.summary import request_of
from etude.records import Task
from etude.tasks.expert import Expert, ExpertConfig
from etude.tasks.trail_expert import TrailExpert, TrailExpertConfig
from etude.trainer.attempts import as_they_end
from etude.trainer.documents import Document, document_of

log = structlog.get_logger()


async def record(
    tasks: Iterable[Task],
    backend: Backend,
    chat: Chat,
    expert: ExpertConfig | TrailExpertConfig,
    harness: HarnessConfig,
    *,
    seed: int,
    concurrency: int = 16,
) -> AsyncIterator[tuple[Task, SessionResult]]:
    """Play every task once; yields sessions in the order they end. A sandbox failure ends the recording with its
    error.
    """

    async def one(task: Task) -> tuple[Task, SessionResult]:
        return task, await play_script(_scripted(task, chat, expert, harness, seed), task, backend, chat, harness, seed)

    played = as_they_end(tasks, one, concurrency)
    async with contextlib.aclosing(played) as sessions:
        async for session in sessions:
            yield session


async def recorded(played: AsyncIterator[tuple[Task, SessionResult]], of: int) -> list[Document]:
    """One document a segment of what `record` yields, in the order of the tasks' ids, which is the seed's: the order in
    which sessions end is the machine's. How many `of` them have ended, the log says at every twentieth part.
    """
    by_task = {}
    async for task, result in played:
        by_task[task.id] = [document_of(segment) for segment in result.segments]
        if len(by_task) % max(1, of // 20) == 0:
            log.info("recording", sessions=len(by_task), of=of)
    return [document for name in sorted(by_task) for document in by_task[name]]


async def play_script(
    script: ScriptedSampler, task: Task, backend: Backend, chat: Chat, harness: HarnessConfig, seed: int
) -> SessionResult:
    """One session. Raises what the sandbox failed by."""
    sandbox = await backend.create(SandboxSpec(files=task.files, image=task.image))
    try:
        return await run_session(
            task.instruction, sandbox, script, chat, harness, task.limits, session_id=f"{task.id}-{seed}", seed=seed,
            files=task.files,
        )  # fmt: skip
    finally:
        await sandbox.destroy()


def _scripted(
    task: Task, chat: Chat, config: ExpertConfig | TrailExpertConfig, harness: HarnessConfig, seed: int
) -> ScriptedSampler:
    if isinstance(config, ExpertConfig):
        return ScriptedSampler(Expert(task, config, seed).next_message, chat)
    walker = TrailExpert(task, config, seed)
    if harness.summary is None:
        return ScriptedSampler(walker.next_message, chat)
    return ScriptedSampler(walker.next_message, chat, walker.summary, request_of(harness.summary))
