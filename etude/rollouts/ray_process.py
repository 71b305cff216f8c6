"""Processes of a run as Ray has them: how one is asked, how its end is learnt, and how it is ended.

Owns `RayProcess`, in which every worker of a run lives; what actors have in common (`ActorBase`, `OrderActor`); and how
an answer over Ray becomes ours: errors of our own cross unchanged, and the end of the process that was asked is told
apart from everything else (`worker.WorkerGone`). Ray starts none of them anew by itself: a `Worker` does. Decides
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded, EtudeError
from etude.rollouts.processes import Identity, kill, own_identity, runnable
from etude.rollouts.worker import NotStarted, WorkerAway, WorkerGone

T = TypeVar("T")
K = TypeVar("K")
STOP_S = 60.0


async def within(waiting: Awaitable[T], seconds: float, what: str) -> T:
    """Await with a deadline that names what it waits for. Our own errors cross processes unchanged.

    Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes together with the result.
    """
    try:
        async with asyncio.timeout(seconds):
            return await waiting
    except TimeoutError:
        raise DeadlineExceeded(what, seconds) from None
    except RayTaskError as error:
        if isinstance(error.cause, EtudeError | OSError):
            raise error.cause from None
        raise


class ActorBase:
    """A base of actors that run an event loop."""

    async def wait_for_exit(self) -> None:
        """Never returns: who asks learns of the process's end at once."""
        await asyncio.Event().wait()


class OrderActor(ActorBase, Generic[T, K]):
    """A base of actors that take orders, many at a time, and need something open (a `K`) to carry them out."""

    def __init__(self) -> None:
        self.under_way: dict[str, asyncio.Task[T]] = {}
        self._opened: K | None = None
        self._opening, self._closing = asyncio.Lock(), contextlib.AsyncExitStack()

    async def open(self, closing: contextlib.AsyncExitStack) -> K:
        """Make what all orders need; what is to be closed in the end is `closing`'s."""
        raise NotImplementedError

    async def opened(self) -> K:
        """At first use: it belongs to the event loop that uses it, here the actor's."""
        async with self._opening:
            if self._opened is None:
                self._opened = await self.open(self._closing)
            return self._opened

    async def done(self, order: str, work: Coroutine[Any, Any, T]) -> T | None:
        """What came of it; None where it was cancelled."""
        task = self.under_way[order] = asyncio.ensure_future(work)
        try:
            return await task
        except asyncio.CancelledError:
            return None
        finally:
            self.under_way.pop(order, None)  # or another attempt at it has

    async def cancel(self, orders: Iterable[str]) -> None:
        for order in orders:
            if order in self.under_way:
                self.under_way[order].cancel()

    async def close(self) -> None:
        """Cancel what is under way, and leave no sandbox."""
        await self.cancel(list(self.under_way))
        await asyncio.gather(*self.under_way.values(), return_exceptions=True)
        await self._closing.aclose()


class RayProcess:
    """One actor's process, for as long as it lives. Implements `worker.Process`; can be sent to another process."""

    def __init__(self, name: str, actor: Any, group: str | None = None) -> None:
        """`group` is the concurrency group of the actor that answers while it works."""
        self.name, self.actor, self._group = name, actor, group
        self.orders = 0
        """Work that it has, as whoever gives it counts."""
        self.identity: Identity | None = None

    def call(self, method: str, *arguments: Any, seconds: float, what: str) -> Awaitable[Any]:
        """Ask it now; await it for the answer. Raises WorkerGone, WorkerAway, or DeadlineExceeded naming `what`."""
        return self._answer(getattr(self.actor, method).remote(*arguments), seconds, what)

    def tell(self, method: str, *arguments: Any) -> Awaitable[Any]:
        """Ask it what need not be answered."""
        return getattr(self.actor, method).remote(*arguments)

    async def started(self, deadline_s: float) -> None:
        self.identity = await self._who(deadline_s, f"{self.name} to start")

    async def answers(self, deadline_s: float) -> None:
        await self._who(deadline_s, f"{self.name} to answer")

    async def ended(self) -> None:
        while True:
            try:
                await self.actor.wait_for_exit.remote()
            except ActorUnavailableError:
                await asyncio.sleep(0.5)  # cut off, perhaps not for long; whether it answers is asked elsewhere
            except RayActorError as error:
                raise self._gone(error) from None
            except RayTaskError as error:  # it says itself that it is over
                if isinstance(error.cause, EtudeError):
                    raise error.cause from None
                raise

    def computes(self) -> bool:
        who = self.identity
        return who is not None and who.host == socket.gethostname() and runnable(who.pid)

    async def close(self) -> None:
        await self.call("close", seconds=scaled(STOP_S), what=f"{self.name} to close")
        ray.kill(self.actor)  # in order, so that Ray does not report a death

    def kill(self) -> None:
        """Also one that is stopped, if it is on this machine."""
        if self.identity is not None:
            kill(self.identity)
        ray.kill(self.actor)

    async def _who(self, seconds: float, what: str) -> Identity:
        call = self.actor.__ray_call__
        if self._group is not None:
            call = call.options(concurrency_group=self._group)
        return await self._answer(call.remote(_identity_of), seconds, what)

    async def _answer(self, asked: Awaitable[Any], seconds: float, what: str) -> Any:
        try:
            return await within(asked, seconds, what)
        except ActorUnavailableError as error:
            raise WorkerAway(f"{self.name} cannot be reached: {_lines(error)[0]}") from None
        except RayActorError as error:
            raise self._gone(error) from None

    def _gone(self, error: RayActorError) -> WorkerGone:
        if getattr(error, "actor_init_failed", False):  # the end of the traceback says why
            return NotStarted(f"{self.name} did not start: {_lines(error)[-1]}")
        return WorkerGone(f"{self.name} died: {_lines(error)[0]}")


def _identity_of(actor: object) -> Identity:
    """Runs in the actor's process."""
    del actor
    return own_identity()


def _lines(error: RayActorError) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
