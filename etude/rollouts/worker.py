"""A worker of a run: the place of one process, and of the next one when it dies.

Owns the life of every process of a run, whatever it does. Where a worker is, the table `TABLE` says, and what that does
not have is refused.

What a process is, and what is done with it before it gets work, its `ProcessSpec` says; how often one may die, the
run's budget (`faults`). Work that was with a process when it died is its caller's to ask for again. Uses neither Ray
nor torch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, Literal, Protocol, TypeVar, get_args

from etude.errors import DeadlineExceeded, EtudeError, SandboxError
from etude.rollouts.faults import BUSY, Kind, Restarts

WorkerState = Literal["starting", "ready", "resting", "leaving", "gone"]
Event = Literal["ready", "died", "renew", "leave", "rested", "end"]

STATES: tuple[WorkerState, ...] = get_args(WorkerState)
ENDED: tuple[WorkerState, str] = ("gone", "it is closed, or the run cannot have it any more")
TABLE: dict[tuple[WorkerState, Event], tuple[WorkerState, str]] = {
    ("starting", "ready"): ("ready", "its process has answered, and is as far as its spec wants it"),
    ("starting", "died"): ("resting", "its process ended, or was not ready in time"),
    ("ready", "died"): ("resting", "its process ended, did not answer, or is of no use any more"),
    ("ready", "renew"): ("starting", "an operator has another process take its place"),
    ("ready", "leave"): ("leaving", "it is given no more work"),
    ("resting", "rested"): ("starting", "the pause before a restart is over"),
    ("leaving", "died"): ("gone", "nobody takes its place"),
    **{(state, "end"): ENDED for state in STATES if state != "gone"},
}
_AGAIN_S = 0.5


class WrongEvent(EtudeError):
    """An event that the table does not have: a fault of the program, never of a run."""


class WorkerGone(EtudeError):
    """The process does nothing for this run any more: it died, or went back to whom it belongs to."""


class NotStarted(WorkerGone):
    """The process ended with an error of its own before it could be asked."""


class WorkerAway(EtudeError):
    """The process cannot be reached, perhaps not for long."""


ANOTHER_MAY_NOT = (WorkerGone, WorkerAway, DeadlineExceeded, SandboxError)
"""What is wrong with one process, and perhaps not with the next."""


class Process(Protocol):
    """One process, from its start to its end."""

    name: str

    async def started(self, deadline_s: float) -> None:
        """Returns when it can be asked."""
        ...

    async def ended(self) -> None:
        """Raises WorkerGone when it is gone."""
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


P = TypeVar("P", bound=Process)


class ProcessSpec(Protocol[P]):
    """What the workers of one kind are. An error that is not in `ANOTHER_MAY_NOT` ends the worker and with it the run,
    for another process would meet it too; so does one that keeps the very first process from starting.
    """

    kind: Kind

    def open(self, place: int) -> P:
        """Start a process, and return at once."""
        ...

    async def prepare(self, process: P) -> None:
        """Bring it as far as it must be before it is given work."""
        ...

    async def look(self, process: P, deadline_s: float) -> None:
        """Ask whether it lives. Raises WorkerGone where it is of no use, whatever it says."""
        ...


class Worker(Generic[P]):
    """Use it on one event loop, on which it starts when it is made."""

    def __init__(
        self, spec: ProcessSpec[P], place: int, restarts: Restarts,
        on_event: Callable[[Worker[P], Event, WorkerState], object] = lambda worker, event, before: None,
        replaced: bool = True,
    ) -> None:  # fmt: skip
        """`place` is what the spec opens its processes with; `on_event` is told of each event, with the state before
        it. `replaced` is False where no other process can take the place of the first.
        """
        self.spec, self.place, self.restarts, self.on_event = spec, place, restarts, on_event
        self.replaced = replaced
        self.state: WorkerState = "starting"
        self.failure: EtudeError | OSError | None = None
        self.why = ""
        """Why its last process is gone."""
        self._changed, self._was_ready = asyncio.Event(), False
        self._open()
        self._task = asyncio.ensure_future(self._live())

    # --- what is done with it -----------------------------------------------------------------------------------------

    async def ready(self) -> P:
        """Its process, once it is ready. Raises what it failed of, or DeadlineExceeded."""
        seconds = BUSY * self.restarts.start_s
        try:
            async with asyncio.timeout(seconds):
                while self.state != "ready":
                    if self.state == "gone":
                        raise self.failure or WorkerGone(f"{self.process.name} is gone: {self.why}")
                    await self._changed.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"{self.process.name} to be ready", seconds, self.why) from None
        return self.process

    def lost(self, process: P, why: str) -> None:
        """A process was found dead, or hangs; whoever comes late changes nothing."""
        if process is self.process and self.state in ("starting", "ready", "leaving"):
            self.why = why
            process.kill()
            self._take("died")

    async def renew(self, why: str) -> P:
        """Have another process, which the budget does not count, and wait until it is ready."""
        await self.ready()
        self.restarts.note(self.spec.kind, why)
        self.process.kill()
        self._take("renew")
        return await self.ready()

    async def leave(self, drained: Awaitable[object], why: str) -> None:
        """Give it no more work, and close it when `drained` has returned."""
        self.why = why
        if self.state == "ready":
            self._take("leave")
        await drained
        await self.close()

    def release(self) -> None:
        """It is out of the run, and what becomes of its process is its caller's."""
        if self.state != "gone":
            self._take("end")
            self._task.cancel()

    async def close(self) -> None:
        """End it in order; it is not replaced. What a hanging one leaves is swept by whoever opens its backend next."""
        process, was = self.process, self.state
        self.release()
        if was in ("starting", "resting"):
            process.kill()
        elif was != "gone":
            try:
                await process.close()
            except WorkerGone:
                return
            except (DeadlineExceeded, WorkerAway):
                process.kill()

    # --- its life -----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            while self.state != "gone":
                await self._one_life(self.process, self._over)
                if self.state == "resting" and not self.replaced:
                    self._take("end")
                elif self.state == "resting":
                    await self.restarts.pause(self.spec.kind, self.why)
                    self._take("rested")
        except (EtudeError, OSError) as error:
            self._fail(error)
        except Exception as error:  # a bug there must end the run: it would wait for a worker that never comes
            self._fail(EtudeError(f"{self.process.name} could not be made ready: {error!r}"))

    async def _one_life(self, process: P, over: asyncio.Event) -> None:
        """Until the process is gone, or is to be. Raises what another would meet too."""
        ended, minded = asyncio.ensure_future(process.ended()), asyncio.ensure_future(self._mind(process))
        told = asyncio.ensure_future(over.wait())
        try:
            await asyncio.wait({ended, minded, told}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (ended, minded, told):
                each.cancel()
        await asyncio.gather(ended, minded, told, return_exceptions=True)
        if over.is_set():
            return
        error = next(error for each in (minded, ended) if not each.cancelled() and (error := each.exception()))
        self.restarts.hung += isinstance(error, DeadlineExceeded) and self.state == "ready"
        hopeless = isinstance(error, NotStarted) and not self._was_ready
        if hopeless or not isinstance(error, ANOTHER_MAY_NOT):
            process.kill()
            raise error
        self.lost(process, str(error))

    async def _mind(self, process: P) -> None:
        """Bring a process as far as it must be, and look after it from then on. Raises what is wrong with it."""
        await process.started(self.restarts.start_s)
        await self.spec.prepare(process)
        self._was_ready = True
        self._take("ready")
        while True:
            await asyncio.sleep(self.restarts.ping_every_s)
            await self._answer(process)

    async def _answer(self, process: P) -> None:
        """One that cannot be reached is asked again until it has had its time, and so is one that waits for its turn
        on a busy machine, for as long as that is likely.
        """
        patience_s, began = self.restarts.ping_s, time.monotonic()
        while True:
            try:
                return await self.spec.look(process, patience_s)
            except WorkerGone:
                raise
            except EtudeError:
                waited_s = time.monotonic() - began
                if waited_s >= BUSY * patience_s or (waited_s >= patience_s and not process.computes()):
                    raise
            await asyncio.sleep(_AGAIN_S)

    def _open(self) -> None:
        self.process, self._over = self.spec.open(self.place), asyncio.Event()

    def _fail(self, error: EtudeError | OSError) -> None:
        self.failure, self.why = error, str(error)
        if self.state != "gone":
            self._take("end")

    def _take(self, event: Event) -> None:
        if (self.state, event) not in TABLE:
            raise WrongEvent(f"{self.process.name}: no way from {self.state} by {event}")
        before, self.state = self.state, TABLE[self.state, event][0]
        if event in ("died", "renew", "end"):
            self._over.set()
        if event in ("renew", "rested"):
            self._open()
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_event(self, event, before)
