"""One rollout: a session in its own sandbox, judged in a fresh one.

Owns the path from an `Order` to a `Trajectory`. Every failure of our own machinery ends as `InfraFailed`, never as a
reward; sandboxes are destroyed whatever happens. Talks to: environments, harness, rewards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from etude.environments.base import Backend, Sandbox
from etude.errors import EtudeError
from etude.harness.sampler import Chat, Sampler
from etude.harness.session import SessionResult, run_session
from etude.records import Event, InfraFailed, Outcome, Task, Trajectory
from etude.rewards.audit import Report
from etude.rewards.played import play_and_verify
from etude.rewards.reward import score
from etude.rollouts.config import RunConfig


@dataclass(frozen=True)
class Order:
    """What a worker is asked to play."""

    id: str
    group_id: str
    task: Task
    seed: int
    temperature: float = 1.0


async def play(
    order: Order,
    config: RunConfig,
    backend: Backend,
    sampler: Sampler,
    chat: Chat,
    on_event: Callable[[Order, Event], None],
) -> Trajectory:
    """Run and judge one rollout. Cancellation propagates, after the sandbox is gone."""
    started = time.monotonic()
    result: SessionResult | None = None
    report: Report | None = None
    try:
        result, report, outcome = await _run_and_judge(order, config, backend, sampler, chat, on_event)
    except (EtudeError, OSError) as error:
        outcome = InfraFailed(f"{type(error).__name__}: {error}")
    return Trajectory(
        id=order.id,
        task_id=order.task.id,
        group_id=order.group_id,
        segments=result.segments if result else (),
        events=result.events if result else (),
        outcome=outcome,
        environment={"backend": backend.capabilities.name, "isolation": backend.capabilities.isolation},
        seconds=time.monotonic() - started,
        usage={**(result.usage if result else {}), **_audited(report)},
        findings=tuple(map(str, report.findings)) if report else (),
    )


async def _run_and_judge(
    order: Order,
    config: RunConfig,
    backend: Backend,
    sampler: Sampler,
    chat: Chat,
    on_event: Callable[[Order, Event], None],
) -> tuple[SessionResult, Report | None, Outcome]:
    task = order.task

    async def session(sandbox: Sandbox) -> SessionResult:
        return await run_session(
            task.instruction,
            sandbox,
            sampler,
            chat,
            config.harness,
            task.limits,
            session_id=order.id,
            seed=order.seed,
            temperature=order.temperature,
            on_event=lambda event: on_event(order, event),
        )

    result, verdict, report = await play_and_verify(task, backend, session, audited=config.rewards.audit != "off")
    return result, report, score(task, result, verdict, config.rewards, report)


def _audited(report: Report | None) -> dict[str, int]:
    """What a run counts of the auditor's reports."""
    if report is None:
        return {}
    return {"audited": 1, "cheats_found": int(report.cheated), "findings": len(report.findings)}
