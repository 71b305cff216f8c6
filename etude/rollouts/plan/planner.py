"""The capacity planner: what a recipe would do on processes with given rates, and what would do more.

Owns `plan_of`, which plays the recipe in the simulator, then other numbers of rollouts in flight, of groups a step and
of engines beside it, and says which are worth having. Its words are `plan.text`'s. Changes nothing, measures nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from etude.rollouts.config import RunConfig
from etude.rollouts.plan.rates import Rates
from etude.rollouts.plan.simulator import Forecast, Simulation

STEPS = 40
"""Simulated for each answer."""
ENOUGH = 0.97
"""Of the best throughput: a smaller setup that reaches this share of it is preferred, for its samples are fresher."""
SPARE_STALE = 0.05
"""Share of groups that a recommended setup may lose to the staleness bound: what it loses are the long ones."""


@dataclass(frozen=True)
class Option:
    """One setup and what it would do."""

    config: RunConfig
    forecast: Forecast

    @property
    def size(self) -> tuple[int, int]:
        """Groups a step, and rollouts in flight."""
        return self.config.rollouts.groups_per_step, self.config.rollouts.concurrency

    @property
    def samples_per_s(self) -> float:
        return self.forecast.samples / max(self.forecast.wall_s, 1e-9)

    @property
    def stale_share(self) -> float:
        """Of groups, those dropped for their age."""
        taken = self.forecast.steps * self.config.rollouts.groups_per_step
        return self.forecast.dropped.get("stale", 0) / max(1, taken)

    def as_json(self) -> dict[str, Any]:
        """Figures alone."""
        forecast, rollouts = self.forecast, self.config.rollouts
        return {
            "concurrency": rollouts.concurrency, "groups_per_step": rollouts.groups_per_step,
            "engines": self.config.engine.replicas, "samples_per_s": round(self.samples_per_s, 3),
            "step_s": round(forecast.step_s, 3), "trainer_busy": round(forecast.trainer_busy, 4),
            "engine_busy": round(forecast.engine_busy, 4), "age_p50": forecast.age(0.5), "age_p99": forecast.age(0.99),
            "stale_share": round(self.stale_share, 4),
        }  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The recipe as it stands, what is recommended, and how much of each kind of machine the work needs."""

    rates: Rates
    now: Option
    better: Option
    tried: tuple[Option, ...]
    engine_s: float
    """Of an engine for each sample that is trained on; what is dropped included."""
    trainer_s: float
    """Of the trainer for each."""

    @property
    def engines_per_trainer(self) -> float:
        """Engines that keep one trainer busy, and are kept busy by it."""
        return self.engine_s / max(self.trainer_s, 1e-9)

    def as_json(self) -> dict[str, Any]:
        """The plan as one object."""
        return {
            "now": self.now.as_json(), "recommended": self.better.as_json(),
            "tried": [option.as_json() for option in self.tried],
            "engine_s_per_sample": round(self.engine_s, 5), "trainer_s_per_sample": round(self.trainer_s, 5),
            "engines_per_trainer": round(self.engines_per_trainer, 3),
            "inference_share": round(self.engine_s / max(self.engine_s + self.trainer_s, 1e-9), 4),
            "rates": {
                "engine": asdict(self.rates.engine), "trainer": asdict(self.rates.trainer),
                "delivery_s": self.rates.delivery_s, "rollouts": sum(map(len, self.rates.groups)),
            },
        }  # fmt: skip


def plan_of(config: RunConfig, rates: Rates, seed: int = 0) -> Plan:
    """Simulate the recipe and others near it; the same rates and seed give the same plan."""
    now = _tried(config, rates, seed)
    tried = tuple(_tried(other, rates, seed) for other in _near(config))
    engines = config.engine.replicas
    affordable = [option for option in (now, *tried) if option.config.engine.replicas == engines]
    fresh = [option for option in affordable if option.stale_share <= SPARE_STALE]
    best = max((option.samples_per_s for option in fresh), default=0.0)
    enough = [option for option in fresh if option.samples_per_s >= ENOUGH * best]
    better = min(enough, key=lambda each: each.size, default=now)
    forecast, samples = now.forecast, max(1, now.forecast.samples)
    return Plan(
        rates, now, better, tried,
        engine_s=forecast.engine_busy * forecast.wall_s * engines / samples,
        trainer_s=forecast.trainer_busy * forecast.wall_s / samples,
    )  # fmt: skip


def _tried(config: RunConfig, rates: Rates, seed: int) -> Option:
    return Option(config, Simulation(rates, config, seed).run(STEPS))


def _near(config: RunConfig) -> Iterator[RunConfig]:
    """Half to four times as many rollouts in flight, half to twice as many groups a step, and one engine more."""
    rollouts, engine = config.rollouts, config.engine
    for factor, share in itertools.product((0.5, 1, 2, 4), (0.5, 1, 2)):
        concurrency, groups = round(rollouts.concurrency * factor), round(rollouts.groups_per_step * share)
        if concurrency >= config.groups.size and groups >= 1 and (factor, share) != (1, 1):
            update = {"concurrency": concurrency, "groups_per_step": groups}
            yield config.model_copy(update={"rollouts": rollouts.model_copy(update=update)})
    more = {"engine": engine.model_copy(update={"replicas": engine.replicas + 1})}
    yield config.model_copy(update=more)
    twice = rollouts.model_copy(update={"concurrency": 2 * rollouts.concurrency})
    yield config.model_copy(update={**more, "rollouts": twice})
