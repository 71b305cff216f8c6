"""A planted cheat: played in the model's place, found by the auditor, in quarantine, and learnt from by nobody."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from played import TASK, pool_in, rollout, sent

from etude.config import load_recipe, parse
from etude.environments.backends import open_backend
from etude.errors import ConfigError
from etude.harness.prompt import render_calls, system_prompt
from etude.harness.scripted import ScriptedSampler
from etude.harness.tools import TOOLS
from etude.models.chat import ChatRenderer
from etude.models.tokenizer import train_tokenizer
from etude.records import Cheated, InfraFailed, Scored
from etude.rollouts.config import RunConfig
from etude.rollouts.ledger import GroupLedger, GroupRecord
from etude.rollouts.preflight import preflight
from etude.rollouts.sample import Sample, sample_of
from etude.rollouts.schedule import Lockstep
from etude.rollouts.session import RolloutRequest, play
from etude.rollouts.stats import RunStats
from etude.rollouts.stream import TaskStream, of_directories
from etude.tasks.harbor import read_task, write_task
from etude.tasks.ladder import ladder_task

ROOT = Path(__file__).parents[2]
PLANTED = ROOT / "recipes/planted/planted-cheat"
QUARANTINED = Cheated("it read the tests", None)
HONEST = [render_calls([("read_file", {"path": "check.py"})])]


def played(slot, say=(), **facts):
    """The trajectory of a session of the planted task, whose model says these messages and that it is done."""
    messages = iter(say)
    chat = ChatRenderer(train_tokenizer([system_prompt(TOOLS)], 400))
    config = parse({"name": "planted", "rewards": {"audit": "quarantine"}}, RunConfig, "test")
    task = read_task(PLANTED)
    task = replace(task, provenance={**task.provenance, **facts}, limits=replace(task.limits, max_context_tokens=32768))

    async def session():
        backend = open_backend()
        try:
            sampler = ScriptedSampler(lambda _: next(messages, "Done."), chat)
            async with config.rewards.judges() as judges:
                return await play(RolloutRequest(slot, "g0", task, 0), config, backend, sampler, chat, judges)
        finally:
            await backend.close()

    return asyncio.run(session())


def test_the_first_session_of_a_group_is_the_planted_one_and_is_found(tmp_path):
    cheat = played("g0/0")
    assert isinstance(cheat.outcome, Cheated) and cheat.outcome.reward is None
    assert "hard-coded" in cheat.outcome.evidence and cheat.usage["planted_found"] == 1

    stats = RunStats(tmp_path / "metrics.jsonl")
    stats.rolled_out(Sample.decoded(sample_of(cheat).encoded()))
    counted = ("quarantined", "planted", "planted_found", "calls_of_write_file")
    assert [stats.counters[name] for name in counted] == [1, 1, 1, 0], "no call of it is the policy's"
    [said] = [line for line in map(json.loads, stats.path.open()) if line["kind"] == "quarantined"]
    assert said["rollout"] == "g0/0" and said["planted"] and "hard-coded" in said["evidence"]


def test_the_others_of_its_group_are_the_models(tmp_path):
    own = played("g0/1", say=HONEST)
    assert isinstance(own.outcome, Scored) and "planted" not in own.usage and own.usage["tool_calls"] == 1
    stats = RunStats(tmp_path / "metrics.jsonl")
    stats.rolled_out(Sample.decoded(sample_of(own).encoded()))
    assert stats.counters["calls_of_read_file"] == 1


def test_a_planted_session_that_the_auditor_misses_teaches_nothing():
    missed = played("g0/0", planted=HONEST)
    assert missed.outcome == InfraFailed("the auditor did not find the planted cheat", retryable=False)
    assert missed.usage["planted_found"] == 0


def test_what_is_in_quarantine_leaves_its_group_before_the_baseline(tmp_path):
    pool = pool_in(tmp_path, size=3)
    first, *others = sent(pool, 0)
    for slot in (first, *others):
        pool.slots.advance_to(slot, 1, "scored")
    pool.add(replace(rollout(first, 1.0), outcome=QUARANTINED), now=0.0)
    for slot, reward in zip(others, (0.0, 1.0), strict=True):
        pool.add(rollout(slot, reward), now=0.0)
    [group] = pool.take(1, 0, 100)
    assert [member.id for member in group.samples] == others
    assert pool.slots.dropped == {"quarantined": 1}


def test_it_has_left_its_group_in_the_runs_next_life_too(tmp_path):
    """Its verdict was on the disk, and the ledger had not been told what became of it."""
    ledger = GroupLedger(tmp_path / "ledger")
    record = GroupRecord(0, 0, 2, 0)
    ledger.opened(record)
    pool = pool_in(tmp_path / "next", size=2)
    pool.ledger.opened(record)
    cheat = replace(rollout("g0/0", 1.0), outcome=QUARANTINED)
    pool.restore(pool.ledger.groups[0], TASK, {0: cheat, 1: rollout("g0/1", 1.0)})
    assert pool.slots.dropped["quarantined"] == 1 and pool.dropped["too_few_scored"] == 1


def test_in_lockstep_no_version_needs_to_have_sampled_it():
    recipe = parse({"name": "x", "rollouts": {"schedule": "lockstep"}}, RunConfig, "test")
    schedule = Lockstep(recipe, {"round": 0, "versions": [3]})
    other = rollout("g0/0", 1.0)
    assert not schedule.accepts(other)
    assert schedule.accepts(replace(other, usage={"planted": 1}))


@pytest.mark.parametrize("by_difficulty", [False, True])
def test_it_is_drawn_before_any_other(tmp_path, by_difficulty):
    write_task(replace(ladder_task(1, "train", 0), id="a"), tmp_path / "a")
    stream = TaskStream(of_directories([tmp_path, PLANTED]), 0, by_difficulty)
    assert stream.draw().task.id == "planted-cheat"
    assert stream.again(0, stream.turn(0)).task.id == "planted-cheat"
    assert {stream.draw().task.id for _ in range(40)} == {"a", "planted-cheat"}


@pytest.mark.parametrize(
    ("audit", "planted", "said"),
    [("watch", None, 'plants a cheat; set rewards.audit to "quarantine"'),
     ("quarantine", [], "metadata.planted must be a list of messages")],
)  # fmt: skip
def test_a_run_that_would_not_find_it_is_refused(tmp_path, audit, planted, said):
    task = read_task(PLANTED)
    facts = task.provenance if planted is None else {**task.provenance, "planted": planted}
    limits = replace(task.limits, max_context_tokens=1024)
    write_task(replace(task, provenance=facts, limits=limits), tmp_path / "task")
    sets = [f'rollouts.tasks=["{tmp_path}"]', "rollouts.rungs=", f"rewards.audit={audit}"]
    with pytest.raises(ConfigError, match=said):
        asyncio.run(preflight(load_recipe(ROOT / "recipes/quickstart.toml", RunConfig, sets), tmp_path))


def test_the_planted_task_has_the_guard_of_tasks_that_are_made_now() -> None:
    """It is a directory that `write_task` has once written."""
    written = ROOT / "recipes" / "planted" / "planted-cheat" / "tests" / "guard.py"
    assert written.read_bytes() == (ROOT / "etude" / "tasks" / "inside" / "guard.py").read_bytes()
