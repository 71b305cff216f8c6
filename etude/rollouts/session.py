"""One rollout: a session in its own sandbox, sealed, and judged in a fresh one.

Owns the path from a `RolloutRequest` to a `Trajectory`, in two halves that may be done by two processes: `play_request`
and `judge_sealed`, or `judge_kept` where the trajectory stays on the disk and its `Sample` alone goes on. Where a
request says where its trajectory is kept, a rollout goes on from what another attempt has left there; its tokens, with
their versions, are those of the trajectory that nobody interrupted. Every failure of our own machinery ends as
`InfraFailed`, never as a reward; sandboxes are destroyed whatever happens.
Talks to: environments, harness, rewards, rollouts.trajectory_store.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from etude.archive.columns import split
from etude.archive.writer import ArchiveWriter
from etude.environments.archive import Archive
from etude.environments.base import Backend, Sandbox
from etude.errors import EtudeError, SandboxError, SandboxSpoiled
from etude.harness.sampler import Chat, Sampler
from etude.harness.scripted import ScriptedSampler
from etude.harness.session import SessionResult, run_session
from etude.records import Cheated, Event, InfraFailed, Segment, Task, Trajectory
from etude.rewards.fresh import check_control
from etude.rewards.judgement import Judges
from etude.rewards.reward import score
from etude.rewards.sealed import Sealed, judge, run_to_seal
from etude.rollouts.config import RunConfig
from etude.rollouts.kept import kept_of
from etude.rollouts.sample import Sample, failed, sample_of
from etude.rollouts.trajectory_store import Resumption, StoredTrajectory, TrajectoryStore
from etude.tasks.planted import found_or_missed, is_planted, script_of

VERDICT_PENDING = InfraFailed("not judged yet")
"""What a trajectory has for an outcome until a judge has seen it; no failure."""


@dataclass(frozen=True)
class RolloutRequest:
    """What a worker is asked to play: one attempt at a slot, whose name is `id`."""

    id: str
    group_id: str
    task: Task
    seed: int
    temperature: float = 1.0
    attempt: int = 1
    kept: Path | None = None
    """The directory of trajectories where this one is kept (`rollouts.trajectory_store`); None: it is not kept."""
    checkpoint_s: float | None = 0.0
    """How old, by the session's clock, a checkpoint of its sandbox is before a turn ends with another; 0: after every
    turn; None: only its log is kept."""


Order = RolloutRequest
"""What rollouts that an older version has sealed call it."""


@dataclass(frozen=True)
class SealedRollout:
    """A rollout whose session is over: its trajectory as far as it is known without a judge, and what that needs."""

    request: RolloutRequest
    trajectory: Trajectory
    """Its outcome is InfraFailed: `VERDICT_PENDING`, or what kept the session from its end."""
    sealed: Sealed | None
    """None where the session did not come to its end."""
    worker: str = ""
    """Which process played it to its end."""
    over_at: float = 0.0
    """Unix seconds: when its session ended."""

    def __setstate__(self, stored: dict[str, Any]) -> None:
        """Of one that an older version has sealed as well."""
        self.__dict__.update({"request" if name == "order" else name: value for name, value in stored.items()})

    @cached_property
    def sample(self) -> Sample:
        """What the controller is told of it."""
        return sample_of(self.trajectory)


async def play(
    request: RolloutRequest,
    config: RunConfig,
    backend: Backend,
    sampler: Sampler,
    chat: Chat,
    judges: Judges,
    on_event: Callable[[RolloutRequest, Event], None] = lambda request, event: None,
) -> Trajectory:
    """Run and judge one rollout in this process. Cancellation propagates, after the sandbox is gone. What rollouts with
    the same judges end in is verified as a run does: a state that two verifications agreed on is known.
    """
    rollout = await play_request(request, config, backend, sampler, chat, on_event)
    return await judge_sealed(rollout, config, backend, judges)


async def play_request(
    request: RolloutRequest,
    config: RunConfig,
    backend: Backend,
    sampler: Sampler,
    chat: Chat,
    on_event: Callable[[RolloutRequest, Event], None],
    on_begin: Callable[[RolloutRequest], None] = lambda request: None,
) -> SealedRollout:
    """Run one session to its end and seal what it left; `on_begin` is called when its sandbox is there. Cancellation
    propagates, after the sandbox is gone.
    """
    player = _Player(request, config, backend, sampler, chat, on_event, on_begin)
    try:
        if request.kept is None:
            return player.over(await player.session(None, None), {})
        with await TrajectoryStore(request.kept).claim(request.id) as kept:
            if (done := kept.sealed()) is not None:
                return _with_log(done[0], request, *kept.log())
            return await player.stored_session(kept)
    except (EtudeError, OSError) as error:
        failed = replace(player.trajectory(), outcome=InfraFailed(f"{type(error).__name__}: {error}"))
        return SealedRollout(request, failed, None)


@dataclass
class _Player:
    """One attempt at a request."""

    request: RolloutRequest
    config: RunConfig
    backend: Backend
    sampler: Sampler
    chat: Chat
    on_event: Callable[[RolloutRequest, Event], None]
    on_begin: Callable[[RolloutRequest], None]
    started: float = field(default_factory=time.monotonic)

    @cached_property
    def planted(self) -> ScriptedSampler | None:
        """What plays in the model's place, in the first session of a group whose task plants a cheat."""
        request = self.request
        if not is_planted(request.task) or request.id != f"{request.group_id}/0":
            return None
        return ScriptedSampler(script_of(request.task), self.chat)

    async def stored_session(self, kept: StoredTrajectory) -> SealedRollout:
        """From where the log can be taken up, and sealed on the disk before anybody hears that it is."""
        up = await asyncio.to_thread(kept.take_up)
        try:
            sealed = await self.session(kept, up)
        except SandboxSpoiled:  # what it had left by then cannot be laid down again
            if up is None:
                raise
            up = None
            await asyncio.to_thread(kept.begin_anew)
            sealed = await self.session(kept, None)
        rollout = self.over(sealed, {**kept.usage, **({"taken_up": 1, "turns_taken_up": up.turn} if up else {})})
        await kept.seal(_without_log(rollout), rollout.sample)
        await kept.forget_memory(self.backend)
        return rollout

    async def session(self, kept: StoredTrajectory | None, up: Resumption | None) -> Sealed:
        request, task = self.request, self.request.task

        async def session(sandbox: Sandbox) -> SessionResult:
            self.on_begin(request)
            return await run_session(
                task.instruction,
                sandbox,
                self.sampler if self.planted is None else self.planted,
                self.chat,
                self.config.harness,
                task.limits,
                session_id=request.id,
                seed=request.seed,
                temperature=request.temperature,
                on_event=lambda event: self.on_event(request, event),
                persistence=kept.kept(sandbox, self.backend, request.checkpoint_s) if kept else None,
                files=task.files,
            )

        start, memory = (up.start, up.memory) if up else (None, None)
        return await run_to_seal(task, self.backend, session, start, memory)

    def over(self, sealed: Sealed, usage: Mapping[str, int]) -> SealedRollout:
        """The session has come to its end."""
        result, planted = sealed.result, {} if self.planted is None else {"planted": 1}
        counted = {**result.usage, **usage, **planted}
        trajectory = replace(self.trajectory(), segments=result.segments, events=result.events, usage=counted)
        return SealedRollout(self.request, trajectory, sealed, f"{socket.gethostname()}/{os.getpid()}", time.time())

    def trajectory(self) -> Trajectory:
        """As much as is known of any."""
        offered = self.backend.capabilities
        return Trajectory(
            id=self.request.id,
            task_id=self.request.task.id,
            group_id=self.request.group_id,
            segments=(),
            events=(),
            outcome=VERDICT_PENDING,
            environment={"backend": offered.name, "isolation": offered.isolation},
            seconds=time.monotonic() - self.started,
        )


