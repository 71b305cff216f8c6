"""Publishing beside the steps: what a step waits for, in which order versions appear, and who is told of a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from weight_samples import make_chain, move_bits, publisher_on, same

from etude.errors import ConfigError, DeadlineExceeded, EtudeError, WeightError
from etude.records import Version
from etude.weights import range_coder, rice
from etude.weights.background import PUBLISHED_S, BackgroundPublisher, Snapshot, publish_seconds
from etude.weights.chain import Chain
from etude.weights.delta import LARGE_COPY
from etude.weights.inspect import verify
from etude.weights.manifest import Bits, hash_of, root_of
from etude.weights.opening import open_store
from etude.weights.publisher import CHUNK_ELEMENTS, KEPT_SETS, Publisher, PublisherConfig
from etude.weights.shards import Shard
from etude.weights.store import Patience, Store
from etude.weights.subscriber import Subscriber

V = Version
CHAIN = make_chain(6)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it is closed, no write to a store goes on: one that has stopped answering for a while."""
    opened, write = threading.Event(), Store.put

    def put(*arguments: Any, **options: Any) -> bool:
        assert opened.wait(120), "the test to open the gate"
        return write(*arguments, **options)

    monkeypatch.setattr(Store, "put", put)
    yield opened
    opened.set()  # a test that failed must not leave a thread behind that writes nowhere


@contextmanager
def publishing(directory: Path, **config: Any) -> Iterator[BackgroundPublisher]:
    background = BackgroundPublisher(publisher_on(open_store(directory), **config))
    yield background
    background.close()


def copy_of(bits: Bits) -> Snapshot:
    """As a trainer copies its weights: into the arrays given."""

    def snapshot(into: Bits | None) -> Bits:
        into = into or {name: np.empty_like(array) for name, array in bits.items()}
        for name, array in bits.items():
            into[name][...] = array
        return into

    return snapshot


def test_a_step_waits_for_its_copy_and_for_nothing_else(tmp_path: Path, gate: threading.Event) -> None:
    with publishing(tmp_path) as background:
        weights = {name: array.copy() for name, array in CHAIN[0].items()}
        handed_over = [background.put(V(0), copy_of(weights))]
        for name, array in CHAIN[1].items():
            weights[name][...] = array  # the next step changes them while the last version is on its way
        handed_over.append(background.put(V(1), copy_of(weights)))
        assert [cost.stall_ms for cost in handed_over] == [0.0, 0.0]
        assert all(cost.snapshot_ms > 0 for cost in handed_over)
        assert background.visible is None
        assert background.publisher.chain.versions() == []
        gate.set()
        assert [background.published(V(n)).result.root for n in (1, 0)] == [root_of(CHAIN[1]), root_of(CHAIN[0])]
        assert background.published(V(1)).publish_ms > 0
        assert background.visible == 1
    assert same(Subscriber(open_store(tmp_path)).fetch(None, None, V(1))[0], CHAIN[1])
    assert background.counters == {"handed_over": 2}


def test_arrays_that_a_publisher_keeps_are_not_copied_and_come_back(tmp_path: Path) -> None:
    chain = CHAIN[:4]
    publisher = Publisher(open_store(tmp_path), merge_over=())
    handed = [{name: array.copy() for name, array in bits.items()} for bits in chain]
    for version, bits in enumerate(handed):
        publisher.publish(V(version), bits, keep=True)
        spare = publisher.spare(bits)
        assert spare is (handed[version - 1] if version else None)
    again = {name: array.copy() for name, array in chain[3].items()}
    assert publisher.publish(V(3), again, keep=True).kind == "existing"
    assert publisher.spare(again) is again
    read, _ = Subscriber(open_store(tmp_path)).fetch(None, None, V(3))
    assert same(read, chain[3])


