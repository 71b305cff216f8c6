"""Which engine samples for which session, and what becomes of a session whose engine is gone.

Owns placement (`Router`) and the harness's `Sampler` over it (`RemoteSampler`); every session worker has one of each,
and the fleet tells them, by a `FleetView`, which engines there are. A session stays where its cache is. Members of a
group begin on the same engine, whose prefix cache then has their prompt: engines are ranked by a hash of the group and
the engine's name, in which a faster engine wins more often, and the first one in that order that is not too full for
its speed is taken. The order needs no word between workers, and changes little when an engine joins or leaves.

When the engine of a session dies, hangs, goes back to whom it was lent by, or is much fuller than another, the session
moves, and the turn in progress is sampled again there from its first token. Its request holds its seed, so a
deterministic engine with the same weights gives the same tokens. Where no engine serves, sessions wait, with a deadline
that says for what. Knows nothing of Ray or HTTP (`links`), and decides nothing about engines (`fleet`).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

from etude.errors import ContextOverflow, DeadlineExceeded, EtudeError, InvalidRequest
from etude.harness.sampler import Completion, SampleRequest
from etude.rollouts.links import Link
from etude.rollouts.worker import WorkerGone

SLACK = 8
"""Sessions that an engine may hold beyond its share, so that a small group stays together."""
OVER = 1.25
"""How much of its share of the sessions an engine may hold, beside the slack, when one begins there."""
MUCH_OVER = 2.0
"""The same of a session that is there already: its cache would have to be computed anew elsewhere."""
FIRST_REST_S, LONGEST_REST_S = 0.2, 5.0
"""How long an engine that failed a request is not asked; twice as long at each failure in a row."""


@dataclass(frozen=True)
class Member:
    """An engine that serves the run. `name` is never used again once it is gone; `speed` in tokens a second."""

    name: str
    link: Link
    speed: float = 1.0
    leaving: bool = False
    """It ends what it samples, and is given no more."""


@dataclass(frozen=True)
class FleetView:
    """The engines that serve, as the fleet last saw them. `number` grows; `state` says why there may be none, and
    `failure` that there will be none any more.
    """

    number: int = -1
    members: tuple[Member, ...] = ()
    state: str = "the fleet has not said yet which engines there are"
    failure: str | None = None


class Router:
    """Sessions to engines, in one process. No clock of its own and no I/O."""

    def __init__(self) -> None:
        self.view = FleetView()
        self.members: dict[str, Member] = {}
        self.placed: dict[str, str] = {}
        self.counters: Counter[str] = Counter()
        self._load: Counter[str] = Counter()
        self._left: dict[str, str] = {}
        """Where sessions were that wait for an engine now."""
        self._gone: set[str] = set()
        self._resting: dict[str, tuple[float, float]] = {}
        """Engine → until when it is not asked, and how long that was."""

    def update(self, view: FleetView) -> set[str]:
        """Take up what the fleet says; returns the engines that do not serve any more. Older views change nothing."""
        if view.number < self.view.number:
            return set()
        before = set(self.members)
        self.view = view
        self._gone &= {member.name for member in view.members}
        kept = {name: member.link for name, member in self.members.items()}
        self.members = {
            each.name: replace(each, link=kept.get(each.name, each.link))
            for each in view.members
            if each.name not in self._gone
        }
        self._resting = {name: rest for name, rest in self._resting.items() if name in self.members}
        return before - set(self.members)

    def place(self, session: str, now: float) -> Member | None:
        """The engine that this session's next turn goes to; None while none can be asked."""
        able = {name: each for name, each in self.members.items() if self._may_be_asked(each, now)}
        here = self.placed.get(session)
        if here in able and not self._too_full(here, able, MUCH_OVER):
            return able[here]
        before = here or self._left.get(session)
        self.ended(session)
        chosen = next((name for name in ranked(session, able) if not self._too_full(name, able, OVER, 1)), None)
        if chosen is None:
            if before is not None:
                self._left[session] = before
            return None
        self.placed[session] = chosen
        self._load[chosen] += 1
        if before is not None and before != chosen:
            self.counters["sessions_moved"] += 1
            self.counters["sessions_moved_for_load"] += before in able
        return able[chosen]

    def _may_be_asked(self, member: Member, now: float) -> bool:
        return not member.leaving and self._resting.get(member.name, (0.0, 0.0))[0] <= now

    def _too_full(self, name: str, able: dict[str, Member], over: float, more: int = 0) -> bool:
        """Whether an engine would hold more than its speed's share of the sessions. One of them always holds less."""
        sessions = more + sum(self._load[each] for each in able)
        share = able[name].speed / sum(each.speed for each in able.values())
        return self._load[name] + more > over * share * sessions + SLACK

    def ended(self, session: str) -> None:
        """A session needs no engine any more."""
        self._left.pop(session, None)
        name = self.placed.pop(session, None)
        if name is not None:
            self._load[name] -= 1

    def answered(self, name: str) -> None:
        """An engine has done what it was asked."""
        self._resting.pop(name, None)

    def failed(self, name: str, now: float) -> None:
        """An engine did not do what it was asked, and may be asked again after a while."""
        if name in self.members:
            rest_s = min(2 * self._resting.get(name, (0.0, FIRST_REST_S / 2))[1], LONGEST_REST_S)
            self._resting[name] = (now + rest_s, rest_s)

    def gone(self, name: str) -> None:
        """An engine said that it is gone; the fleet may not know yet."""
        self._gone.add(name)
        self.members.pop(name, None)

    def rest_s(self, now: float) -> float | None:
        """How long until an engine that rests may be asked again; None if none does."""
        return min((max(until - now, 0.0) for until, _ in self._resting.values()), default=None)


