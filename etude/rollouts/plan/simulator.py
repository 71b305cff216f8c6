"""A run, played without its machines: which process waits for which, and for how long.

Owns a discrete-event simulation of the pipeline: orders, engine, tools, judges, groups, trainer, delivery. It knows the
rules of the real controller (`Setup` has the recipe's keys) and the rates of the real processes (`plan.rates`), and
nothing else; rollouts go as measured ones went. Seeded, so that the same question has the same answer. No Ray, no
clock, no I/O.

The engine decodes all that is running together, one token each a step of `step_s + decode_s * running`, so that time
passes for all of them alike: a sequence's end is a point in tokens since the start, and only these are sorted. What a
turn has to read stops everybody for as long as reading takes.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from etude.rollouts.plan.rates import EngineRate, Played, Rates


@dataclass(frozen=True)
class Setup:
    """What a recipe decides, by the names it has there."""

    concurrency: int
    groups_per_step: int
    size: int
    max_staleness: int = 4
    early_close_share: float = 0.75
    straggler_s: float = 20.0
    oversample: int = 0
    wait: bool = False
    """Whether `when_stale` is "wait"."""
    window_share: float = 0.3
    schedule: Literal["free", "lockstep"] = "free"
    lag: int = 0
    engines: int = 1
    max_running: int = 128

    @property
    def sent(self) -> int:
        """Rollouts that a group sends out."""
        return self.size + self.oversample

    @property
    def stock(self) -> int:
        """Groups that are open or ready at once."""
        return self.groups_per_step * (1 + self.max_staleness)

    @property
    def window(self) -> int:
        return max(self.groups_per_step, math.ceil(self.window_share * self.stock))


@dataclass
class Forecast:
    """What happened in the simulation, after the first step; the times are seconds."""

    wall_s: float
    steps: int
    samples: int
    """Rollouts that steps were made of."""
    rollouts: int
    trainer_busy: float
    engine_busy: float
    ages: dict[int, int]
    """Trained rollouts by the versions between their first token's and the one trained."""
    dropped: dict[str, int]

    @property
    def step_s(self) -> float:
        """Wall time a step."""
        return self.wall_s / max(1, self.steps)

    def age(self, share: float) -> int:
        """The age that this share of the rollouts does not exceed."""
        total, seen = sum(self.ages.values()), 0
        for age, count in sorted(self.ages.items()):
            seen += count
            if seen >= share * total:
                return age
        return 0


class _Engine:
    """One engine: processor sharing, counted in tokens since the start."""

    def __init__(self, rate: EngineRate, max_running: int) -> None:
        self.rate, self.max_running = rate, max_running
        self.running: list[tuple[float, int, Callable[[], None]]] = []
        self.waiting: deque[tuple[int, int, Callable[[], None]]] = deque()
        self.tokens = self.at = self.reading_s = self.busy_s = 0.0
        self.turns = itertools.count()

    def step_s(self) -> float:
        return self.rate.step_s + self.rate.decode_s * len(self.running)

    def advance(self, now: float) -> None:
        """Bring its state to this moment."""
        passed, self.at = now - self.at, now
        read = min(passed, self.reading_s)
        self.reading_s -= read
        self.busy_s += passed if self.running else read
        if self.running:
            self.tokens += (passed - read) / self.step_s()

    def submit(self, prefill: int, tokens: int, done: Callable[[], None]) -> None:
        if len(self.running) >= self.max_running:
            self.waiting.append((prefill, tokens, done))
            return
        self.reading_s += prefill * self.rate.prefill_s
        heapq.heappush(self.running, (self.tokens + tokens, next(self.turns), done))

    def next_end(self) -> float | None:
        """When the first of those running ends, if nothing else happens."""
        if not self.running:
            return None
        return self.at + self.reading_s + max(0.0, self.running[0][0] - self.tokens) * self.step_s()

    def pop(self) -> Callable[[], None]:
        done = heapq.heappop(self.running)[2]
        if self.waiting:
            self.submit(*self.waiting.popleft())
        return done