def test_the_copies_of_many_versions_take_three_sets_of_arrays(tmp_path: Path) -> None:
    given: list[Bits | None] = []

    def snapshot(into: Bits | None) -> Bits:
        given.append(into)
        return copy_of(CHAIN[len(given) - 1])(into)

    with publishing(tmp_path, merge_over=()) as background:
        for version in range(len(CHAIN)):
            background.put(V(version), snapshot)
            background.put(V(version), snapshot)  # again: nothing is copied
            background.published(V(version))
    assert len(given) == len(CHAIN)
    assert len({id(into) for into in given if into is not None}) <= 3  # one of which is the version last published
    assert same(Subscriber(open_store(tmp_path)).fetch(None, None, V(5))[0], CHAIN[5])
    assert verify(open_store(tmp_path)).versions == len(CHAIN)


def test_as_many_sets_of_arrays_are_kept_as_a_dry_run_counts(tmp_path: Path, gate: threading.Event) -> None:
    """The last version, where two merged deltas start, a version at work and one that waits."""
    made: list[weakref.ref[Any]] = []

    def snapshot(into: Bits | None) -> Bits:
        bits = copy_of(CHAIN[len(made) % len(CHAIN)])(into)
        if into is None:
            made.append(weakref.ref(bits["embed"]))
        return bits

    def alive() -> int:
        return sum(each() is not None for each in made)

    gate.set()
    with publishing(tmp_path, merge_over=(2, 5)) as background:
        for version in range(14):
            background.put(V(version), snapshot)
            background.published(V(version))
            assert alive() <= KEPT_SETS
        gate.clear()
        background.put(V(14), snapshot)
        background.put(V(15), snapshot)
        assert alive() == KEPT_SETS
        gate.set()
        background.published(V(15))


def test_a_third_version_waits_for_room_and_says_so(tmp_path: Path, gate: threading.Event) -> None:
    with publishing(tmp_path) as background:
        for version in (0, 1):
            background.put(V(version), copy_of(CHAIN[version]))

        def open_gate() -> None:
            while not background.counters["stalled"]:
                time.sleep(0.01)
            gate.set()

        threading.Thread(target=open_gate, daemon=True).start()
        assert background.put(V(2), copy_of(CHAIN[2])).stall_ms > 0
        background.published(V(2))
        assert background.publisher.chain.versions() == [0, 1, 2]
        assert background.counters["stalled"] == 1


def test_a_wait_for_a_store_that_does_not_answer_ends(tmp_path: Path, gate: threading.Event) -> None:
    background = BackgroundPublisher(Publisher(open_store(tmp_path)), deadline_s=0.1)
    for version in (0, 1):
        background.put(V(version), copy_of(CHAIN[version]))
    with pytest.raises(DeadlineExceeded, match=r"room to publish version 2: .*publisher\.when_behind"):
        background.put(V(2), copy_of(CHAIN[2]))
    with pytest.raises(DeadlineExceeded, match="version 0 to be in"):
        background.published(V(0))
    with pytest.raises(DeadlineExceeded, match="the last versions"):
        background.close()
    gate.set()
    while background.visible != 1:  # what was handed over is still published
        time.sleep(0.01)


def test_a_later_version_takes_the_place_of_one_that_waits(tmp_path: Path, gate: threading.Event) -> None:
    with publishing(tmp_path, when_behind="replace") as background:
        stalls = [background.put(V(version), copy_of(CHAIN[version])).stall_ms for version in range(5)]
        assert stalls == [0.0] * 5
        assert background.counters == {"handed_over": 5, "replaced": 3}
        gate.set()
        told = background.published(V(1)).result
        assert (told.version, told.root) == (4, root_of(CHAIN[4]))
        assert background.publisher.chain.versions() == [0, 4]
    subscriber = Subscriber(open_store(tmp_path))
    assert same(subscriber.fetch(CHAIN[0], V(0), V(4))[0], CHAIN[4])


def test_a_failed_publish_is_told_to_all_and_can_be_made_again(tmp_path: Path) -> None:
    (tmp_path / "versions").write_text("in the way")
    store = open_store(tmp_path, patience=Patience(0.2))
    background = BackgroundPublisher(Publisher(store), deadline_s=1.0)
    background.put(V(0), copy_of(CHAIN[0]))
    for call in (lambda: background.published(V(0)), lambda: background.put(V(1), copy_of(CHAIN[1]))):
        with pytest.raises(EtudeError, match="versions/"):
            call()
    (tmp_path / "versions").unlink()
    with publishing(tmp_path) as again:
        assert again.resume(V(0)) == []
        again.put(V(0), copy_of(CHAIN[0]))
        assert again.published(V(0)).result.root == root_of(CHAIN[0])