def ranked(session: str, members: dict[str, Member]) -> list[str]:
    """Engine names in this session's order: rendezvous hashing of its group, weighted by speed."""
    group = session.rpartition("/")[0] or session

    def score(name: str) -> float:
        digest = hashlib.blake2b(f"{group} {name}".encode(), digest_size=8).digest()
        return members[name].speed / -math.log((int.from_bytes(digest, "big") + 1) / (2**64 + 2))

    return sorted(members, key=score, reverse=True)


class RemoteSampler:
    """The harness's `Sampler` over the engines of a run. Use on one event loop."""

    def __init__(self, sample_deadline_s: float, engine_deadline_s: float) -> None:
        """`sample_deadline_s` is for one try on one engine, `engine_deadline_s` for all waiting of a turn for one."""
        self.sample_deadline_s, self.engine_deadline_s = sample_deadline_s, engine_deadline_s
        self.router = Router()
        self._changed = asyncio.Event()
        self._under_way: dict[str, set[asyncio.Task[Completion]]] = {}
        self._dropping: set[asyncio.Task[None]] = set()

    def update(self, view: FleetView) -> None:
        """Take up what the fleet says; turns on engines that serve no more are sampled again elsewhere."""
        for name in self.router.update(view):
            self._leave(name)
        self._wake()

    async def sample(self, request: SampleRequest) -> Completion:
        """Raises ContextOverflow and InvalidRequest; another error of an engine's when there was no other to ask in
        time, and DeadlineExceeded when none served.
        """
        waited_s, failure, session = 0.0, None, request.session_id
        while True:
            began = time.monotonic()
            member = await self._engine_for(session, self.engine_deadline_s - waited_s, failure)
            waited_s += time.monotonic() - began
            try:
                completion = await self._sampled(member, request)
            except (ContextOverflow, InvalidRequest):
                raise
            except WorkerGone as error:
                failure = error
                self.router.gone(member.name)
                self._leave(member.name)
            except EtudeError as error:
                failure = error
                self.router.failed(member.name, time.monotonic())
                waited_s += time.monotonic() - began  # one that always fails must not be asked for ever
            else:
                self.router.answered(member.name)
                return completion
            self.router.counters["turns_resampled"] += 1

    def ended(self, session: str) -> None:
        """A session asks for nothing any more."""
        self.router.ended(session)

    def counted(self) -> Counter[str]:
        """What was counted since this was last asked."""
        counted, self.router.counters = self.router.counters, Counter()
        return counted

    async def _engine_for(self, session: str, seconds: float, failure: EtudeError | None) -> Member:
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self.router.view.failure is not None:
                raise EtudeError(self.router.view.failure)
            if now > end and failure is not None:
                raise failure
            before = self.router.members.get(self.router.placed.get(session, ""))
            member = self.router.place(session, now)
            if member is not None:
                if before is not None and before.name != member.name:
                    self._drop(before.link, session)
                return member
            if now > end:
                raise DeadlineExceeded(f"an engine to sample for {session}", seconds, self.router.view.state)
            self.router.counters["engine_waits"] += 1
            rest_s = self.router.rest_s(now)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(min(end - now, rest_s if rest_s is not None else 60.0), 0.01)):
                    await self._changed.wait()

    async def _sampled(self, member: Member, request: SampleRequest) -> Completion:
        """Raises WorkerGone too when the fleet says so, whatever the engine does."""
        task = asyncio.ensure_future(member.link.sample(request, self.sample_deadline_s))
        under_way = self._under_way.setdefault(member.name, set())
        under_way.add(task)
        try:
            await asyncio.wait({task})
            if task.cancelled():  # by `_leave`
                raise WorkerGone(f"{member.name} does not serve any more")
            return task.result()
        except (ContextOverflow, InvalidRequest):
            raise  # the session may go on with what is cached of it
        except BaseException:
            task.cancel()
            self._drop(member.link, request.session_id)
            raise
        finally:
            under_way.discard(task)

    def _leave(self, name: str) -> None:
        for task in self._under_way.pop(name, ()):
            task.cancel()

    def _drop(self, link: Link, session: str) -> None:
        """Have an engine forget a session, without waiting for it; of one that is gone it does not matter."""

        async def dropped() -> None:
            with suppress(EtudeError):
                await link.drop(session)

        task = asyncio.ensure_future(dropped())
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
