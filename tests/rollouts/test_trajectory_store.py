"""Rollouts killed with -9 go on in another process, and come to what the undisturbed one came to, token for token."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import pickle
import random
import time
from multiprocessing import forkserver
from pathlib import Path

import killed_rollout
import numpy as np
import pytest
from played import TASK, trajectory

from etude.environments.archive import Archive
from etude.errors import CheckpointError
from etude.harness.events import read_events
from etude.records import InfraFailed
from etude.rewards.audit.state import workspace_of
from etude.rollouts.session import RolloutRequest, SealedRollout
from etude.rollouts.trajectory_store import TrajectoryStore

SETTINGS = {
    "every turn": {},
    "by age": {"checkpoint_s": 0.02},
    "summaries": {"harness": {"summary": {"trigger_tokens": 640, "max_tokens": 200}}},
}


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed_rollout"])
    with pytest.MonkeyPatch.context() as patch:
        here = Path(__file__).parent
        patch.setenv("PYTHONPATH", os.pathsep.join([str(here), str(here.parents[1])]))
        forkserver.ensure_running()
    return context


def nothing(order, event):
    del order, event


def undisturbed(settings):
    return asyncio.run(killed_rollout.rollout(None, settings, 0, nothing))


def live(processes, kept, settings, version, die_after):
    """One life; whether it came to the end."""
    process = processes.Process(target=killed_rollout.main, args=(kept, settings, version, die_after))
    process.start()
    process.join(60)
    assert process.exitcode in (0, -9), "the rollout failed by itself"
    return process.exitcode == 0


def sealed_in(kept) -> SealedRollout:
    """As the next worker that is ordered to play it finds it."""
    return asyncio.run(killed_rollout.rollout(kept, {}, 99, nothing))


@pytest.mark.timeout(180)
@pytest.mark.proof(13)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_killed_rollout_goes_on_and_is_the_same(tmp_path, processes, settings):
    seed = time.time_ns()
    drawn, lives = random.Random(seed), 0
    print(f"seed {seed}")
    least = 36 if "checkpoint_s" in settings else 12  # so that every life gets a turn further
    while not live(processes, tmp_path, settings, lives, drawn.randint(3, least + 8) + lives // 2):
        lives += 1
        assert lives < 60, "the rollout does not get on"
    whole, ended = undisturbed(settings), sealed_in(tmp_path)
    assert lives >= 2 and ended.sealed is not None
    assert len(ended.trajectory.segments) == len(whole.trajectory.segments) >= (3 if "harness" in settings else 1)
    for ours, theirs in zip(ended.trajectory.segments, whole.trajectory.segments, strict=True):
        assert ours.kind == theirs.kind
        for name in ("token_ids", "sampled", "logprobs", "routed_experts"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
        versions = ours.versions[ours.sampled]
        assert (np.diff(versions) >= 0).all() and versions.max() <= lives, "a token has the version it was sampled by"
    assert workspace_of(ended.sealed.final) == workspace_of(whole.sealed.final)
    told = {key: ended.trajectory.usage[key] for key in whole.trajectory.usage}
    assert told == whole.trajectory.usage and ended.trajectory.usage["taken_up"] == 1
    assert len({int(v) for s in ended.trajectory.segments for v in s.versions[s.sampled]}) >= 2, "nothing was kept"


def test_what_is_sealed_is_not_played_again(tmp_path, processes):
    assert live(processes, tmp_path, {}, 0, 10**6)
    before = sealed_in(tmp_path)
    heard = []
    again = asyncio.run(killed_rollout.rollout(tmp_path, {}, 1, lambda order, event: heard.append(event)))
    assert heard == [] and again.trajectory.events == before.trajectory.events
    store = TrajectoryStore(tmp_path)
    assert store.slots() == ["g7/2"]
    store.remove("g7/1")
    assert store.slots() == ["g7/2"]
    store.remove("g7/2")
    assert store.slots() == [] and list(tmp_path.iterdir()) == []


class Clock:
    """In the place of `time`: it goes when it is told to."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_files_are_taken_where_the_last_are_old_enough(tmp_path, monkeypatch):
    clock, told = Clock(), []
    monkeypatch.setattr("etude.harness.events.time", clock)

    def goes_on(order, event):
        told.append(event)
        clock.now += 4.0 * (event.kind == "completion")

    ended = asyncio.run(killed_rollout.rollout(tmp_path, {"checkpoint_s": 10.0}, 0, goes_on))
    of_turns = [event for event in told if event.kind == "checkpoint" and event.data["of"] == "turn"]
    first = {event.data["snapshot"]: event.at for event in reversed(of_turns) if event.data["snapshot"] != "given"}
    taken = sorted(first.values())
    assert len(taken) == ended.trajectory.usage["checkpoints"] >= 2
    assert all(10.0 <= later - before <= 16.0 for before, later in itertools.pairwise(taken))