@dataclass
class _Group:
    index: int
    born: int
    """The version served when it was opened."""
    waiting: int
    """Members that have not come in."""
    out: int = 0
    """Those of them that have begun."""
    members: list[tuple[Played, int]] = field(default_factory=list)
    """With the version of its first token."""
    closed: bool = False


class Simulation:
    """One run of the pipeline. Make one, and `run` it once."""

    def __init__(self, rates: Rates, setup: Setup, seed: int | None = 0) -> None:
        """`seed` None: rollouts come in the order they were measured in."""
        self.rates, self.setup = rates, setup
        self.order = list(range(len(rates.groups)))
        if seed is not None:
            random.Random(seed).shuffle(self.order)
        self.now, self.seen = 0.0, itertools.count()
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.engines = [_Engine(rates.engine, setup.max_running) for _ in range(setup.engines)]
        self.queue: deque[tuple[_Group, Played]] = deque()
        self.open: dict[int, _Group] = {}
        self.ready: dict[int, list[tuple[Played, int]]] = {}
        self.out = self.started = self.version = self.served = self.steps = self.samples = self.rollouts = 0
        self.training = False
        self.trainer_busy_s = 0.0
        self.ages: Counter[int] = Counter()
        self.dropped: Counter[str] = Counter()

    def run(self, steps: int, most_s: float = 1e7) -> Forecast:
        """Until this many steps are made; what the first took is warm-up, and left out."""
        self._reconcile()
        start: tuple[float, float, float, int, int, int] | None = None
        while self.steps <= steps and self.now < most_s and self._next():
            if self.steps and start is None:
                start = (*self._spent(), self.samples, self.rollouts, self.steps)
                self.ages.clear()
                self.dropped.clear()
        start = start or (0.0, 0.0, 0.0, 0, 0, 0)
        wall, trainer, engine = (a - b for a, b in zip(self._spent(), start[:3], strict=True))
        return Forecast(
            wall_s=wall, steps=self.steps - start[5], samples=self.samples - start[3],
            rollouts=self.rollouts - start[4], trainer_busy=trainer / max(wall, 1e-9),
            engine_busy=engine / max(wall, 1e-9), ages=dict(self.ages), dropped=dict(self.dropped),
        )  # fmt: skip

    def _spent(self) -> tuple[float, float, float]:
        busy = sum(engine.busy_s for engine in self.engines) / len(self.engines)
        return self.now, self.trainer_busy_s, busy

    # --- time ---------------------------------------------------------------------------------------------------------

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now + seconds, next(self.seen), what))

    def _next(self) -> bool:
        """Go to the next thing that happens; False when nothing ever will."""
        ends = [(end, engine) for engine in self.engines if (end := engine.next_end()) is not None]
        first = min(ends, key=lambda each: each[0], default=None)
        if first is not None and (not self.heap or first[0] <= self.heap[0][0]):
            self._to(first[0])
            first[1].pop()()
        elif self.heap:
            at, _, what = heapq.heappop(self.heap)
            self._to(at)
            what()
        else:
            return False
        return True

    def _to(self, at: float) -> None:
        self.now = at
        for engine in self.engines:
            engine.advance(at)

    # --- the controller's rules ---------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        while self._wants_another():
            measured = self.rates.groups[self.order[self.started % len(self.order)]]
            group = self.open[self.started] = _Group(self.started, self.served, self.setup.sent)
            self.queue.extend((group, measured[at % len(measured)]) for at in range(self.setup.sent))
            self.started += 1
        while self.queue and self.out < self.setup.concurrency:
            group, played = self.queue.popleft()
            if not group.closed:
                self.out += 1
                group.out += 1
                self._after(played.before_s, lambda g=group, p=played: self._begin(g, p))
        self._train()

    def _wants_another(self) -> bool:
        setup = self.setup
        if setup.schedule == "lockstep":
            return self.started // setup.groups_per_step <= self.served + setup.lag
        room = self.out + len(self.queue) + setup.sent <= setup.concurrency
        return room and len(self.ready) + len(self.open) < setup.stock

    def _begin(self, group: _Group, played: Played) -> None:
        """The first turn: its tokens are of the version served now."""
        self._turn(group, played, 0, self.served)

    def _turn(self, group: _Group, played: Played, at: int, version: int) -> None:
        if group.closed:
            return
        if at == len(played.turns):
            self._after(played.after_s, lambda: self._scored(group, played, version))
            return
        turn = played.turns[at]
        engine = min(self.engines, key=lambda each: len(each.running) + len(each.waiting))

        def answered() -> None:
            self._turn(group, played, at + 1, version)

        engine.submit(turn.prefill, turn.tokens, lambda: self._after(turn.tools_s, answered))

    def _scored(self, group: _Group, played: Played, version: int) -> None:
        if group.closed:
            return
        self.out -= 1
        group.out -= 1
        self.rollouts += 1
        group.waiting -= 1
        if played.reward is not None:
            group.members.append((played, version))
        if group.waiting == 0 or len(group.members) >= self.setup.size:
            self._close(group)
        elif self.setup.schedule == "free" and group.waiting == self._stragglers():
            self._after(self.setup.straggler_s, lambda: self._close(group))
        self._reconcile()

    def _stragglers(self) -> int:
        """How many of a group may be missing when the wait for them begins."""
        return self.setup.sent - math.ceil(self.setup.early_close_share * self.setup.size)

    def _close(self, group: _Group) -> None:
        """With whoever is there; what is still out is cancelled."""
        if group.closed:
            return
        group.closed = True
        self.out -= group.out
        del self.open[group.index]
        varied = len({played.reward for played, _ in group.members}) > 1
        if not varied:
            self.dropped["no_variance"] += 1
        if varied or self.setup.schedule == "lockstep":
            self.ready[group.index] = group.members if varied else []
        self._reconcile()

    # --- the trainer --------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        batch = None if self.training else self._take()
        if batch is None:
            return
        members = [member for group in batch for member in group]
        tokens = sum(played.context for played, _ in members)
        rate = self.rates.trainer
        step_s = rate.step_s + rate.token_s * tokens if members else 0.0
        self.training = True
        self.ages.update(self.version - version for _, version in members)
        self._after(rate.handover_s + step_s, lambda: self._stepped(step_s, len(members)))

    def _take(self) -> list[list[tuple[Played, int]]] | None:
        size = self.setup.groups_per_step
        if self.setup.schedule == "lockstep":
            wanted = range(self.steps * size, (self.steps + 1) * size)
            return [self.ready.pop(index) for index in wanted] if all(each in self.ready for each in wanted) else None
        oldest = {index: min(version for _, version in members) for index, members in self.ready.items()}
        if not self.setup.wait:
            stale = [index for index, version in oldest.items() if self.version - version > self.setup.max_staleness]
            self.dropped["stale"] += len(stale)
            for index in stale:
                del self.ready[index]
        reach = sorted([*self.open, *self.ready])[: self.setup.window]
        chosen = [index for index in reach if index in self.ready]
        if self.setup.wait:
            bound = self.version - self.setup.max_staleness
            if any(group.born <= bound for group in self.open.values()):
                return None
            due = sorted(index for index in self.ready if oldest[index] <= bound)
            chosen = due + [index for index in chosen if index not in due]
            size = max(size, len(due))
        return [self.ready.pop(index) for index in chosen[:size]] if len(chosen) >= size else None

    def _stepped(self, step_s: float, samples: int) -> None:
        self.training = False
        self.steps += 1
        self.version += 1
        self.samples += samples
        self.trainer_busy_s += step_s
        self._after(self.rates.delivery_s, lambda version=self.version: self._delivered(version))
        self._reconcile()

    def _delivered(self, version: int) -> None:
        self.served = max(self.served, version)
        self._reconcile()
