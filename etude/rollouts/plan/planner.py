"""The capacity planner: what a recipe would do on processes with given rates, and what would do more.

Owns `plan_of`, which plays the recipe in the simulator, then other numbers of rollouts in flight, of groups a step and
of engines beside it, and says which are worth having; its words for a terminal; and `probed`, the short run that rates
are learnt from where there is none: the recipe as it stands, in a directory that is gone afterwards.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.errors import Interrupted
from etude.rollouts.config import ControlConfig, RunConfig
from etude.rollouts.plan.rates import Rates, read_rates
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


# --- in words ---------------------------------------------------------------------------------------------------------

_HEAD = "in flight  groups/step  engines   samples/s   step   trainer  engine   age p50  p99   stale"


def lines_of(plan: Plan) -> Iterator[str]:
    """What is said of a plan, line by line."""
    engine, trainer = plan.rates.engine, plan.rates.trainer
    yield f"rates of {sum(map(len, plan.rates.groups))} rollouts in {len(plan.rates.groups)} groups:"
    yield (
        f"  engine   {1000 * engine.step_s:.2f} ms a step, {1000 * engine.decode_s:.3f} ms a sequence in it, "
        f"{1000 * engine.prefill_s:.3f} ms a token that a turn has to read"
    )
    yield (
        f"  trainer  {trainer.step_s:.2f} s a step, {1e6 * trainer.token_s:.0f} us a token, "
        f"{1000 * trainer.handover_s:.0f} ms to hand a batch over"
    )
    yield f"  version  {1000 * plan.rates.delivery_s:.0f} ms from a step's end to the engines"
    yield ""
    yield _HEAD
    ordered = sorted(plan.tried, key=lambda each: (each.config.engine.replicas, *each.size))
    for option in (plan.now, *ordered):
        mark = "  <- the recipe" if option is plan.now else "  <- recommended" if option is plan.better else ""
        yield _row(option) + mark
    yield ""
    yield (
        f"a sample that is trained on takes {1000 * plan.engine_s:.0f} ms of an engine and "
        f"{1000 * plan.trainer_s:.0f} ms of the trainer: {plan.engines_per_trainer:.2f} engines for each trainer"
    )
    if plan.better is plan.now:
        yield "the recipe is among the best of these: leave it"
    else:
        rollouts, gain = plan.better.config.rollouts, plan.better.samples_per_s / max(plan.now.samples_per_s, 1e-9)
        yield (
            f"rollouts.concurrency = {rollouts.concurrency}, rollouts.groups_per_step = {rollouts.groups_per_step}: "
            f"{gain:.2f} times the recipe's samples a second"
        )


def _row(option: Option) -> str:
    (groups, concurrency), forecast = option.size, option.forecast
    return (
        f"{concurrency:9}  {groups:11}  {option.config.engine.replicas:7}   {option.samples_per_s:9.2f}  "
        f"{forecast.step_s:4.1f} s  {forecast.trainer_busy:7.0%} {forecast.engine_busy:7.0%}   "
        f"{forecast.age(0.5):7}  {forecast.age(0.99):3}  {option.stale_share:6.1%}"
    )


# --- measured ---------------------------------------------------------------------------------------------------------


def brief(config: RunConfig, seconds: float) -> RunConfig:
    """The recipe with so much training and one task of each rung evaluated."""
    rollouts = config.rollouts.model_copy(update={"max_minutes": seconds / 60, "total_minutes": None})
    evaluation = config.evaluation.model_copy(update={"per_rung": 1, "heldout_per_rung": 0, "real": False})
    control = ControlConfig(enabled=False)
    return config.model_copy(update={"rollouts": rollouts, "evaluation": evaluation, "control": control})


async def probed(config: RunConfig, seconds: float) -> Rates:
    """The rates of this machine, from so many seconds of training. Raises ConfigError where they are too few."""
    from etude.rollouts.run import Run  # Ray: a plan from an older run needs none of it

    with tempfile.TemporaryDirectory(prefix="etude-probe-") as directory:
        run = Run(brief(config, seconds), Path(directory) / "run", resume=False, quiet=True)
        try:
            await run.execute()
        except Interrupted:  # what it says of going on is of a directory that is gone
            raise Interrupted("stopped before the rates were known; nothing is left of it") from None
        return read_rates(run.directory, f"--probe {seconds:g}")
