"""How an engine of a run is reached, wherever it is: what the fleet and the sessions ask of it.

Owns the `Link` protocol and the one over Ray, to an engine process of the run's own. What says that an engine is gone
for good (`EngineGone`) is told apart from every other failure here, so that neither the fleet nor the router knows what
is behind a link. Decides nothing. Talks to: actors.engine.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from ray.exceptions import ActorUnavailableError, RayActorError

from etude.deadlines import scaled
from etude.errors import EtudeError
from etude.harness.sampler import Completion, SampleRequest
from etude.records import Version
from etude.rollouts.health import computes, end, identify, let_go
from etude.rollouts.processes import Identity
from etude.rollouts.waiting import STOP_S, within

Loaded = dict[str, Any]
"""What an engine says of a version it has taken up: version, root, bytes, deltas, pause_ms."""


class EngineGone(EtudeError):
    """The engine does not sample for this run any more: its process died, or it went back to whom it belongs to."""


class Link(Protocol):
    """To one engine. Can be sent to another process; a call that is cancelled is dropped by the engine too."""

    async def sample(self, request: SampleRequest, deadline_s: float) -> Completion:
        """Raises EngineGone, or what the engine raises; DeadlineExceeded after `deadline_s`."""
        ...

    async def load(self, version: Version, deadline_s: float) -> Loaded | None:
        """Have it take up a version from the weight store; None if it has that or a later one."""
        ...

    async def drop(self, session: str) -> None:
        """Have it forget a session: what it samples for it, and its cache. Of an engine that is gone, nothing."""
        ...

    async def stats(self, deadline_s: float) -> dict[str, float]:
        """Counters since its start, and gauges."""
        ...

    async def started(self, deadline_s: float) -> None:
        """Returns when it can be asked."""
        ...

    async def ended(self) -> str:
        """Returns when the engine is gone, with the reason."""
        ...

    def computes(self) -> bool:
        """Whether it is known to want to compute just now: on a busy machine it then answers late."""
        ...

    async def close(self) -> None:
        """End it in order."""
        ...

    def kill(self) -> None:
        """End it at once, whatever it does."""
        ...


class RayLink:
    """To an `EngineActor`."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name, self.actor = name, actor
        self._identity: Identity | None = None

    async def sample(self, request: SampleRequest, deadline_s: float) -> Completion:
        return await self._asked(
            self.actor.sample.remote(request), deadline_s, f"{self.name} to sample for {request.session_id}"
        )

    async def load(self, version: Version, deadline_s: float) -> Loaded | None:
        return await self._asked(self.actor.load.remote(version), deadline_s, f"{self.name} to load version {version}")

    async def put(self, bits: Any, version: Version, deadline_s: float) -> None:
        """Swap in weights that are on no chain."""
        await self._asked(self.actor.put.remote(bits, version), deadline_s, f"{self.name} to load version {version}")

    async def drop(self, session: str) -> None:
        self.actor.cancel.remote([session])

    async def stats(self, deadline_s: float) -> dict[str, float]:
        return await self._asked(self.actor.stats.remote(), deadline_s, f"{self.name} to tell its figures")

    async def started(self, deadline_s: float) -> None:
        what = f"{self.name} to start"
        self._identity = await self._asked(identify(self.actor, deadline_s, what), deadline_s + scaled(STOP_S), what)

    async def ended(self) -> str:
        while True:
            try:
                await self.actor.lives.remote()
            except ActorUnavailableError:
                await asyncio.sleep(0.5)  # cut off, perhaps not for long; whether it answers is asked elsewhere
            except RayActorError as error:
                return _last_line(error)

    def computes(self) -> bool:
        return computes(self._identity)

    async def close(self) -> None:
        try:
            await self._asked(self.actor.close.remote(), scaled(STOP_S), f"{self.name} to close")
            let_go(self.actor)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        end(self.actor, self._identity)

    async def _asked(self, call: Any, deadline_s: float, what: str) -> Any:
        try:
            return await within(call, deadline_s, what)
        except ActorUnavailableError as error:
            raise EtudeError(f"{self.name} cannot be reached: {_last_line(error)}") from None
        except RayActorError as error:
            raise EngineGone(f"{self.name} died: {_last_line(error)}") from None


def _last_line(error: RayActorError) -> str:
    """Where its start failed, the end of the traceback says why; else the first line says what became of it."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if getattr(error, "actor_init_failed", False) else lines[0]