def test_a_store_that_is_away_for_longer_than_a_request_bears_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "versions").write_text("in the way")
    background = BackgroundPublisher(Publisher(open_store(tmp_path, patience=Patience(0.1))))
    background.put(V(0), copy_of(CHAIN[0]))
    deadline = time.monotonic() + 60
    while background.counters["asked_again"] < 3:
        assert time.monotonic() < deadline, "three requests that ran out of time"
        time.sleep(0.01)
    (tmp_path / "versions").unlink()
    assert background.published(V(0)).result.root == root_of(CHAIN[0])
    background.close()


def test_ranks_publish_together_in_the_background(tmp_path: Path) -> None:
    attempt, names = "0" * 32, sorted(CHAIN[0])
    shares = [frozenset(names[rank::2]) for rank in range(2)]

    def rank(number: int, **config: Any) -> BackgroundPublisher:
        shard = Shard(number, 2, attempt, shares[number])
        return BackgroundPublisher(Publisher(open_store(tmp_path), PublisherConfig(**config), shard=shard))

    ranks = [rank(0), rank(1)]
    for version in range(3):
        for number, background in enumerate(ranks):  # one after the other: neither waits for the other one's part
            own = {name: CHAIN[version][name] for name in shares[number]}
            assert background.put(V(version), copy_of(own)).stall_ms == 0.0
        for background in ranks:
            background.published(V(version))
    for background in ranks:
        background.close()
    bits, fetched = Subscriber(open_store(tmp_path)).fetch(None, None, V(2))
    assert same(bits, CHAIN[2])
    assert fetched.root == root_of(CHAIN[2])
    with pytest.raises(ConfigError, match=r"publisher\.when_behind"):
        rank(0, when_behind="replace")


# --- a run that goes on -----------------------------------------------------------------------------------------------


VICTIM = """
import os, sys, time
from weight_samples import make_chain
from etude.weights.background import BackgroundPublisher
from etude.weights.publisher import Publisher
from etude.weights.opening import open_store
from etude.weights.store import Store

chain, write, allowed = make_chain(6), Store.put, int(sys.argv[2])
def put(*arguments, **options):
    global allowed
    if allowed == 0:
        os.write(1, b"stuck")
        time.sleep(600)
    allowed -= 1
    return write(*arguments, **options)

Store.put = put
background = BackgroundPublisher(Publisher(open_store(sys.argv[1])))
background.put(3, lambda into: chain[3])
time.sleep(600)
"""


@pytest.mark.parametrize("written", [0, 1])
def test_killed_before_a_version_was_visible_the_same_is_published_again(tmp_path: Path, written: int) -> None:
    """Killed before the pack was written, and between pack and manifest."""
    with publishing(tmp_path / "never") as whole:
        for version in range(3):
            whole.put(V(version), copy_of(CHAIN[version]))
            whole.published(V(version))
        shutil.copytree(tmp_path / "never", tmp_path / "killed")
        whole.put(V(3), copy_of(CHAIN[3]))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", VICTIM, str(tmp_path / "killed"), str(written)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.read(5) == b"stuck"
        victim.kill()
    with publishing(tmp_path / "killed") as resumed:
        assert [result.version for result in resumed.resume(V(3), V(2), counted=V(1))] == [2]
        resumed.put(V(3), copy_of(CHAIN[3]))
        again = resumed.published(V(3)).result
    assert (again.root, again.kind) == (root_of(CHAIN[3]), "delta")
    assert contents(tmp_path / "killed") == contents(tmp_path / "never")


def contents(directory: Path) -> dict[str, object]:
    """Packs as they are, manifests but for when they were written."""
    chain = Publisher(open_store(directory)).chain
    found: dict[str, object] = {path.name: path.read_bytes() for path in directory.rglob("*.pack")}
    return found | {str(version): chain.manifest(version).model_dump(exclude={"time"}) for version in chain.versions()}


