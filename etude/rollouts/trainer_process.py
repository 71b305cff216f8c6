"""The trainer of a run, whatever becomes of its process.

Owns the actor's handle, its restarts, and the steps since the last checkpoint: when the process dies, a new one resumes
from that checkpoint and is given exactly those steps again that the checkpoint does not hold, with the same groups and
the same state. So a step that was asked for happens once, and who asked for it sees nothing but time. Decides nothing
about training, and touches no weight. Talks to: actors.trainer, faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded
from etude.records import Version
from etude.rollouts.actors import trainer
from etude.rollouts.config import RunConfig
from etude.rollouts.faults import START_S, Restarts
from etude.rollouts.health import end, identify
from etude.rollouts.processes import Identity
from etude.rollouts.sample import SampleGroup
from etude.rollouts.waiting import DIED, STEP_S, STOP_S, within
from etude.weights.background import PUBLISHED_S

RESUME_S, PUBLISH_S, SAVE_S = 120.0, 120.0, 60.0


@dataclass(frozen=True)
class _Asked:
    """A step that was asked for: the version it trains, and with what."""

    before: Version
    groups: list[SampleGroup]
    state: dict[str, Any]


class TrainerProcess:
    """One trainer at a time. Use it on one event loop."""

    def __init__(self, config: RunConfig, store: str, directory: Path, restarts: Restarts) -> None:
        self.config, self.restarts = config, restarts
        self._make: Callable[[], Any] = lambda: trainer.TrainerActor.remote(config, store, directory)
        self.actor = self._make()
        self.on_resumed: Callable[[dict[str, Any]], None] = lambda state: None
        """Told what `resume` returns, whenever a new process has taken up the checkpoint."""
        self.identity: Identity | None = None
        self._version = Version(0)
        self._since: list[_Asked] = []
        self._saved: dict[str, Any] | None = None
        self._stepping, self._replacing = asyncio.Lock(), asyncio.Lock()

    async def resume(self) -> dict[str, Any] | None:
        """Take up the newest checkpoint; returns the controller's state that was saved with it, None if there is none.

        Call it once, before anything else.
        """
        while True:
            actor = self.actor
            try:
                return await self._resumed(actor)
            except DIED as died:
                await self._anew(actor, str(died))

    async def publish(self) -> dict[str, Any]:
        """Put the present version into the store, and wait until it is there."""
        return await self._asked(
            lambda actor: actor.publish.remote(), scaled(PUBLISH_S), "the trainer to publish its version"
        )

    async def published(self, version: Version) -> dict[str, Any]:
        """Wait until that version, or a later one in its place, is in the store."""
        seconds = scaled(PUBLISHED_S) + scaled(STOP_S)  # the trainer's own error says more, and comes first
        what = f"version {version} to be published"
        return await self._asked(lambda actor: actor.published.remote(version), seconds, what)

    async def save_model(self, directory: Path) -> None:
        what = "the trainer to save its model"
        await self._asked(lambda actor: actor.save_model.remote(directory), scaled(SAVE_S), what)

    async def step(self, groups: list[SampleGroup], state: dict[str, Any]) -> dict[str, Any]:
        """One optimizer step on these groups; returns its metrics, whichever process made it."""
        async with self._stepping:
            return await self._step(_Asked(self._version, groups, state))

    async def _step(self, asked: _Asked) -> dict[str, Any]:
        while True:
            actor = await self._taken_in()
            try:
                metrics = await within(
                    actor.step.remote(asked.groups, asked.state), scaled(STEP_S), "the trainer's step"
                )
            except (DIED, DeadlineExceeded) as error:
                await self._replace(actor, str(error))
                if self._version == asked.before:
                    continue
                assert self._saved is not None
                metrics = self._saved  # the old process saved it, and died before it could say so
            self._version = Version(metrics["version"])
            self._since.append(asked)
            if self._version % self.config.rollouts.checkpoint_every == 0:
                self._since.clear()
            return metrics

    async def replace(self) -> None:
        """Let a new process, with the code that is on the disk now, go on after the step in progress."""
        async with self._stepping:
            await self._replace(self.actor, "replaced by an operator", counted=False)

    async def _asked(self, call: Callable[[Any], Any], seconds: float, what: str) -> Any:
        while True:
            actor = await self._taken_in()
            try:
                return await within(call(actor), seconds, what)
            except DIED as died:
                await self._replace(actor, str(died))

    async def _taken_in(self) -> Any:
        """The process that there is, once it is as far as the one before it was: none may be asked sooner."""
        async with self._replacing:
            return self.actor

    async def _replace(self, dead: Any, why: str, counted: bool = True) -> None:
        """A new process in the place of a dead one, as far as it was; whoever comes late finds it there."""
        async with self._replacing:
            if self.actor is not dead:
                return
            while True:
                actor = self.actor
                await self._anew(actor, why, counted)
                try:
                    await self._taken_up(self.actor)
                    return
                except (DIED, DeadlineExceeded) as error:  # the store may be away: it is asked again by another
                    why, counted = str(error), True
                except BaseException:
                    end(self.actor, self.identity)  # so that nobody can take it for the one before it
                    raise

    async def _anew(self, dead: Any, why: str, counted: bool = True) -> None:
        end(dead, self.identity)  # it may hang, or be cut off only: two trainers must never write one run
        if counted:
            await self.restarts.pause("trainer", why)
        else:
            self.restarts.note("trainer", why)
        self.actor, self.identity = self._make(), None

    async def _taken_up(self, actor: Any) -> None:
        """Resume, and make those steps again that were done after the checkpoint; one that was not, its caller asks
        for again.
        """
        state = await self._resumed(actor)
        for asked in self._since:
            if asked.before >= self._version:
                metrics = await within(
                    actor.step.remote(asked.groups, asked.state), scaled(STEP_S), "a step to be made again"
                )
                self._version = Version(metrics["version"])
        await within(actor.hand_over.remote(), scaled(RESUME_S), "the trainer to hand its version over")
        if state is not None:
            self.on_resumed(state)

    async def _resumed(self, actor: Any) -> dict[str, Any] | None:
        self.identity = await identify(actor, scaled(START_S), "the trainer's process to start", "health")
        state = await within(actor.resume.remote(), scaled(RESUME_S), "the trainer to load its checkpoint")
        self._saved = state["line"] if state else None
        self._version = Version(state["line"]["version"]) if state else Version(0)
        return state
