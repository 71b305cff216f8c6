"""The engine of a server that is lent to rollouts while its users are quiet.

    serving ──lend(): quiet, nothing of users under way──► lent ──recall()──► returning ──own weights in──► serving

Owns that state machine and the engine's weights in it. While lent, the engine holds the borrower's policy, from the
borrower's weight store; the users' own weights wait in memory, with their root. A user's request recalls the engine by
itself: what the rollouts sample is dropped at once, the own weights go in, and before the request is sampled the root
of what the engine then holds is compared with the one from before. So no user's request fails, and none is answered
by the policy; it waits for the return, whose time is measured against `return_s`. A loan also ends when its borrower
asks, and when nothing is heard of the borrower for `lease_s`. Counts what the engine does for either use. Knows nothing
of HTTP (`loans`), and never decides that it is a good time to borrow (the borrower's fleet does).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from pydantic import Field

from etude.config import Config
from etude.engine.server.errors import ApiError
from etude.engine.torch_engine import TorchEngine
from etude.engine.updates import AppliedVersion, WeightUpdates
from etude.errors import DeadlineExceeded, EtudeError, WeightError
from etude.harness.sampler import Completion, SampleRequest
from etude.models.state import Bits, export_bits
from etude.records import Version
from etude.weights.manifest import root_of
from etude.weights.opening import open_store
from etude.weights.store import StoreConfig
from etude.weights.subscriber import Subscriber, SubscriberConfig

State = Literal["serving", "lent", "returning"]
Use = Literal["users", "rollouts", "moving"]
_USE: dict[State, Use] = {"serving": "users", "lent": "rollouts", "returning": "moving"}
GONE = "the loan is over: the engine serves its users"


class LendingConfig(Config):
    """To whom the engine may be lent, and how soon it is back."""

    stores: tuple[str, ...] = Field(min_length=1)
    """Directories or URLs: a borrower's weights come from a store below one of them, or it is refused."""
    quiet_s: float = Field(5.0, ge=0)
    """Lent only when the last user's request ended so long ago."""
    return_s: float = Field(5.0, gt=0)
    """The bound on a return: from the moment it is asked for, or a user's request comes, until users are served."""
    lease_s: float = Field(15.0, gt=0)
    """A borrower that is not heard of for so long has lost the engine."""


@dataclass(eq=False)
class Loan:
    """One loan. `over` is set when the borrower has no right to the engine any more."""

    id: str
    borrower: str
    updates: WeightUpdates
    over: asyncio.Event
    heard_at: float
    sampling: set[asyncio.Task[Completion]] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Line:
    """The engine, taking versions of one borrower: their numbers mean nothing beside the users' own."""

    engine: TorchEngine
    number: int
    over: asyncio.Event

    def swap(self, bits: Mapping[str, np.ndarray], version: Version) -> Future[float]:
        if self.over.is_set():
            raise ApiError(410, GONE, "loan_over")
        return self.engine.swap(bits, version, self.number)


