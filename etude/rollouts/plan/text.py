"""A plan in words, for a terminal.

Owns `lines_of`. Pure; the figures are `plan.planner`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from etude.rollouts.plan.planner import Option, Plan

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
