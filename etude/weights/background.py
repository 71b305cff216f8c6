"""Publishes in the background: a step waits for the copy of its weights, and for nothing else.

Owns two sets of arrays and one thread. `put` copies a version into a free set and returns; the thread encodes, hashes
and writes it, oldest first, one at a time. The publisher keeps the set, to which the next version is compared, and
gives back an earlier one. So one version may be on its way while another waits; what a third does is
the publisher's config to say. The codecs, the hashes and the store's requests release the interpreter's lock while they
work, so a step goes on beside them. A store that is away is asked again for as long as a version may take; a publish
that failed then stays failed: everybody who asks is told, and whoever takes up the chain again publishes the same bits.
Never encodes or writes itself. Talks to: publisher, which belongs to the thread from the first `put` on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from etude.deadlines import scaled
from etude.errors import ConfigError, DeadlineExceeded, WeightError
from etude.records import BASE_VERSION, Version
from etude.weights.manifest import Bits
from etude.weights.publisher import Publisher, PublishResult
from etude.weights.shards import ShardedChain

Snapshot = Callable[[Bits | None], Bits]
"""Copies the weights into the arrays given, or into new ones, and returns them."""
PUBLISHED_S = 300.0
"""Longest wait for a version to be in the store, or for room to hand one over: a store that is away that long ends the
run, which can be resumed."""
SLOWEST = 10_000_000.0
"""Bytes of weights a second that a version is given beyond that: a large model on a slow line takes its time."""
_REMEMBERED = 64
"""Publications that can still be asked for; whoever waits for one asks long before so many more are made."""


def publish_seconds(raw_bytes: int, base_s: float = PUBLISHED_S) -> float:
    """How long the publishing of so many bytes of weights may take, before `deadlines.scale`."""
    return base_s + raw_bytes / SLOWEST


@dataclass(frozen=True)
class HandOver:
    """What handing a version over took of the caller's time."""

    snapshot_ms: float
    """The copy."""
    stall_ms: float
    """The wait until there was room for it: 0 unless two versions were still on their way."""


@dataclass(frozen=True)
class Publication:
    """A version that is in the store, and how long after its copy was made."""

    result: PublishResult
    publish_ms: float


@dataclass(frozen=True)
class _Copy:
    version: Version
    bits: Bits
    made_at: float


