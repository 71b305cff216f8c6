"""The processes that run sessions, each with many sandboxes, and how they reach an engine.

A worker plays the rollouts it is asked for and seals each on the disk; what it hands back is the `Sample` alone. It
calls an engine once a turn (`router` says which), and never the controller. Talks to: environments, harness,
rollouts.session and router.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import AsyncExitStack
from typing import Any

from etude.environments.backends import open_when_there
from etude.environments.base import Backend
from etude.environments.cluster.calls import actor
from etude.records import Event
from etude.rollouts.config import RunConfig
from etude.rollouts.ray_process import OrderActor
from etude.rollouts.router import FleetView, RemoteSampler
from etude.rollouts.sample import Sample
from etude.rollouts.session import RolloutRequest, SealedRollout, play_request
from etude.tasks.mined.shown import showing


@actor(num_cpus=0, max_concurrency=1000)
class SessionWorker(OrderActor[SealedRollout, Backend]):
    """One process of concurrent sessions with their sandboxes. If it dies, its pool starts another, and its sessions
    go on elsewhere from their checkpoints.
    """

    def __init__(self, config: RunConfig) -> None:
        from etude.models.chat import open_chat

        super().__init__()
        self.config = config
        self.chat = open_chat(config.model.path)
        self.sampler = RemoteSampler()
        self.begun: dict[str, asyncio.Event] = {}
        self.watched: str | None = None
        self.recent: deque[tuple[str, str, Event]] = deque(maxlen=64)

    async def open(self, closing: AsyncExitStack) -> Backend:
        backend = await open_when_there(showing(self.config.environment))
        closing.push_async_callback(backend.close)
        return backend

    async def play(self, request: RolloutRequest) -> Sample | None:
        """The sample, not judged yet, of a session that stays where it is kept; None for one that was cancelled."""
        backend = await self.opened()
        begun = self.begun[request.id] = asyncio.Event()
        rollout = play_request(
            request, self.config, backend, self.sampler, self.chat, self._on_event, lambda request: begun.set()
        )
        try:
            played = await self.done(request.id, rollout)
            return None if played is None else played.sample
        finally:
            begun.set()  # or else never: whoever waits must hear of it
            self.sampler.ended(request.id)
            self.begun.pop(request.id, None)

    async def begins(self, request_id: str) -> None:
        """Wait until the session of a rollout that was asked for before has begun, or is over."""
        if request_id in self.begun:
            await self.begun[request_id].wait()

    async def see(self, view: FleetView) -> None:
        """The engines that there are now; nothing is sampled before the first word of them."""
        self.sampler.update(view)

    def _on_event(self, request: RolloutRequest, event: Event) -> None:
        """Keep the events of one rollout at a time, for the live view."""
        if self.watched not in self.under_way:
            self.watched = request.id
        if self.watched == request.id:
            self.recent.append((request.id, request.task.instruction, event))

    async def stats(self) -> dict[str, Any]:
        await self.opened()
        recent = list(self.recent)
        self.recent.clear()
        told = {"pid": os.getpid(), "running": len(self.under_way), "recent": recent}
        return {**told, "routed": self.sampler.counted()}
