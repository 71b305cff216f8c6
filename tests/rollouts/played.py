"""Samples and groups at small size, for tests of what happens to them."""

from dataclasses import replace

import numpy as np

from etude.harness.events import EventLog
from etude.harness.sampler import NO_ROUTES
from etude.records import Event, InfraFailed, Scored, Segment, Task, Trajectory, Verifier
from etude.rollouts.groups import GroupConfig, GroupPool
from etude.rollouts.ledger import GroupLedger
from etude.rollouts.sample import sample_of
from etude.rollouts.slots import Slots

TASK = Task("t", "do", {}, Verifier({}))
USAGE = {"turns": 1, "parallel_turns": 0, "tool_calls": 1}


def trajectory(slot, reward, version=0):
    """The trajectory of a slot; failed for infrastructure where `reward` is None."""
    segment = Segment(
        np.array([1, 2], np.int32),
        np.array([False, True]),
        np.zeros(2, np.float32),
        np.full(2, version, np.int32),
        NO_ROUTES,
    )
    outcome = InfraFailed("sandbox") if reward is None else Scored(reward, {"tests": reward})
    events = (Event("end", 0.5, {"stop": "answer"}),)
    segments = () if reward is None else (segment,)
    return Trajectory(slot, "t", slot.partition("/")[0], segments, events, outcome, usage=USAGE)


def rollout(slot, reward, version=0):
    """The sample of a slot."""
    return sample_of(trajectory(slot, reward, version))


async def scored(store, slot, reward, version=0):
    """A sample whose log is on the disk, with its verdict."""
    await logged(store, slot, version)
    sample = replace(rollout(slot, reward, version), checksum=store.settle(slot))
    await store.keep(sample)
    return sample


async def logged(store, slot, version=0):
    """The log of `trajectory`, as a session leaves it."""
    with await store.claim(slot) as kept:
        log = EventLog(journal=kept.journal)
        log.add("prompt", record={"ids": [1]}, tokens=1)
        log.add("completion", record={"ids": [2], "logprobs": [0.0], "versions": [version]}, tokens=1)
        log.add("segment_sealed", segment="turns")
        log.add("end", stop="answer")


def pool_in(directory, **config):
    return GroupPool(GroupConfig(**config), Slots(0), GroupLedger(directory / "ledger"))


def sent(pool, index, version=0):
    """The slots of a new group, all with workers."""
    slots = pool.start(index, TASK, version=version).slots
    for slot in slots:
        pool.slots.move(slot, "starting")
    return slots


def come_in(pool, slot, reward, version=0, now=0.0):
    if reward is not None:
        pool.slots.advance_to(slot, 1, "scored")
    pool.add(rollout(slot, reward, version), now)


def filled(pool, index, rewards, version=0):
    for slot, reward in zip(sent(pool, index, version), rewards, strict=True):
        come_in(pool, slot, reward, version)