class Lending:
    """Of one server's engine. Use on one event loop."""

    def __init__(
        self, engine: TorchEngine, config: LendingConfig, own: WeightUpdates | None, under_way: Callable[[], int]
    ) -> None:
        """`own` are the updates of the users' weights, which stand still while it is lent; `under_way` tells how many
        of the users' choices there are.
        """
        self.engine, self.config, self._own, self._under_way = engine, config, own, under_way
        self.state: State = "serving"
        self.loan: Loan | None = None
        self.failure: EtudeError | None = None
        """Why users cannot be served: their weights did not come back."""
        self.own_version = engine.version
        """The users' version while the engine holds another's."""
        self.counters: Counter[str] = Counter()
        self.returns: Counter[str] = Counter()
        """How many there were, by what asked for them."""
        self.last_return_s = self.longest_return_s = 0.0
        self._quiet_since = self._since = time.monotonic()
        self._busy_s = engine.busy_s
        self._spent: dict[Use, tuple[float, float]] = dict.fromkeys(("users", "rollouts", "moving"), (0.0, 0.0))
        self._kept: tuple[Bits, str] | None = None
        """The users' weights and their root."""
        self._moving = asyncio.Lock()
        self._back = asyncio.Event()
        self._back.set()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- users --------------------------------------------------------------------------------------------------------

    def request_started(self) -> None:
        """A user's request was let in: the engine is theirs."""
        self.recall("a user's request")

    def request_ended(self) -> None:
        self._quiet_since = time.monotonic()

    async def for_users(self) -> None:
        """Wait until the engine serves users. Raises what makes it impossible."""
        deadline_s = self.engine.config.silence_s
        try:
            async with asyncio.timeout(deadline_s):
                await self._back.wait()
        except TimeoutError:
            raise DeadlineExceeded("the engine to be back from its loan", deadline_s) from None
        if self.failure is not None:
            raise self.failure

    def refusal(self) -> str | None:
        """Why the engine is not lent now; None if it would be."""
        quiet_s = time.monotonic() - self._quiet_since
        if self.state != "serving":
            return f"it is {self.state}"
        if self.failure is not None:
            return str(self.failure)
        if self.engine.paused:
            return "it is paused"
        if self._under_way():
            return f"{self._under_way()} choices of users are under way"
        if quiet_s < self.config.quiet_s:
            return f"the last user's request ended {quiet_s:.1f} s ago, and not {self.config.quiet_s:.1f}"
        return None

    # --- borrowers ----------------------------------------------------------------------------------------------------

    async def lend(self, borrower: str, store: str, reading: StoreConfig, subscribing: SubscriberConfig) -> Loan:
        """Lend the engine to who has its weights in this store. Raises ApiError where it is not lent now."""
        _check_below(store, self.config.stores)
        if (why := self.refusal()) is not None:
            raise ApiError(409, f"not lent now: {why}", "not_lent", retry_after_s=self.config.quiet_s)
        self.counters["loans"] += 1
        over = asyncio.Event()
        line = _Line(self.engine, self.counters["loans"], over)
        updates = WeightUpdates(line, Subscriber(open_store(store, reading), subscribing))
        loan = self.loan = Loan(secrets.token_hex(16), borrower, updates, over, time.monotonic())
        self._enter("lent")
        self._back.clear()
        async with self._moving:
            if self._own is not None:
                await self._own.turn.acquire()  # a version of theirs that comes in just now is waited for
            self.own_version = self.engine.version
            try:
                bits = await asyncio.to_thread(export_bits, self.engine.decoder)
                self._kept = bits, await asyncio.to_thread(root_of, bits)
            except EtudeError as error:
                self.recall("weights that cannot be kept")
                raise ApiError(409, f"not lent: {error}", "not_lent") from None
        self._later(self._expire(loan))
        return self.held(loan.id)

    def held(self, lease: str) -> Loan:
        """The loan of this lease, whose borrower has just been heard of. Raises ApiError when it is over."""
        loan = self.loan
        if loan is None or loan.id != lease or loan.over.is_set():
            raise ApiError(410, GONE, "loan_over", "lease")
        loan.heard_at = time.monotonic()
        return loan

    async def sample(self, loan: Loan, request: SampleRequest) -> Completion:
        """Raises ApiError when the loan ends meanwhile, or what the engine raises. Cancelling drops the request."""
        loan.sessions.add(request.session_id)
        task = asyncio.ensure_future(self.engine.sample(request))
        loan.sampling.add(task)
        try:
            await asyncio.wait({task})
            if task.cancelled() and loan.over.is_set():
                raise ApiError(410, GONE, "loan_over")
            return task.result()
        finally:
            task.cancel()
            loan.sampling.discard(task)

    async def load(self, loan: Loan, version: Version) -> AppliedVersion | None:
        """Serve the borrower's version. None if it has that or a later one. Raises ApiError when the loan ends."""
        served = await loan.updates.load(version)
        if loan.over.is_set():  # its weights were perhaps not even put in
            raise ApiError(410, GONE, "loan_over")
        return served

    def drop(self, loan: Loan, session: str) -> None:
        if session in loan.sessions:
            loan.sessions.discard(session)
            self.engine.cancel(session)

    async def over(self, loan: Loan, seconds: float) -> bool:
        """Wait for the end of a loan, so long; whether it has come. Waiting keeps the lease."""
        loan.heard_at = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                await loan.over.wait()
        except TimeoutError:
            return False
        finally:
            loan.heard_at = time.monotonic()
        return True

    # --- returning ----------------------------------------------------------------------------------------------------

    def recall(self, why: str) -> None:
        """Have the engine serve users again; nothing if it does or is about to."""
        if self.state != "lent" or self.loan is None:
            return
        self.loan.over.set()
        self.returns[why] += 1
        self._enter("returning")
        self._later(self._return(self.loan))

    async def back(self, why: str) -> None:
        """Recall, and wait for it."""
        self.recall(why)
        await self.for_users()

    async def _return(self, loan: Loan) -> None:
        began = time.monotonic()
        for task in loan.sampling:
            task.cancel()
        for session in loan.sessions:
            self.engine.cancel(session)
        async with self._moving:
            kept, self._kept = self._kept, None
            try:
                if kept is not None:
                    await self._restore(*kept)
            except EtudeError as error:
                self.failure = error  # better no answer than another policy's
            if self._own is not None:
                self._own.turn.release()
        self.last_return_s = time.monotonic() - began
        self.longest_return_s = max(self.longest_return_s, self.last_return_s)
        self.counters["returns_late"] += self.last_return_s > self.config.return_s
        self.loan, self._quiet_since = None, time.monotonic()
        self._enter("serving")
        self._back.set()

    async def _restore(self, bits: Bits, root: str) -> None:
        """Put the users' weights in; what the engine then holds must have their root."""
        await asyncio.wrap_future(self.engine.swap(bits, self.own_version))
        held = await asyncio.to_thread(lambda: root_of(export_bits(self.engine.decoder)))
        if held != root:
            raise WeightError(f"the users' weights did not come back from a loan: root {held}, not {root}; restart")
        self.counters["roots_verified"] += 1

    async def _expire(self, loan: Loan) -> None:
        """Recall an engine whose borrower is not heard of any more."""
        while not loan.over.is_set():
            left_s = loan.heard_at + self.config.lease_s - time.monotonic()
            if left_s <= 0:
                self.recall("a lease that ran out")
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await loan.over.wait()

    # --- figures ------------------------------------------------------------------------------------------------------

    def spent(self) -> dict[Use, tuple[float, float]]:
        """For how long the engine was for either use, or on its way between them, and how much of that it worked."""
        use = _USE[self.state]
        seconds, busy_s = self._spent[use]
        now = (seconds + time.monotonic() - self._since, busy_s + self.engine.busy_s - self._busy_s)
        return {**self._spent, use: now}

    def figures(self) -> dict[str, object]:
        """All of it, for who decides whether to borrow."""
        spent = {use: {"seconds": seconds, "busy_s": busy_s} for use, (seconds, busy_s) in self.spent().items()}
        return {
            "state": self.state, "users": self._under_way(), "refusal": self.refusal(),
            "borrower": None if self.loan is None else self.loan.borrower, "return_s": self.config.return_s,
            "uses": spent, "loans": self.counters["loans"], "returns": dict(self.returns),
            "returns_late": self.counters["returns_late"], "roots_verified": self.counters["roots_verified"],
            "last_return_s": self.last_return_s, "longest_return_s": self.longest_return_s,
        }  # fmt: skip

    def collect(self) -> Iterator[Metric]:
        """The same for Prometheus, beside the server's own figures."""
        name = "etude_engine_lending"
        seconds = CounterMetricFamily(f"{name}_seconds", "Time that the engine was for a use.", labels=["use"])
        busy = CounterMetricFamily(f"{name}_busy_seconds", "Time that it worked for it.", labels=["use"])
        for use, (there_s, busy_s) in self.spent().items():
            seconds.add_metric([use], there_s)
            busy.add_metric([use], busy_s)
        returns = CounterMetricFamily(f"{name}_returns", "Returns, by what asked for them.", labels=["why"])
        for why, count in self.returns.items():
            returns.add_metric([why], count)
        yield from (seconds, busy, returns)
        for what, text in (("loans", "Loans."), ("returns_late", "Returns that took longer than `return_s`.")):
            yield CounterMetricFamily(f"{name}_{what}", text, value=self.counters[what])
        yield GaugeMetricFamily(f"{name}_lent", "Whether it is lent now.", value=self.state != "serving")
        yield GaugeMetricFamily(f"{name}_last_return_seconds", "The last return.", value=self.last_return_s)
        yield GaugeMetricFamily(f"{name}_longest_return_seconds", "The longest.", value=self.longest_return_s)

    def _enter(self, state: State) -> None:
        self._spent = self.spent()
        self.state, self._since, self._busy_s = state, time.monotonic(), self.engine.busy_s

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _check_below(store: str, roots: tuple[str, ...]) -> None:
    """Raises ApiError for a store that this server's config does not allow."""
    place = f"{store.removeprefix('file://')}/"
    allowed = [f"{root.removeprefix('file://').rstrip('/')}/" for root in roots]
    if ".." in place.split("/") or not any(place.startswith(root) for root in allowed):
        said = f"store: {store[:200]!r} is below none of lending.stores ({', '.join(roots)})"
        raise ApiError(403, said, "store_not_allowed", "store")