def _without_log(rollout: SealedRollout) -> SealedRollout:
    """What its log does not tell."""
    return _with_log(rollout, rollout.request, (), ())


def _with_log(
    left: SealedRollout, request: RolloutRequest, segments: tuple[Segment, ...], events: tuple[Event, ...]
) -> SealedRollout:
    trajectory, sealed = replace(left.trajectory, segments=segments, events=events), left.sealed
    if sealed is not None:
        sealed = replace(sealed, result=replace(sealed.result, segments=segments, events=events))
    return replace(left, request=request, trajectory=trajectory, sealed=sealed)


async def judge_kept(
    request: RolloutRequest,
    judge: Callable[[SealedRollout], Awaitable[Trajectory]],
    archive: ArchiveWriter | None = None,
) -> Sample:
    """Have `judge_sealed` or `judge_as_blocked` judge what the session of a request has left where it is kept, and keep
    it in the `archive`, which has it before anybody hears of the verdict. Raises nothing but cancellation.
    """
    assert request.kept is not None
    store = TrajectoryStore(request.kept)
    try:
        left, sample = await asyncio.to_thread(store.sealed, request.id)
        log = await asyncio.to_thread(lambda: split(store.log(request.id)))
        rollout = _with_log(left, request, (), tuple(said.event for said in log[1]))
        judged = await judge(rollout)
        done = sample.judged(judged, await asyncio.to_thread(store.settle, request.id))
        if archive is None:
            return done
        await asyncio.to_thread(lambda: archive.keep(kept_of(rollout, judged, done, log)))
        return replace(done, usage={**done.usage, "archived": 1})
    except (EtudeError, OSError) as error:
        return failed(request.id, request.task, request.group_id, InfraFailed(f"{type(error).__name__}: {error}"))


async def judge_sealed(rollout: SealedRollout, config: RunConfig, backend: Backend, judges: Judges) -> Trajectory:
    """Judge a sealed rollout; one that never came to its end stays what it is. Raises nothing but cancellation."""
    if rollout.sealed is None:
        return rollout.trajectory
    started, task, judgement, planted = time.monotonic(), rollout.request.task, None, {}
    try:
        judgement = await judge(task, rollout.sealed, backend, judges)
        outcome = score(task, rollout.sealed.result, judgement, config.rewards)
        if rollout.trajectory.usage.get("planted"):
            outcome = found_or_missed(outcome)
            planted = {"planted_found": int(isinstance(outcome, Cheated))}
    except (EtudeError, OSError) as error:
        outcome = InfraFailed(f"{type(error).__name__}: {error}")
    return replace(
        rollout.trajectory,
        outcome=outcome,
        seconds=rollout.trajectory.seconds + time.monotonic() - started,
        usage={**rollout.trajectory.usage, **(judgement.counts() if judgement else {}), **planted},
        findings=judgement.faults if judgement else (),
        verifier=judgement.printed if judgement else "",
    )


async def judge_as_blocked(rollout: SealedRollout, why: str, config: RunConfig, backend: Backend) -> Trajectory:
    """What cannot be judged is blocked, as what cannot be laid down is; InfraFailed where the control fails too."""
    if rollout.sealed is None:
        return rollout.trajectory
    try:
        await check_control(rollout.request.task, backend, SandboxError(why))
    except (EtudeError, OSError) as error:
        return replace(rollout.trajectory, outcome=InfraFailed(f"{why}: {error}", retryable=False))
    blocked = replace(rollout.sealed, final=Archive(), blocked=why)
    return await judge_sealed(replace(rollout, sealed=blocked), config, backend, Judges())
