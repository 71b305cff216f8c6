"""What is on the disk: scored samples, the fates of groups, and all of it after any death."""

import asyncio
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from played import TASK, come_in, filled, rollout, scored, trajectory
from proofs import one_of_each

from etude.errors import AccountingError, CheckpointError
from etude.records import Cheated, InfraFailed, Scored, Truncated
from etude.rollouts.config import RunConfig
from etude.rollouts.groups import GroupConfig
from etude.rollouts.ledger import GroupLedger, GroupRecord
from etude.rollouts.restore import account, restored
from etude.rollouts.sample import Sample
from etude.rollouts.slots import group_id, member_of
from etude.rollouts.stats import RunStats
from etude.rollouts.stream import Source, TaskStream
from etude.rollouts.trajectory_store import TrajectoryStore

WHOLE = 100


@pytest.mark.parametrize(
    "outcome",
    [
        Scored(1 / 3, {"tests": 1.0, "effort": -0.1}), Truncated("turns", 0.0, {"tests": np.float32(0.25)}),
        InfraFailed("gone", False), Cheated("it read the tests", -0.1),
    ],
)  # fmt: skip
def test_a_sample_comes_back_as_it_was(outcome):
    sample = replace(rollout("g3/1", 1.0, version=4), outcome=outcome, findings=("found",), seconds=1.25, checksum=9)
    assert Sample.decoded(sample.encoded()) == sample


def test_a_cheat_that_an_older_version_has_scored_is_read():
    """There it had no reward of its own: it was 0."""
    sample = replace(rollout("g3/1", 1.0), outcome=Cheated("it read the tests"))
    older = sample.encoded().replace(b', "reward": 0.0', b"")
    assert older != sample.encoded() and Sample.decoded(older) == sample


@pytest.mark.parametrize("name", ["score", "events.jsonl"])
@pytest.mark.parametrize("damage", [b"", b"PK", None])
def test_a_sample_the_disk_has_damaged_is_none(tmp_path, name, damage):
    store = TrajectoryStore(tmp_path)
    sample = asyncio.run(scored(store, "g0/1", 1.0))
    assert store.sample("g0/1") == sample
    path = tmp_path / "g0" / "1" / name
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage is None else damage)
    assert store.sample("g0/1") is None
    assert store.sample("g0/0") is None
    if name == "events.jsonl":
        with pytest.raises(CheckpointError, match="was changed after g0/1 was scored"):
            store.trajectory(sample)


def test_samples_go_one_checkpoint_after_their_group_has_ended(tmp_path):
    store = TrajectoryStore(tmp_path)
    for slot in ("g1/0", "g1/1", "g11/0"):
        asyncio.run(scored(store, slot, 1.0))
    store.ended(["g1"])
    assert store.slots() == ["g1/0", "g1/1", "g11/0"]
    store.ended([])
    assert store.slots() == ["g11/0"]
    store.clear()
    assert list(tmp_path.iterdir()) == []


def test_one_process_at_a_time_has_it(tmp_path):
    first = GroupLedger(tmp_path)
    with pytest.raises(CheckpointError, match="another process"):
        GroupLedger(tmp_path)
    first.close()
    GroupLedger(tmp_path).close()


def test_a_line_that_was_being_written_is_not_there(tmp_path):
    ledger = GroupLedger(tmp_path)
    ledger.opened(GroupRecord(0, 3, 2, 5))
    ledger.closed(0, "ready", [0, 1])
    ledger.close()
    path = tmp_path / "groups.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    again = GroupLedger(tmp_path)
    assert again.groups == {0: GroupRecord(0, 3, 2, 5)}


# --- lives of a run ---------------------------------------------------------------------------------------------------

CONFIG = RunConfig(name="test", groups=GroupConfig(size=3, max_staleness=3, straggler_s=1.0))


@pytest.fixture(scope="module", autouse=True)
def two_of_three_may_close():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("etude.rollouts.groups.EARLY_CLOSE_SHARE", 0.6)
        yield


class Life:
    """A run's bookkeeping from a checkpoint on, with samples that are scored as a draw says."""

    def __init__(self, directory, saved, draw):
        self.draw, self.directory = draw, directory
        self.stats = RunStats(directory / "metrics.jsonl", saved.get("stats"))
        self.tasks = TaskStream(Source(lambda rung, index: TASK, (1, 2), {1: 1, 2: 2}, {}), saved=saved.get("stream"))
        self.ledger = GroupLedger(directory / "ledger")
        self.store = TrajectoryStore(directory / "trajectories")
        self.pool = restored(CONFIG, self.ledger, self.store, self.tasks, self.stats, saved)
        self.version = saved["line"]["version"] if saved else 0

    async def some_samples(self, count):
        for _ in range(count):
            queued = self.pool.slots.within("queued")
            if not queued:
                drawn = self.tasks.draw()
                self.pool.start(drawn.index, drawn.task, drawn.rung, self.version)
                queued = self.pool.slots.within("queued")
            slot = self.draw.choice(queued)
            self.pool.slots.move(slot.id, "starting")
            reward = self.draw.choice([0.0, 1.0, 1.0, None])
            version = self.draw.randint(max(0, self.version - 2), self.version)
            if reward is not None:
                await scored(self.store, slot.id, reward, version)
                self.stats.rolled_out(rollout(slot.id, reward, version))
            come_in(self.pool, slot.id, reward, version, now=self.draw.random())
            if self.draw.random() < 0.1:
                self.pool.close_stragglers(now=5.0)

    def state(self, groups):
        training = sum(len(group.samples) for group in self.pool.training.values())
        self.stats.counters["steps_made"] += 1
        return {
            "next": self.pool.next_index, "pending": self.pool.pending(), "scored": self.pool.scored(),
            "ended": self.pool.slots.after_step(training, self.pool.unsettled()), "stream": self.tasks.state(),
            "stats": {"counters": dict(self.stats.counters), "dropped": dict(self.pool.dropped)},
            "line": {
                "version": self.version + 1,
                "groups": {group.id: [member_of(member.id) for member in group.samples] for group in groups},
            },
        }  # fmt: skip

    def is_saved(self, state, names, ended):
        """A checkpoint is on the disk, perhaps beside the next step."""
        self.store.ended(map(group_id, [*ended, *self.pool.trained(names)]))
        return state


