"""What retention leaves: the newest versions, what is pinned or in use, and short ways to them; and going back."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from weight_samples import make_bits, make_chain, publisher_on, same

from etude.cli.main import main
from etude.errors import DeadlineExceeded, WeightError
from etude.records import Version
from etude.weights.chain import Chain, merged_parent
from etude.weights.inspect import log, verify
from etude.weights.manifest import Bits, root_of
from etude.weights.opening import open_store
from etude.weights.pins import NotHeld, Pins
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.retention import Retention
from etude.weights.signing import make_keys
from etude.weights.subscriber import Subscriber, SubscriberConfig

V = Version
LONG = make_chain(70)


def open_publisher(directory: Path, **config: Any) -> Publisher:
    return publisher_on(open_store(directory), **config)


def publish(publisher: Publisher, versions: range) -> None:
    for version in versions:
        publisher.publish(V(version), LONG[version])


def pins_of(directory: Path) -> Pins:
    return Pins(Chain(open_store(directory)))


def fetched(directory: Path, version: int) -> Bits:
    return Subscriber(open_store(directory)).fetch(None, None, V(version))[0]


# --- thinning ---------------------------------------------------------------------------------------------------------


def test_old_single_deltas_give_way_to_merged_ones(tmp_path: Path) -> None:
    publisher = open_publisher(tmp_path, keep=4, merge_over=(4, 16), merge="always", anchor_every=1000)
    publish(publisher, range(67))
    listing = Chain(open_store(tmp_path)).listing()
    old = {version: names for version, names in listing.items() if version < 61}
    assert {version: [name for name in names if merged_parent(name) is not None] for version, names in old.items()} == {
        0: [], 16: ["from-00000000"], 32: ["from-00000016"], 48: ["from-00000032"], 52: ["from-00000048"],
        56: ["from-00000052"], 60: ["from-00000056"],
    }  # fmt: skip
    assert all(len(names) == 2 for names in old.values())  # a manifest and its pack, and nothing else
    assert publisher.counters["deleted_versions"] == 60  # all below 61 but the first, a full copy
    assert verify(open_store(tmp_path)).ok
    for version in (61, 64, 66):
        bits, result = Subscriber(open_store(tmp_path)).fetch(LONG[0], V(0), V(version))
        assert same(bits, LONG[version])
        assert result.path[:2] == (16, 32)
        assert same(fetched(tmp_path, version), LONG[version])
    with pytest.raises(WeightError, match="version 16 is not whole"):
        fetched(tmp_path, 16)
    assert [line.version for line in log(open_store(tmp_path))] == [0, *range(61, 67)]


def test_anchors_take_the_place_of_what_is_before_them(tmp_path: Path) -> None:
    publisher = open_publisher(tmp_path, keep=4, merge_over=(4,), merge="always", anchor_every=20)
    publish(publisher, range(70))
    listing = Chain(open_store(tmp_path)).listing()
    assert min(listing) == 60
    assert "anchor" in listing[V(60)]
    assert "manifest" not in listing[V(60)]
    assert verify(open_store(tmp_path)).ok
    payloads = sum(size for names in listing.values() for name, size in names.items() if name.endswith(".pack"))
    assert payloads < 2.5 * sum(2 * array.size for array in LONG[0].values())


def test_a_store_of_another_layout_on_s3(s3: Any) -> None:
    publisher = Publisher(s3.store(), PublisherConfig(keep=2, merge="always"), merge_over=(3,), anchor_every=5)
    publish(publisher, range(13))
    assert publisher.counters["deleted_versions"] >= 8
    assert verify(s3.store()).ok
    assert same(Subscriber(s3.store()).fetch(None, None, V(12))[0], LONG[12])


def test_a_damaged_chain_is_left_as_it_is(tmp_path: Path) -> None:
    publisher = open_publisher(tmp_path, keep=2, merge_over=(), anchor_every=4)
    publish(publisher, range(4))
    (tmp_path / "versions/00000003/manifest").write_bytes(b"torn")
    again = open_publisher(tmp_path, keep=2, merge_over=(), anchor_every=4)
    with pytest.raises(WeightError, match=r"zstd frame|damaged"):
        again.resume()
    publisher._retention.forget()
    publish(publisher, range(4, 6))
    assert (publisher.counters["unswept"], publisher.counters["deleted_versions"]) == (1, 0)
    assert len(list((tmp_path / "versions").iterdir())) == 6


# --- pins and leases --------------------------------------------------------------------------------------------------


def test_a_pinned_version_outlives_everything_around_it(tmp_path: Path) -> None:
    publisher = open_publisher(tmp_path, keep=3, merge_over=(4,), merge="always", anchor_every=8)
    publish(publisher, range(8))
    pins_of(tmp_path).set(V(6), "ab-1", "the better half")
    for version in range(8, 60):
        publish(publisher, range(version, version + 1))
        assert same(fetched(tmp_path, 6), LONG[6])
    assert verify(open_store(tmp_path)).ok
    [line] = [line for line in log(open_store(tmp_path)) if line.version == 6]
    assert line.pins == ("ab-1",)
    bits, _ = Subscriber(open_store(tmp_path)).fetch(LONG[6], V(6), V(59))
    assert same(bits, LONG[59])
    pins_of(tmp_path).remove(V(6), "ab-1")
    publish(publisher, range(60, 70))
    with pytest.raises(WeightError, match="version 6 is not whole"):
        fetched(tmp_path, 6)
    assert verify(open_store(tmp_path)).ok


def test_a_reader_with_a_lease_may_fall_behind(tmp_path: Path) -> None:
    publisher = open_publisher(tmp_path, keep=2, merge_over=(4, 16), merge="always", anchor_every=1000)
    publish(publisher, range(8))
    store = open_store(tmp_path)
    leased, plain = Subscriber(store, SubscriberConfig(lease_s=3600)), Subscriber(store)
    plain.fetch(None, None, V(7))
    publish(publisher, range(8, 11))
    leased.fetch(None, None, V(10))
    publish(publisher, range(11, 40))
    bits, result = plain.fetch(LONG[7], V(7), V(39))
    assert same(bits, LONG[39])
    assert result.from_anchor
    bits, result = leased.fetch(LONG[10], V(10), V(39))
    assert same(bits, LONG[39])
    assert not result.from_anchor
    assert (leased.counters["leases"], plain.counters["leases"]) == (2, 0)
    assert [(pin.version, pin.why, pin.is_lease) for pin in Pins(leased.chain).live()] == [(39, "in use", True)]
    publisher.rewind(V(38))  # a lease stands in nobody's way
    assert verify(store).ok


def test_a_lease_runs_out(tmp_path: Path) -> None:
    publisher = open_publisher(tmp_path, keep=1, merge_over=(), anchor_every=1)
    publish(publisher, range(2))
    pins = pins_of(tmp_path)
    pins.set(V(1), "lease-x", for_s=3600)
    publish(publisher, range(2, 3))
    assert same(fetched(tmp_path, 1), LONG[1])
    pins.set(V(1), "lease-x", for_s=-1)
    assert pins.live() == []
    publish(publisher, range(3, 4))
    with pytest.raises(WeightError, match="version 1 is not whole"):
        fetched(tmp_path, 1)


def test_what_cannot_be_pinned(tmp_path: Path) -> None:
    publisher = open_publisher(tmp_path, keep=1, merge_over=(), anchor_every=2)
    publish(publisher, range(3))
    pins = pins_of(tmp_path)
    with pytest.raises(NotHeld, match="has no version 1"):
        pins.set(V(1), "late")
    with pytest.raises(WeightError, match="letters, digits"):
        pins.set(V(2), "../manifest")
    assert pins.live() == []


def test_an_unreadable_pin_holds(tmp_path: Path) -> None:
    publisher = open_publisher(tmp_path, keep=1, merge_over=(), anchor_every=1)
    publish(publisher, range(2))
    pins_of(tmp_path).set(V(1), "torn", for_s=0.001)
    (tmp_path / "pins/00000001/torn").write_bytes(b"{")
    publish(publisher, range(2, 5))
    assert same(fetched(tmp_path, 1), LONG[1])
    assert verify(open_store(tmp_path)).ok


def test_whoever_pins_what_is_marked_waits_and_is_told(tmp_path: Path) -> None:
    publish(open_publisher(tmp_path, merge_over=()), range(4))
    chain, pins = Chain(open_store(tmp_path)), pins_of(tmp_path)
    chain.mark(V(1))  # left by a publisher that was killed
    with pytest.raises(DeadlineExceeded, match=r"retention to be done beside version 2.*after the next version"):
        pins.set(V(2), "a", wait_s=0.2)
    assert pins.live() == []
    assert pins.set(V(0), "a").version == 0  # the way to it leads over nothing that is marked
    later = threading.Timer(0.2, chain.unmark, (V(1),))
    later.start()
    assert pins.set(V(2), "a", wait_s=20).version == 2
    later.join()


def test_a_pin_set_while_retention_is_at_work(tmp_path: Path) -> None:
    """Written after the first look at the pins and before the second: retention gives way, and the pin holds."""
    publisher = open_publisher(tmp_path, merge_over=(), anchor_every=3)
    unrelated = [
        make_bits(seed) for seed in range(7)
    ]  # a delta is as large as a copy, and none worth keeping for a pin
    for version, bits in enumerate(unrelated):
        publisher.publish(V(version), bits)
    chain = Chain(open_store(tmp_path))
    retention, mark, setting = Retention(chain, keep=1), chain.mark, []

    def mark_and_be_overtaken(version: Version) -> None:
        mark(version)
        if not setting:
            setting.append(threading.Thread(target=pins_of(tmp_path).set, args=(V(2), "just-now")))
            setting[0].start()
            while not pins_of(tmp_path).live():
                time.sleep(0.005)

    chain.mark = mark_and_be_overtaken  # ty: ignore[invalid-assignment]
    assert retention.sweep().versions == 3  # 3, 4 and 5; the ways to 2 and 6 are left
    setting[0].join(120)
    assert [pin.name for pin in pins_of(tmp_path).live()] == ["just-now"]
    assert same(fetched(tmp_path, 2), unrelated[2])
    assert not any("going" in names for names in chain.listing().values())


def test_pins_against_retention_at_random(tmp_path: Path) -> None:
    """While a publisher deletes, a version whose pin was granted stays fetchable until it is let go."""
    publisher = open_publisher(tmp_path, keep=2, merge_over=(3,), merge="always", anchor_every=5)
    publish(publisher, range(2))
    done, problems, granted = threading.Event(), [], []

    def hold(seed: int) -> None:
        rng, pins, name = random.Random(seed), pins_of(tmp_path), f"holder-{seed}"
        while not done.is_set():
            version = rng.choice(Chain(open_store(tmp_path)).versions())
            try:
                pins.set(version, name, wait_s=5)
            except (NotHeld, DeadlineExceeded):
                continue
            granted.append(version)
            for _ in range(3):
                try:
                    if not same(fetched(tmp_path, version), LONG[version]):
                        problems.append(f"version {version} differs")
                except WeightError as error:
                    problems.append(str(error))
            pins.remove(version, name)

    holders = [threading.Thread(target=hold, args=(seed,)) for seed in range(3)]
    for holder in holders:
        holder.start()
    publish(publisher, range(2, 60))
    done.set()
    for holder in holders:
        holder.join(60)
    assert problems == []
    assert len(set(granted)) > 5
    assert publisher.counters["deleted_versions"] > 20
    assert verify(open_store(tmp_path)).ok


# --- going back -------------------------------------------------------------------------------------------------------


def test_rollback(tmp_path: Path) -> None:
    publisher = open_publisher(tmp_path)
    publish(publisher, range(5))
    for wrong in (4, 9):
        with pytest.raises(WeightError, match=f"cannot go back to version {wrong}: of older ones it has 0, 1, 2, 3"):
            publisher.rollback(V(wrong))
    result = publisher.rollback(V(1))
    assert (result.version, result.root, result.kind) == (5, root_of(LONG[1]), "delta")
    subscriber = Subscriber(open_store(tmp_path))
    assert subscriber.latest() == 5
    bits, way = subscriber.fetch(LONG[4], V(4), V(5))
    assert same(bits, LONG[1])
    assert (way.path, way.from_anchor) == ((5,), False)
    assert publisher.publish(V(6), LONG[6]).kind == "delta"
    assert verify(open_store(tmp_path)).ok


def test_a_trainer_is_told_of_a_rollback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = open_publisher(tmp_path)
    publish(running, range(4))
    store = str(tmp_path)
    assert main(["weights", "rollback", store, "--version", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["version"], report["to"], report["root"]) == (4, 2, root_of(LONG[2]))
    with pytest.raises(WeightError, match="or the store was rolled back"):
        running.publish(V(4), LONG[4])
    restarted = open_publisher(tmp_path)
    with pytest.raises(WeightError, match=r"version 4 is pinned \(rollback\).*etude weights unpin"):
        restarted.rewind(V(3))
    assert main(["weights", "rewind", store, "--version", "3"]) == 1
    assert "pinned (rollback)" in capsys.readouterr().err
    assert main(["weights", "unpin", store, "--version", "4", "--name", "rollback"]) == 0
    assert main(["weights", "rewind", store, "--version", "3"]) == 0
    assert restarted.publish(V(4), LONG[4]).kind == "delta"
    assert same(fetched(tmp_path, 4), LONG[4])


def test_rollback_of_a_signed_chain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "run.key"
    public = make_keys(key)
    publish(open_publisher(tmp_path / "store", signing_key=key), range(3))
    command = ["weights", "rollback", str(tmp_path / "store"), "--version", "0"]
    assert main(command) == 1
    assert "is signed by key" in capsys.readouterr().err
    assert main([*command, "--key", str(key)]) == 0
    trusting = Subscriber(open_store(tmp_path / "store"), SubscriberConfig(trusted_keys=(public,)))
    assert same(trusting.fetch(LONG[2], V(2), V(3))[0], LONG[0])


def test_a_publisher_whose_base_was_taken_away(tmp_path: Path) -> None:
    publisher = open_publisher(tmp_path)
    publish(publisher, range(4))
    open_publisher(tmp_path).rewind(V(1))
    with pytest.raises(WeightError, match="version 3, which this publisher goes on from, is not there any more"):
        publisher.publish(V(4), LONG[4])
    assert Subscriber(open_store(tmp_path)).latest() == 1
    assert publisher.publish(V(2), LONG[2]).kind == "delta"
    assert verify(open_store(tmp_path)).ok


def test_pins_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(open_publisher(tmp_path), range(3))
    store = str(tmp_path)
    assert main(["weights", "pins", store]) == 0
    assert capsys.readouterr().out == "nothing is pinned\n"
    assert (
        main(["weights", "pin", store, "--version", "1", "--name", "ab", "--hours", "2", "--why", "test", "--json"])
        == 0
    )
    pin = json.loads(capsys.readouterr().out)
    assert 7000 < pin["until"] - time.time() <= 7200
    assert main(["weights", "pins", store, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [pin]
    assert main(["weights", "pins", store]) == 0
    assert "1        ab" in capsys.readouterr().out
    assert main(["weights", "log", store]) == 0
    assert capsys.readouterr().out.splitlines()[2].endswith("ab")
    assert main(["weights", "pin", store, "--version", "7", "--name", "ab"]) == 1
    assert "has no version 7" in capsys.readouterr().err
    (tmp_path / "pins/00000009").mkdir()
    (tmp_path / "pins/00000009/ab").write_text('{"until": null, "why": ""}')
    assert main(["weights", "verify", store]) == 1
    assert "version 9 is pinned (ab) and not there" in capsys.readouterr().out
