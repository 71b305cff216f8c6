"""Demonstrations for mid-training and for the fine-tuning control: sessions recorded for real.

Owns `record`: a scripted expert, of the ladder or of the trail, plays tasks through the real harness, each in its own
sandbox. Never invents an observation for a session: what the tools said is what the tools said.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable

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
    played = as_they_end(tasks, lambda task: _play(task, backend, chat, expert, harness, seed), concurrency)
    async with contextlib.aclosing(played) as sessions:
        async for session in sessions:
            yield session


async def _play(
    task: Task,
    backend: Backend,
    chat: Chat,
    config: ExpertConfig | TrailExpertConfig,
    harness: HarnessConfig,
    seed: int,
) -> tuple[Task, SessionResult]:
    sandbox = await backend.create(SandboxSpec(files=task.files, image=task.image))
    try:
        sampler = _scripted(task, chat, config, harness, seed)
        result = await run_session(
            task.instruction, sandbox, sampler, chat, harness, task.limits, session_id=f"{task.id}-{seed}", seed=seed,
            files=task.files,
        )  # fmt: skip
        return task, result
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