def test_resuming_an_older_checkpoint_takes_back_what_came_after(tmp_path: Path) -> None:
    with publishing(tmp_path) as first:
        for version in (0, 1, 2, 5):
            first.put(V(version), copy_of(CHAIN[version]))
            first.published(V(version))
    with publishing(tmp_path) as second:
        told = second.resume(V(3), V(2), counted=V(0))
        assert [(result.version, result.root) for result in told] == [(n, root_of(CHAIN[n])) for n in (1, 2)]
        other = move_bits(CHAIN[2], 99)
        second.put(V(3), copy_of(other))
        assert second.published(V(3)).result.root == root_of(other)
        assert second.publisher.chain.versions() == [0, 1, 2, 3]
    lost = pytest.raises(WeightError, match=r"ends with version 3, and 4 was there .*: restore the store")
    with publishing(tmp_path) as third, lost:
        third.resume(V(5), V(4))
    with publishing(tmp_path / "emptied") as fourth:
        assert fourth.resume(V(5), V(4)) == []
    assert verify(open_store(tmp_path)).ok


# --- beside a step ----------------------------------------------------------------------------------------------------


def lets_others_run(call: Callable[[], Any], for_s: float = 30.0) -> bool:
    """Whether the interpreter's lock is given up during a call, made again and again until another thread has run.
    Nothing else makes the calling thread give it up: it would have to run for longer than the switch interval.
    """
    begun, ran, met = threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        end = time.monotonic() + for_s
        while not ran.is_set() and time.monotonic() < end:
            call()
        met.append(ran.is_set())

    thread, interval = threading.Thread(target=work), sys.getswitchinterval()
    sys.setswitchinterval(600)
    try:
        thread.start()
        begun.wait()
        ran.set()
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    return met == [True]


def test_what_publishing_computes_leaves_the_interpreter_to_the_step(tmp_path: Path) -> None:
    old = np.random.default_rng(0).integers(0, 1 << 16, 1 << 20).astype(np.uint16)
    new = old ^ (np.random.default_rng(1).random(old.size) < 0.02).astype(np.uint16)
    store, data = open_store(tmp_path), new.tobytes()
    assert not lets_others_run(lambda: sum(range(1 << 20)), for_s=0.5)
    for call in (
        lambda: rice.encode(new, old, 1 << 30),
        lambda: range_coder.encode(new, old, 1 << 30),
        lambda: zstandard.ZstdCompressor().compress(data),
        lambda: hash_of(new),
        lambda: store.put("object", data),
    ):
        call()  # what is compiled or loaded at first use is not what is asked about
        assert lets_others_run(call)


def test_a_large_model_begins_with_a_copy_that_is_soon_made(tmp_path: Path) -> None:
    """A full copy has nothing to gain from the codecs that tell a version from its parent, which are slow."""
    weights = np.random.default_rng(0).normal(0, 0.02, (LARGE_COPY >> 1) + CHUNK_ELEMENTS).astype(np.float32)
    large = {"weight": (weights.view(np.uint32) >> 16).astype(np.uint16)}
    small = {"weight": large["weight"][: 2 * CHUNK_ELEMENTS]}
    for place, bits, codec in (("small", small, "whole"), ("large", large, "xor_zstd")):
        store = open_store(tmp_path / place)
        result = publisher_on(store).publish(V(0), bits)
        assert {chunk.codec for tensor in Chain(store).manifest(V(0)).tensors for chunk in tensor.chunks} == {codec}
        assert result.changed_share > 0.99 and result.payload_bytes < 0.72 * result.raw_bytes
        assert same(Subscriber(store).fetch(None, None, V(0))[0], bits)


def test_the_patience_for_a_version_grows_with_its_bytes(tmp_path: Path) -> None:
    assert publish_seconds(0) == PUBLISHED_S and publish_seconds(60_000_000_000) > PUBLISHED_S + 3600
    with publishing(tmp_path) as background:
        before, bits = background.deadline_s, {"weight": np.arange(1 << 20, dtype=np.uint16)}
        background.put(V(0), copy_of(bits))
        assert background.deadline_s == pytest.approx(before * publish_seconds(1 << 21) / PUBLISHED_S)
        background.published(V(0))
