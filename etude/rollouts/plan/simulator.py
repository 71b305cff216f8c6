"""A run, played without its machines: which process waits for which, and for how long.

Owns a discrete-event simulation of the pipeline: orders, engine, tools, judges, trainer, delivery. Groups, slots and
the schedule are the run's own (`rollouts.groups`, `slots`, `schedule`), by the recipe's own keys; the rates are those
of real processes (`plan.rates`), and rollouts go as measured ones went. Seeded, so that the same question has the same
answer. No Ray, no clock, no I/O.

The engine decodes all that is running together, one token each a step of `step_s + decode_s * running`, so that time
passes for all of them alike: a sequence's end is a point in tokens since the start, and only these are sorted. What a
turn has to read stops everybody for as long as reading takes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from etude.engine.config import EngineConfig
from etude.errors import ConfigError
from etude.harness.conduct import Conduct
from etude.records import InfraFailed, Scored, Task, Verifier, Version
from etude.rollouts.config import RunConfig
from etude.rollouts.groups import DropReason, GroupPool
from etude.rollouts.ledger import GroupLedger
from etude.rollouts.plan.rates import EngineRate, Played, Rates
from etude.rollouts.sample import Sample, SampleGroup
from etude.rollouts.schedule import schedule_of
from etude.rollouts.slots import Slot, Slots, group_id

_TASK = Task("any", "", {}, Verifier({}))
_ENDLESS = 10**9
_FRUITLESS = 50
"""So many times the groups of a step end without one, and as often as any measured group: then none can be trained on,
and time would go on for nothing."""


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


class Simulation:
    """One run of the pipeline. Make one, and `run` it once."""

    def __init__(self, rates: Rates, config: RunConfig, seed: int | None = 0) -> None:
        """`seed` None: rollouts come in the order they were measured in."""
        self.rates = rates
        rollouts = config.rollouts.model_copy(update={"max_steps": _ENDLESS})
        self.config = config.model_copy(update={"rollouts": rollouts})
        self.order = list(range(len(rates.groups)))
        if seed is not None:
            random.Random(seed).shuffle(self.order)
        self.schedule = schedule_of(self.config)
        self.pool = GroupPool(config.groups, Slots(config.seed), GroupLedger(None))
        self.now, self.seen = 0.0, itertools.count()
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        most = config.engine.max_running if isinstance(config.engine, EngineConfig) else _ENDLESS
        self.engines = [_Engine(rates.engine, most) for _ in range(config.engine.replicas)]
        self.out: set[str] = set()
        """Slots that are being played."""
        self.version = Version(0)
        self.published = Version(0)
        """The newest that engines could take up."""
        self.steps = self.samples = self.rollouts = 0
        self.training = False
        self.trainer_busy_s = 0.0
        self.dropped_before = 0
        """Groups, until the last step."""
        self.ages: Counter[int] = Counter()

    def run(self, steps: int, most_s: float = 1e7) -> Forecast:
        """Until this many steps are made; what the first took is warm-up, and left out. Raises ConfigError where none
        would be.
        """
        self._reconcile()
        start: tuple[float, float, float, int, int, int] | None = None
        before: Counter[DropReason] = Counter()
        while self.steps <= steps and self.now < most_s and not self._is_fruitless() and self._next():
            if self.steps and start is None:
                start = (*self._spent(), self.samples, self.rollouts, self.steps)
                before = self.pool.dropped.copy()
                self.ages.clear()
        start = start or (0.0, 0.0, 0.0, 0, 0, 0)
        wall, trainer, engine = (a - b for a, b in zip(self._spent(), start[:3], strict=True))
        return Forecast(
            wall_s=wall, steps=self.steps - start[5], samples=self.samples - start[3],
            rollouts=self.rollouts - start[4], trainer_busy=trainer / max(wall, 1e-9),
            engine_busy=engine / max(wall, 1e-9), ages=dict(self.ages),
            dropped={reason: more for reason, count in self.pool.dropped.items() if (more := count - before[reason])},
        )  # fmt: skip

    def _is_fruitless(self) -> bool:
        """Whether groups end on and on, and no step is made of any."""
        most = max(_FRUITLESS, len(self.order)) * self.config.rollouts.groups_per_step
        if self.pool.dropped.total() - self.dropped_before <= most:
            return False
        if self.steps == 0:
            why = ", ".join(f"{count} {reason}" for reason, count in sorted(self.pool.dropped.items()))
            raise ConfigError(
                f"no step would be made: none of the {len(self.order)} groups that were measured can be trained on "
                f"(dropped in the simulation: {why}). A group is dropped as zero_variance where all its rollouts earn "
                'the same: measure a run that solves some tasks, or set groups.drop_zero_variance = "never"'
            )
        return True

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

    # --- what the controller does -------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        self.schedule.engine_version = max(
            self.schedule.engine_version, min(self.published, self.schedule.target_version(self.pool))
        )
        while self.schedule.opens(self.pool, len(self.out)):
            self.pool.start(self.pool.next_index, _TASK, version=self.schedule.engine_version)
        self._dispatch()
        if not self.schedule.deterministic:
            self.pool.close_stragglers(self.now)
        self.out -= set(self.pool.late)
        self.pool.late.clear()
        self._train()

    def _dispatch(self) -> None:
        for slot in self.schedule.startable(self.pool, len(self.out)):
            self.pool.slots.move(slot.id, "starting")
            self.out.add(slot.id)
            measured = self.rates.groups[self.order[slot.group_index % len(self.order)]]
            self._play(slot, measured[slot.member % len(measured)])

    def _play(self, slot: Slot, played: Played) -> None:
        """All its turns, one after the other; its tokens are of the version that is served when the first begins."""
        turns = iter(played.turns)
        versions: list[Version] = []

        def turn() -> None:
            if slot.id not in self.out:
                return  # its group has closed without it
            versions.append(self.schedule.engine_version)
            if (each := next(turns, None)) is None:
                self._after(played.after_s, lambda: self._scored(slot, played, versions[0]))
                return
            engine = min(self.engines, key=lambda each: len(each.running) + len(each.waiting))
            engine.submit(each.prefill, each.tokens, lambda: self._after(each.tools_s, turn))

        self._after(played.before_s, turn)

    def _scored(self, slot: Slot, played: Played, version: Version) -> None:
        if slot.id not in self.out:
            return
        self.out.discard(slot.id)
        self.rollouts += 1
        if played.reward is not None:
            self.pool.slots.advance_to(slot.id, slot.attempts, "scored")
        verdict = played.reward if played.verdict is None else played.verdict
        outcome = InfraFailed("measured") if played.reward is None else Scored(played.reward, {"tests": verdict or 0.0})
        group, none = group_id(slot.group_index), Conduct(0, 0, False, 0)
        versions = {int(version): played.context}
        self.pool.add(Sample(slot.id, "any", group, outcome, {}, {}, (), 0.0, versions, none), self.now)
        if group in self.pool.open and self.pool.open[group].quorum_since == self.now:
            self._after(self.config.groups.straggler_s + 1e-9, self._reconcile)
        self._reconcile()

    # --- what the trainer does ----------------------------------------------------------------------------------------

    def _train(self) -> None:
        batch = None if self.training else self.schedule.take(self.pool, self.version)
        if batch is None:
            return
        step_s = self._step_s(batch)
        self.training = True
        members = [member for group in batch for member in group.samples]
        self.ages.update(self.version - member.oldest for member in members if member.oldest is not None)
        self._after(self.rates.trainer.handover_s + step_s, lambda: self._stepped(step_s, len(members)))

    def _step_s(self, batch: list[SampleGroup]) -> float:
        tokens = sum(sum(member.versions.values()) for group in batch for member in group.samples)
        return self.rates.trainer.step_s + self.rates.trainer.token_s * tokens

    def _stepped(self, step_s: float, samples: int) -> None:
        self.training = False
        self.steps += 1
        self.dropped_before = self.pool.dropped.total()
        self.version = Version(self.version + 1)
        self.schedule.stepped(self.version)
        self.pool.trained()
        self.samples += samples
        self.trainer_busy_s += step_s
        self._after(self.rates.delivery_s, lambda version=self.version: self._delivered(version))
        self._reconcile()

    def _delivered(self, version: Version) -> None:
        self.published = max(self.published, version)
        self._reconcile()
