"""The algorithm: asynchronous reinforcement learning through the harness, its control flow on one page.

    make_groups                                                           train
    draw a task ─► group of slots ─► roll_out: play, judge ──ready──► take_groups ─► learn: advantages ─► pack ─► step
         ▲                                ▲                                                                        │
         │ as long as there is room       └── engines take a version up, mid-rollout ◄── weight store ◄── put ◄────┘

Rollouts are kept in flight while the trainer steps, in a process of its own, and publishes beside its next step.
Engines take a version up between two decode steps. What bounds how far they drift apart is staleness: `take_groups`
gives out no group whose oldest token is more than `groups.max_staleness` versions old. Nor does it give out one whose
verdicts are all alike.

One call away: how a rollout is played (`session.py`), which groups are closed, dropped and taken (`groups.py`), when a
group may be opened (`schedule.py`), advantages (`trainer/credit.py`), and the forward, loss and optimizer of a step
(`trainer/step.py`, `trainer/losses.py`). `train`, `make_groups` and `roll_out` run in the controller's process, `learn`
in the trainer's. Tokens go from the worker that plays a sample to the trainer by the disk; what passes through here is
a `Sample`, which holds none. What survives whose death is in `docs/faults.md`.
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
    from etude.trainer.feedback import HintExample
    from etude.trainer.ranks import RankedPublishing
    from etude.trainer.step import Trainer
    from etude.weights.background import BackgroundPublisher


async def train(controller: Controller) -> None:
    """Train until the budget is spent or somebody asks to stop."""
    controller.keep_going(make_groups(controller))
    while not controller.finished():
        # Those that have closed: groups.py drops the ones judged alike, and lets none get beyond max_staleness.
        groups = await controller.take_groups()
        if groups is None:
            break  # asked to stop while waiting
        line = await controller.step(groups)  # controller.py ─► trainer_worker.py ─► actors/trainer.py ─► `learn`
        controller.announce_version()  # once the version is in the store, fleet.py tells the engines; not waited for
        controller.record(line)  # which now and then has development tasks played, too (development.py)


async def make_groups(controller: Controller) -> None:
    """Keep as many rollouts in flight as there is room for, in groups of one task each."""
    while not controller.stopping:
        while controller.wants_another_group():  # schedule.py
            drawn = controller.tasks.draw()
            controller.groups.start(drawn.index, drawn.task, drawn.rung, controller.schedule.engine_version)
        controller.dispatch(roll_out)  # those of new groups, and those that are to be played again
        await controller.close_stragglers()
        await controller.changes(0.5)


async def roll_out(controller: Controller, slot: Slot) -> None:
    """One attempt at a sample: a session in its own sandbox, sealed, and judged where the agent never was."""
    attempt = slot.attempts
    sample = await controller.play_and_judge(slot, attempt)  # cluster.py ─► actors/sessions.py, then actors/rewards.py
    if sample is None or slot.id not in controller.slots:
        return  # cancelled, or its group has closed without it
    if isinstance(sample.outcome, InfraFailed):
        controller.failed(slot, sample, sample.outcome)  # never scored: tried again, or dropped before the baseline
    elif not controller.schedule.accepts(sample):
        controller.refuse(slot)  # in lockstep: another version than its group's has sampled it
    else:
        await controller.commit(slot, attempt, sample)  # to the disk, and into its group, which closes with its last


def learn(
    groups: Sequence[Group],
    trainer: Trainer,
    publishing: BackgroundPublisher | RankedPublishing,
    config: TrainerConfig,
    progress: float,
    hints: Sequence[HintExample] = (),
) -> dict[str, Any]:
    """One optimizer step on scored groups; returns its metrics.

    `hints` are messages that went wrong, each with a hint that is distilled into the policy beside the reward
    (`credit.feedback`); there are none by default.
    """
    # For every segment of every trajectory, by default its reward less the group's mean.
    credit = assign_advantages(groups, config.advantages, config.credit)
    batch = build_batch(groups, credit.advantages, trainer.version, mask_summaries=config.credit.mask_summaries)
    metrics = trainer.step(batch, progress, hints)  # forward with the sampler's routes, loss, gradient, optimizer
    # A lossless delta, beside the next step. A step whose gradient was not finite was skipped, and has no new version.
    handed_over = publishing.put(trainer.version, trainer.export)
    return metrics | {
        "used": metrics["used"] | credit.used,
        "snapshot_ms": handed_over.snapshot_ms,
        "publish_stall_ms": handed_over.stall_ms,
    }
