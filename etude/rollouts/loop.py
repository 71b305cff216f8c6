"""The algorithm: asynchronous reinforcement learning through the harness, the whole of it on this page.

    make_groups                                                            train
    draw a task ─► a group of slots ─► roll_out: play, judge ──ready──► take ─► learn: advantages ─► pack ─► step ─┐
         ▲                                  ▲                                                                     │
         │ as long as there is room         └──── engines follow the weight store, mid-rollout ◄───── publish ◄────┘

Nothing waits for anything else. Rollouts are kept in flight, the trainer steps in a process of its own and publishes
beside the next step, engines take a version up between two decode steps. The only thing that bounds how far they drift
apart is staleness: `take_groups` gives out no group whose oldest token is more than `groups.max_staleness` versions
old.

A sample's tokens are written by the worker that plays it and read by `learn`'s caller, the trainer's process; what
passes through here between the two are `Sample`s, which hold none. `train`, `make_groups` and `roll_out` run in the
controller's process, `learn` in the trainer's. What survives whose death is in `docs/faults.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etude.records import Group, InfraFailed
from etude.trainer.credit import assign_advantages
from etude.trainer.packing import build_batch

if TYPE_CHECKING:
    from etude.rollouts.controller import Controller
    from etude.rollouts.slots import Slot
    from etude.trainer.config import TrainerConfig
    from etude.trainer.feedback import Lesson
    from etude.trainer.ranks import RankedPublishing
    from etude.trainer.step import Trainer
    from etude.weights.background import BackgroundPublisher


async def train(run: Controller) -> None:
    """Train until the budget is spent or somebody asks to stop."""
    run.keep_going(make_groups(run))
    while not run.finished():
        groups = await run.take_groups()
        if groups is None:
            break  # asked to stop while waiting
        line = await run.step(groups)  # `learn`, in the trainer's process
        run.publish()  # tells the engines, once the version is in the store; waits for neither
        run.record(line)


async def make_groups(run: Controller) -> None:
    """Keep as many rollouts in flight as there is room for, in groups of one task each."""
    while not run.stopping:
        while run.wants_another_group():
            drawn = run.tasks.draw()
            run.pool.start(drawn.index, drawn.task, drawn.rung, run.schedule.held)
            run.dispatch(roll_out)
        run.dispatch(roll_out)  # those that are to be played again
        await run.close_stragglers()
        await run.changes(0.5)


async def roll_out(run: Controller, slot: Slot) -> None:
    """One attempt at a sample: a session in its own sandbox, sealed, and judged where the agent never was."""
    attempt = slot.attempts
    sample = await run.play(slot, attempt)
    if sample is None or slot.id not in run.slots:
        return  # cancelled, or its group has closed without it
    if isinstance(sample.outcome, InfraFailed):
        run.failed(slot, sample, sample.outcome)  # never scored: tried again, or dropped before the baseline
    elif not run.schedule.accepts(sample):
        run.refuse(slot)
    else:
        await run.score(slot, attempt, sample)  # into its group, which closes with its last one


def learn(
    groups: Sequence[Group],
    trainer: Trainer,
    publishing: BackgroundPublisher | RankedPublishing,
    config: TrainerConfig,
    progress: float,
    lessons: Sequence[Lesson] = (),
) -> dict[str, Any]:
    """One optimizer step on scored groups; returns its metrics. The new version is on its way to the weight store."""
    # each reward less its group's mean, for every segment of every trajectory
    credit = assign_advantages(groups, config.advantages, config.credit)
    batch = build_batch(groups, credit.advantages, trainer.version, mask_summaries=config.credit.mask_summaries)
    metrics = trainer.step(batch, progress, lessons)  # forward with the sampler's routes, loss, gradient, optimizer
    handed_over = publishing.put(trainer.version, trainer.export)  # a lossless delta, beside the next step
    return metrics | {
        "used": metrics["used"] | credit.used,
        "snapshot_ms": handed_over.snapshot_ms,
        "publish_stall_ms": handed_over.stall_ms,
    }
