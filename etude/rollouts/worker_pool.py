"""Workers of one kind that do the same work.

Owns which of them get work: the first `size` that became ready; those after them are spares, the next of which takes
the place of one that dies at once. A call that was with a process when it died fails with `WorkerGone`, and is its
caller's to make again. Knows nothing of what the processes do. Talks to: worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, EtudeError
from etude.rollouts.faults import BUSY, Kind, Restarts
from etude.rollouts.ray_process import STOP_S, RayProcess
from etude.rollouts.worker import Event, Process, ProcessSpec, Worker, WorkerAway, WorkerGone, WorkerState

P = TypeVar("P", bound=Process)


class Workers(Generic[P]):
    """Use it on one event loop. Open it with `start` and end it with `close`."""

    def __init__(
        self, spec: ProcessSpec[P], size: int, spares: int, restarts: Restarts,
        on_event: Callable[[Worker[P], Event, WorkerState], object] = lambda worker, event, before: None,
    ) -> None:  # fmt: skip
        self.spec, self.size, self.spares, self.restarts, self._on_event = spec, size, spares, restarts, on_event
        self.ready: list[Worker[P]] = []
        """In the order in which they became so."""
        self.all: list[Worker[P]] = []
        self.failure: EtudeError | OSError | None = None
        """Why the run cannot have these workers any more."""
        self.spares_used = 0
        self._made, self._changed = 0, asyncio.Event()

    def add(self) -> Worker[P]:
        """One more, which gets work once it is ready and there are fewer than `size`."""
        worker = Worker(self.spec, self._made, self.restarts, self._took)
        self._made += 1
        self.all.append(worker)
        return worker

    async def start(self) -> None:
        """Start them; returns when each is ready. Raises what one failed of."""
        for _ in range(self.size + self.spares):
            self.add()
        await asyncio.gather(*(worker.ready() for worker in self.all))

    def serving(self) -> list[Worker[P]]:
        """Those that get work."""
        return self.ready[: self.size]

    def lost(self, process: P, why: str) -> None:
        """A process was found dead."""
        for worker in list(self.all):
            worker.lost(process, why)

    def _took(self, worker: Worker[P], event: Event, before: WorkerState) -> None:
        if before == "ready":
            self.spares_used += event == "died" and worker in self.serving() and len(self.ready) > self.size
            self.ready.remove(worker)
        if worker.state == "ready":
            self.ready.append(worker)
        elif worker.state == "gone":
            self.all.remove(worker)
            self.failure = self.failure or worker.failure
        self.change()
        self._on_event(worker, event, before)

    async def until(self, there: Callable[[], Any], seconds: float, what: str) -> Any:
        """What `there` finds, once it finds something. Raises DeadlineExceeded, or what these workers failed of."""
        try:
            async with asyncio.timeout(seconds):
                while not (found := there()):
                    if self.failure is not None:
                        raise self.failure
                    await self._changed.wait()
                return found
        except TimeoutError:
            raise DeadlineExceeded(what, seconds) from None

    def change(self) -> None:
        """Whoever waits looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def replace(self, worker: Worker[P], drained: Awaitable[object]) -> None:
        """A new one is ready before this gets no more work; it ends when `drained` has returned."""
        fresh = self.add()
        await fresh.ready()
        self.promote(fresh)
        self.restarts.note(self.spec.kind, "replaced by an operator")
        await worker.leave(drained, "it was replaced")

    async def renew(self, drained: Callable[[P], Awaitable[object]]) -> int:
        """Put a new worker in the place of each that gets work, one after the other; returns how many."""
        olds = self.serving()
        for old in olds:
            await self.replace(old, drained(old.process))
        return len(olds)

    def promote(self, worker: Worker[P]) -> None:
        """This one gets work before all others."""
        self.ready.remove(worker)
        self.ready.insert(0, worker)

    async def close(self) -> None:
        """Close what is there; a process that dies meanwhile is not replaced any more."""
        ended = await asyncio.gather(*(worker.close() for worker in list(self.all)), return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error


class Actors:
    """The spec of actors that need nothing but to be asked."""

    def __init__(self, kind: Kind, start: Callable[[], Any], restarts: Restarts) -> None:
        """`start()` starts an actor, which has `stats()`, answered once it is ready, and `close()`."""
        self.kind, self._start, self._restarts = kind, start, restarts

    def open(self, place: int) -> RayProcess:
        return RayProcess(f"process {place} of {self.kind}", self._start())

    async def prepare(self, process: RayProcess) -> None:
        seconds = self._restarts.start_s
        await process.call("stats", seconds=seconds, what=f"{process.name} to start")

    async def look(self, process: RayProcess, deadline_s: float) -> None:
        await process.answers(deadline_s)


class WorkerPool(Workers[RayProcess]):
    """Actors that are given orders, each to whichever has least to do."""

    def __init__(self, kind: Kind, start: Callable[[], Any], size: int, spares: int, restarts: Restarts) -> None:
        super().__init__(Actors(kind, start, restarts), size, spares, restarts)
        self.placed: dict[str, RayProcess] = {}
        """Which process has an order, by its name."""

    @contextlib.asynccontextmanager
    async def given(self, order: str) -> AsyncGenerator[RayProcess]:
        """The least loaded process, which has an order of this name meanwhile; waits while there is none, and raises
        what keeps it from being there.
        """
        what = f"a process of the {self.spec.kind} pool to be there"
        serving = await self.until(self.serving, BUSY * self.restarts.start_s, what)
        process = self.placed[order] = min((each.process for each in serving), key=lambda process: process.orders)
        try:
            yield process
        finally:
            del self.placed[order]

    def call(self, process: RayProcess, method: str, *arguments: Any, seconds: float, what: str) -> Awaitable[Any]:
        """Ask a process now; await it for the answer. Raises WorkerGone after seeing to its replacement,
        DeadlineExceeded naming `what`.
        """
        return self._answer(process, process.call(method, *arguments, seconds=seconds, what=what))

    async def _answer(self, process: RayProcess, asked: Awaitable[Any]) -> Any:
        process.orders += 1
        try:
            return await asked
        except (WorkerGone, WorkerAway) as error:
            self.lost(process, str(error))
            raise WorkerGone(str(error)) from None
        finally:
            process.orders -= 1
            self.change()

    async def cancel(self, orders: Iterable[str]) -> None:
        """Stop what was ordered, where it is done."""
        here: dict[RayProcess, list[str]] = {}
        for order in orders:
            if (process := self.placed.get(order)) is not None:
                here.setdefault(process, []).append(order)
        for process, names in here.items():
            with contextlib.suppress(WorkerGone):  # then they have ended
                await self.call(
                    process, "cancel", names, seconds=scaled(STOP_S), what=f"{process.name} to cancel orders"
                )

    async def each(self, method: str) -> list[Any]:
        """What every process that gets work answers; those that die meanwhile are left out."""
        processes = [worker.process for worker in self.serving()]
        calls = (
            self.call(each, method, seconds=scaled(STOP_S), what=f"{each.name} to answer {method}")
            for each in processes
        )
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, WorkerGone):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def drained(self, process: RayProcess) -> None:
        """Returns when it has ended its last call, or has had its time."""
        try:
            async with asyncio.timeout(self.restarts.drain_s):
                while process.orders:
                    await self._changed.wait()
        except TimeoutError:
            return  # what it still does fails as if it had died, and is done again elsewhere
