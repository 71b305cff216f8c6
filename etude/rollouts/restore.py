"""A run's samples as an earlier life left them: what the trainer's checkpoint says, what the ledger has of their
groups, and what the trajectory store has of themselves.

    the checkpoint says                      the ledger has       and so the group is
    it has ended (its index is below                              gone; its samples are counted, and never seen again
    `next`, and not among the pending)
    it is pending, or nothing                it is ready          ready, and its samples are trained on
                                             it was dropped       dropped, and counted
                                             it is open           open: what is scored stays, the rest is played
                                             nothing              opened anew: the same slots, the same seeds

Owns that table. The checkpoint is the only thing that can say that a sample was trained on; so a sample is trained on
once, whenever the run is killed. Talks to: slots, groups, ledger, trajectory store, stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from etude.errors import AccountingError
from etude.records import solved
from etude.rollouts.config import RunConfig
from etude.rollouts.groups import GroupPool
from etude.rollouts.ledger import GroupLedger, GroupRecord
from etude.rollouts.sample import Sample
from etude.rollouts.slots import Slots, group_id, index_of, member_of, slot_id
from etude.rollouts.stats import RunStats
from etude.rollouts.stream import TaskStream
from etude.rollouts.trajectory_store import TrajectoryStore


def restored(
    config: RunConfig,
    ledger: GroupLedger,
    kept: TrajectoryStore,
    tasks: TaskStream,
    stats: RunStats,
    saved: Mapping[str, Any],
) -> GroupPool:
    """All groups that are alive, with their slots. `saved` is the controller's state in the newest checkpoint; empty
    where there is none. `tasks` goes on after the highest index that was ever opened.
    """
    pool = GroupPool(config.groups, Slots(config.seed, saved.get("ended")), ledger, stats.dropped)
    pool.next_index = int(saved.get("next", 0))
    counted = set(saved.get("scored", ()))
    alive = {*saved.get("pending", ()), *(index for index in ledger.groups if index >= pool.next_index)}
    for index in sorted(alive):
        record = ledger.groups.get(index)
        if record is None:  # a power cut took the line: nothing of the group was relied on
            drawn = tasks.again(index, tasks.turn(index))
            pool.start(index, drawn.task, drawn.rung, int(saved["line"]["version"]))
            continue
        samples = _samples(kept, record)
        for sample in samples.values():
            if sample.id not in counted:
                stats.rolled_out(sample)
                tasks.played(record.rung, solved(sample.outcome))
        stats.counters["samples_restored"] += len(samples)
        pool.restore(record, tasks.again(index, record.rung).task, samples)
    tasks.next_index = max(tasks.next_index, pool.next_index)
    _sweep(kept, ledger, alive)
    return pool


def _samples(kept: TrajectoryStore, record: GroupRecord) -> dict[int, Sample]:
    wanted = set(range(record.size)) - record.dropped.keys()
    found = {member: kept.sample(slot_id(record.index, member)) for member in sorted(wanted)}
    return {member: sample for member, sample in found.items() if sample is not None}


def _sweep(kept: TrajectoryStore, ledger: GroupLedger, alive: set[int]) -> None:
    """What a killed run had not come to removing: slots that were dropped one by one, and groups that have ended."""
    there = kept.slots()
    kept.ended({group_id(index_of(slot)) for slot in there if index_of(slot) not in alive})
    for slot in there:
        record = ledger.groups.get(index_of(slot))
        if record is not None and member_of(slot) in record.dropped:
            kept.remove(slot)


def account(pool: GroupPool, step_lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What became of every sample that was ever opened, by three witnesses that know nothing of each other: the ledger
    (what was opened), the lines of the steps (what was trained on) and the slots (what was dropped). Raises
    AccountingError where they do not agree.
    """
    opened = sum(record.size for record in pool.ledger.groups.values())
    trained = Counter(
        f"{group}/{member}" for line in step_lines for group, members in line["groups"].items() for member in members
    )
    dropped = {reason: count for reason, count in sorted(pool.slots.dropped.items()) if count}
    found = {
        "samples": opened,
        "trained": len(trained),
        "dropped": dropped,
        "lost": opened - len(trained) - sum(dropped.values()),
        "trained_twice": trained.total() - len(trained),
    }
    if found["lost"] or found["trained_twice"] or pool.slots.trained != len(trained):
        raise AccountingError(
            f"the samples of this run do not add up: {found}, by the slots {pool.slots.trained} trained; please report "
            f"it with {pool.ledger.directory} and metrics.jsonl"
        )
    return found