async def lives(directory, seed):
    """Steps with deaths between any two things that reach the disk; returns the last pool and the lines of steps."""
    draw, saved, lines = random.Random(seed), {}, []
    while len(lines) < 12:
        life, writing = Life(directory, saved, draw), None
        lines = lines[: saved.get("steps", 0)]  # the others are made again
        dies = draw.choice(["anywhere", "before the checkpoint", "while it is written", "after it", "not now"])
        while len(lines) < 12:
            await life.some_samples(draw.randint(0, 9))
            groups = life.pool.take(2, life.version, WHOLE)
            if dies == "anywhere":
                break
            if groups is None:
                continue
            state = life.state(groups)
            if dies == "before the checkpoint":
                break
            if writing:  # there is one at a time
                saved = life.is_saved(*writing)
            lines.append(state["line"])
            life.version += 1
            writing = state | {"steps": len(lines)}, [group.id for group in groups], life.pool.ended()
            if dies == "while it is written":
                break
            if dies == "after it":
                saved = writing[0]
                break
            if draw.random() < 0.5 or len(lines) == 12:
                saved, writing = life.is_saved(*writing), None
        life.ledger.close()
    return Life(directory, saved, draw), lines[: saved["steps"]]


@pytest.mark.parametrize("seed", one_of_each(0.5, range(8), lambda seed: seed > 0))
def test_no_sample_is_lost_or_trained_on_twice_however_often_a_run_dies(tmp_path, seed):
    last, lines = asyncio.run(lives(tmp_path, seed))
    last.pool.slots.end()
    found = account(last.pool, lines)
    assert (found["lost"], found["trained_twice"]) == (0, 0)
    assert found["samples"] == found["trained"] + sum(found["dropped"].values())
    assert found["trained"] == sum(len(members) for line in lines for members in line["groups"].values())
    assert last.stats.counters["rollouts"] >= found["trained"]
    assert found["trained"] > 20


def test_what_does_not_add_up_is_an_error(tmp_path):
    life = Life(tmp_path, {}, random.Random(0))
    pool = life.pool
    filled(pool, 0, [0, 1, 1])
    [group] = pool.take(1, 0, WHOLE)
    line = {"groups": {"g0": [0, 1, 2]}}
    pool.trained()
    assert account(pool, [line])["trained"] == 3
    wrong = partial(account, pool)
    for lines in ([line, line], [], [{"groups": {"g0": [0, 1]}}]):
        with pytest.raises(AccountingError, match="do not add up"):
            wrong(lines)
    assert group.id == "g0"


def test_scored_samples_of_open_and_ready_groups_are_there_in_the_next_life(tmp_path):
    life = Life(tmp_path, {}, random.Random(0))
    for slot, reward in (("g0/0", 0.0), ("g0/1", 1.0), ("g0/2", 1.0), ("g1/2", 1.0)):
        if slot.endswith("/0") or slot == "g1/2":
            drawn = life.tasks.draw()
            life.pool.start(drawn.index, drawn.task, drawn.rung, 0)
        asyncio.run(scored(life.store, slot, reward))
        life.pool.slots.move(slot, "starting")
        come_in(life.pool, slot, reward)
    life.ledger.close()
    again = Life(tmp_path, {}, random.Random(0))
    pool = again.pool
    assert [each.group.id for each in pool.ready] == ["g0"]
    assert sorted(pool.open["g1"].outstanding) == ["g1/0", "g1/1"]
    assert [slot.id for slot in pool.slots.within("queued")] == ["g1/0", "g1/1"]
    [group] = pool.take(1, 0, WHOLE)
    whole, wanted = again.store.trajectory(group.samples[1]), trajectory("g0/1", 1.0)
    assert whole.outcome == wanted.outcome and [event.kind for event in whole.events][-1] == "end"
    for name in ("token_ids", "sampled", "logprobs", "versions", "routed_experts"):
        ours, theirs = getattr(whole.segments[0], name), getattr(wanted.segments[0], name)
        assert (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist()), name
