"""One rollout: a session in its own sandbox, sealed, and judged in a fresh one.

Owns the path from an `Order` to a `Trajectory`, in two halves that may be done by two processes: `play_order` and
`judge_order`. Every failure of our own machinery ends as `InfraFailed`, never as a reward; sandboxes are destroyed
whatever happens. Talks to: environments, harness, rewards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from etude.environments.base import Backend, Sandbox
from etude.errors import EtudeError
from etude.harness.sampler import Chat, Sampler
from etude.harness.session import SessionResult, run_session
from etude.records import Event, InfraFailed, Task, Trajectory
from etude.rewards.judgement import Judges
from etude.rewards.played import Sealed, judge, play_to_seal
from etude.rewards.reward import score
from etude.rollouts.config import RunConfig

UNJUDGED = InfraFailed("not judged yet")


@dataclass(frozen=True)
class Order:
    """What a worker is asked to play: one attempt at a slot, whose name is `id`."""

    id: str
    group_id: str
    task: Task
    seed: int
    temperature: float = 1.0
    attempt: int = 1


@dataclass(frozen=True)
class SealedRollout:
    """A rollout whose session is over: its trajectory as far as it is known without a judge, and what that needs."""

    order: Order
    trajectory: Trajectory
    """Its outcome is InfraFailed: `UNJUDGED`, or what kept the session from its end."""
    sealed: Sealed | None
    """None where the session did not come to its end."""


async def play(
    order: Order,
    config: RunConfig,
    backend: Backend,
    sampler: Sampler,
    chat: Chat,
    on_event: Callable[[Order, Event], None],
    on_begin: Callable[[Order], None] = lambda order: None,
) -> Trajectory:
    """Run and judge one rollout in this process. Cancellation propagates, after the sandbox is gone."""
    rollout = await play_order(order, config, backend, sampler, chat, on_event, on_begin)
    async with config.rewards.judges() as judges:
        return await judge_order(rollout, config, backend, judges)


async def play_order(
    order: Order,
    config: RunConfig,
    backend: Backend,
    sampler: Sampler,
    chat: Chat,
    on_event: Callable[[Order, Event], None],
    on_begin: Callable[[Order], None] = lambda order: None,
) -> SealedRollout:
    """Run one session to its end and seal what it left; `on_begin` is called when its sandbox is there. Cancellation
    propagates, after the sandbox is gone.
    """
    started, task = time.monotonic(), order.task

    async def session(sandbox: Sandbox) -> SessionResult:
        on_begin(order)
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

    sealed, outcome = None, UNJUDGED
    try:
        sealed = await play_to_seal(task, backend, session)
    except (EtudeError, OSError) as error:
        outcome = InfraFailed(f"{type(error).__name__}: {error}")
    result = sealed.result if sealed else None
    trajectory = Trajectory(
        id=order.id,
        task_id=task.id,
        group_id=order.group_id,
        segments=result.segments if result else (),
        events=result.events if result else (),
        outcome=outcome,
        environment={"backend": backend.capabilities.name, "isolation": backend.capabilities.isolation},
        seconds=time.monotonic() - started,
        usage=result.usage if result else {},
    )
    return SealedRollout(order, trajectory, sealed)


async def judge_order(rollout: SealedRollout, config: RunConfig, backend: Backend, judges: Judges) -> Trajectory:
    """Judge a sealed rollout; one that never came to its end stays what it is. Raises nothing but cancellation."""
    if rollout.sealed is None:
        return rollout.trajectory
    started, task, judgement = time.monotonic(), rollout.order.task, None
    try:
        judgement = await judge(task, rollout.sealed, backend, judges)
        outcome = score(task, rollout.sealed.result, judgement, config.rewards)
    except (EtudeError, OSError) as error:
        outcome = InfraFailed(f"{type(error).__name__}: {error}")
    return replace(
        rollout.trajectory,
        outcome=outcome,
        seconds=rollout.trajectory.seconds + time.monotonic() - started,
        usage={**rollout.trajectory.usage, **(judgement.counts() if judgement else {})},
        findings=judgement.faults if judgement else (),
    )