class BackgroundPublisher:
    """Use `resume` and `put` from one thread; `published` from any.

    `counters`: handed_over, stalled (versions that had to wait for room), replaced (never published: a later one took
    their place), asked_again (times that the store had been away for as long as one request bears).
    """

    def __init__(self, publisher: Publisher, deadline_s: float = PUBLISHED_S) -> None:
        """`deadline_s` is the longest wait for a version to be in the store, or for room to hand one over, of a small
        model; a large one's bytes lengthen it.
        """
        if publisher.config.when_behind == "replace" and isinstance(publisher.chain, ShardedChain):
            raise ConfigError(
                "publisher.when_behind: ranks that publish together publish the same versions, and each would replace "
                'others; set it to "wait"'
            )
        self.publisher, self.config, self.deadline_s = publisher, publisher.config, scaled(deadline_s)
        self._base_s = deadline_s
        self.counters: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._spare: list[Bits | None] = [None, None]
        self._waiting: deque[_Copy] = deque()
        self._newest: Version | None = None
        self._publications: deque[Publication] = deque(maxlen=_REMEMBERED)
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._publish_all, name="publisher", daemon=True)
        self._thread.start()

    # --- before the first version -------------------------------------------------------------------------------------

    def resume(
        self, version: Version, published: Version | None = None, counted: Version = BASE_VERSION
    ) -> list[PublishResult]:
        """Take up the chain for a trainer that goes on from `version`: what was published after it goes.

        `published` is the newest version that was in the store when the trainer's checkpoint was made. Returns what is
        there after `counted`, oldest first. Raises WeightError for a store that has lost versions since; one that was
        emptied gets a new chain. Of ranks that publish together, rank 0 does this before the others.
        """
        newest, chain = self.publisher.resume(), self.publisher.chain
        if newest is None:
            return []
        if published is not None and newest < published:
            raise WeightError(
                f"{chain.store.url} ends with version {newest}, and {published} was there when the checkpoint of "
                f"version {version} was made: restore the store, or empty it to start a new chain from the checkpoint"
            )
        kept = [found for found in chain.versions() if found <= version]
        if newest > version and not self.publisher.leads:
            raise WeightError(f"{chain.store.url} has version {newest}, after {version}: rank 0 goes back first")
        if newest > version:
            self.publisher.rewind(max(kept, default=version))
        return [self.publisher.whole(found) for found in kept if found > counted]

    # --- publishing ---------------------------------------------------------------------------------------------------

    def put(self, version: Version, snapshot: Snapshot) -> HandOver:
        """Have `version` published; returns once it is copied. The newest version again changes nothing.

        Raises DeadlineExceeded where there is no room for it in time, and the error that ended an earlier publish.
        """
        with self._changed:
            self._raise_failure()
            if version == self._newest:
                return HandOver(0.0, 0.0)
            into, stall_s = self._room(version)
        started = time.perf_counter()
        copy = _Copy(version, snapshot(into), time.perf_counter())
        raw_bytes = sum(array.nbytes for array in copy.bits.values())
        self.deadline_s = scaled(publish_seconds(raw_bytes, self._base_s))
        with self._changed:
            self._waiting.append(copy)
            self._newest = version
            self.counters["handed_over"] += 1
            self._changed.notify_all()
        return HandOver(1000 * (copy.made_at - started), 1000 * stall_s)

    def published(self, version: Version) -> Publication:
        """Wait until `version` is in the store, or a later one that took its place; returns that one.

        Raises DeadlineExceeded, or the error that ended its publish.
        """

        def found() -> list[Publication]:
            return [one for one in self._publications if one.result.version >= version]

        with self._changed:
            self._wait(lambda: bool(found()), f"version {version} to be in {self.publisher.chain.store.url}")
            return found()[0]

    @property
    def visible(self) -> Version | None:
        """The newest version put into the store here; None before the first."""
        with self._changed:
            return self._publications[-1].result.version if self._publications else None

    @property
    def encoded_bytes(self) -> int:
        """How far the version at work has got, in bytes of its weights."""
        return self.publisher.encoded_bytes

    def close(self) -> None:
        """Publish what was handed over, then end the thread. Raises DeadlineExceeded."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(self.deadline_s)
        if self._thread.is_alive():
            raise DeadlineExceeded("the last versions to be published", self.deadline_s)

    def _room(self, version: Version) -> tuple[Bits | None, float]:
        """Arrays for a copy (None: to be made), and the seconds that waiting for them took. Holds the lock."""
        if self._spare:
            return self._spare.pop(), 0.0
        if self._waiting and self.config.when_behind == "replace":
            self.counters["replaced"] += 1
            return self._waiting.pop().bits, 0.0
        started = time.perf_counter()
        self.counters["stalled"] += 1
        self._wait(lambda: bool(self._spare), f"room to publish version {version}")
        return self._spare.pop(), time.perf_counter() - started

    def _wait(self, until: Callable[[], bool], what: str) -> None:
        """Until it is so, with the lock held. Raises DeadlineExceeded, or the error that ended a publish."""
        if not self._changed.wait_for(lambda: until() or self._failure is not None, self.deadline_s):
            hint = "the store is slow: raise deadlines.scale, or set publisher.when_behind to replace"
            raise DeadlineExceeded(what, self.deadline_s, hint)
        if not until():
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _publish_all(self) -> None:
        try:
            while (copy := self._next()) is not None:
                result = self._publish(copy)
                if isinstance(self.publisher.chain, ShardedChain):
                    result = self.publisher.whole(copy.version)
                with self._changed:
                    self._spare.append(self.publisher.spare(copy.bits))
                    self._publications.append(Publication(result, 1000 * (time.perf_counter() - copy.made_at)))
                    self._changed.notify_all()
        except BaseException as error:  # whatever it was, it is raised where somebody waits
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _publish(self, copy: _Copy) -> PublishResult:
        """A store that is away for longer than one request bears is asked again, as long as a version may take: its
        error says more than that of whoever waits here, and comes first.
        """
        least_s = self.publisher.chain.store.deadline_s
        while True:
            try:
                return self.publisher.publish(copy.version, copy.bits, keep=True)
            except DeadlineExceeded:
                if time.perf_counter() - copy.made_at + least_s > self.deadline_s:
                    raise
                self.counters["asked_again"] += 1

    def _next(self) -> _Copy | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            return self._waiting.popleft() if self._waiting else None