def test_what_was_played_since_the_last_checkpoint_is_played_again(tmp_path, processes):
    """And where there is none yet, all of it: nothing of the life that ended stays."""
    settings = {"checkpoint_s": 1e6}
    assert not live(processes, tmp_path, settings, 0, 40)
    assert not list((tmp_path / "g7" / "2").glob("*.files"))
    assert live(processes, tmp_path, settings, 1, 10**6)
    ended, whole = sealed_in(tmp_path), undisturbed({})
    ours, theirs = ended.trajectory.segments[0], whole.trajectory.segments[0]
    assert np.array_equal(ours.token_ids, theirs.token_ids) and np.array_equal(ours.logprobs, theirs.logprobs)
    assert workspace_of(ended.sealed.final) == workspace_of(whole.sealed.final)
    given = ended.trajectory.usage.get("turns_taken_up", 0)
    assert given < ended.trajectory.usage["turns"] and ended.trajectory.usage["checkpoints"] == 0


def test_a_checkpoint_that_is_not_whole_is_passed_over(tmp_path, processes):
    """Its files or routes may be missing after the power was cut: the one before it is taken, or none."""
    assert not live(processes, tmp_path, {}, 0, 70)
    slot = tmp_path / "g7" / "2"
    turns = [e.data["turn"] for e in read_events(slot / "events.jsonl") if e.kind == "checkpoint" and e.data["turn"]]
    assert len(turns) >= 3
    with asyncio.run(TrajectoryStore(tmp_path).claim("g7/2")) as trajectory:
        up = trajectory.take_up()
        assert up is not None and up.turn == turns[-1]
        trajectory.routes.cut(trajectory.routes.length - 1)
        up = trajectory.take_up()
        assert up is not None and up.turn < turns[-1]
        for files in slot.glob("*.files"):
            files.unlink()
        up = trajectory.take_up()
        assert up is None or up.start is None
        trajectory.routes.cut(0)
        assert trajectory.take_up() is None and trajectory.journal.path.stat().st_size == 0
    whole = asyncio.run(killed_rollout.rollout(tmp_path, {}, 1, nothing))
    assert np.array_equal(whole.trajectory.segments[0].token_ids, undisturbed({}).trajectory.segments[0].token_ids)


def test_a_slot_belongs_to_one_process_and_has_a_slots_name(tmp_path, monkeypatch):
    monkeypatch.setattr("etude.rollouts.trajectory_store.CLAIM_S", 0.1)

    async def twice():
        store = TrajectoryStore(tmp_path)
        with await store.claim("g1/0"):
            result = await killed_rollout.rollout(tmp_path, {}, 0, nothing)  # another slot: it is played
            assert result.sealed is not None
            with pytest.raises(Exception, match="another process to let go of g1/0"):
                await store.claim("g1/0")
        (await store.claim("g1/0")).__exit__()
        for name in ("g1", "../x/y", "g1/..", "g1/"):
            with pytest.raises(CheckpointError, match="no slot's id"):
                await store.claim(name)

    asyncio.run(twice())


def test_archives_survive_being_written(tmp_path):
    archive = Archive(("/workspace", "/tmp"), (("/workspace", b"tar\n\0"), ("/tmp", b""), ("/workspace/x", b"more")))
    assert Archive.decoded(archive.encoded()) == archive
    with pytest.raises(ValueError, match="an archive of 9 bytes has 8"):
        Archive.decoded(archive.encoded()[:-1])


def test_a_full_disk_fails_the_attempt_and_names_what_to_do(tmp_path):
    (tmp_path / "g7").write_text("a file stands where the slot's directory must go")
    result = asyncio.run(killed_rollout.rollout(tmp_path, {}, 0, nothing))
    assert result.sealed is None and isinstance(result.trajectory.outcome, InfraFailed)


def test_what_an_older_version_has_sealed_is_read():
    """There a request was an `Order`, and stood under `order`."""
    rollout = SealedRollout(RolloutRequest("g0/0", "g0", TASK, 1), trajectory("g0/0", 1.0), None)
    stored = pickle.dumps(rollout, 0)
    older = stored.replace(b"RolloutRequest", b"Order").replace(b"Vrequest\n", b"Vorder\n")
    assert older != stored
    found = pickle.loads(older)
    assert (found.request, found.trajectory.outcome) == (rollout.request, rollout.trajectory.outcome)
