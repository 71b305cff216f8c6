"""Publisher and subscriber over a directory: every way to a version, every way it can be wrong."""

from __future__ import annotations

import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from proofs import one_of_each
from weight_samples import make_bits, make_chain, move_bits, publisher_on, same

from etude.errors import DeadlineExceeded, WeightError
from etude.records import Version
from etude.weights.chain import Chain
from etude.weights.delta import Held, make_delta
from etude.weights.inspect import verify
from etude.weights.manifest import Bits, root_of
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.subscriber import Subscriber, SubscriberConfig

V = Version


def publish(directory: Path, chain: list[Bits], **config: Any) -> Publisher:
    publisher = publisher_on(open_store(directory), **config)
    for version, bits in enumerate(chain):
        publisher.publish(V(version), bits)
    return publisher


def pack_of(directory: Path, version: int) -> Path:
    [pack] = (directory / f"versions/{version:08d}").glob("*.pack")
    return pack


def manifest_of(directory: Path, version: int) -> Path:
    return directory / f"versions/{version:08d}/manifest"


def test_every_version_from_every_other(tmp_path: Path) -> None:
    chain = make_chain(7)
    publish(tmp_path, chain, anchor_every=3)
    subscriber = Subscriber(open_store(tmp_path))
    for held in [None, *range(7)]:
        for target in range(7):
            base = None if held is None else chain[held]
            bits, result = subscriber.fetch(base, None if held is None else V(held), V(target))
            assert same(bits, chain[target])
            assert result.root == root_of(chain[target])
            assert base is None or not any(np.shares_memory(bits[name], base[name]) for name in bits)


@pytest.mark.parametrize("merge_over", one_of_each(2, [((2, 6),), ((2,),), ((3, 8),)]))
def test_merged_deltas_from_every_version_to_every_other(tmp_path: Path, merge_over: tuple[int, ...]) -> None:
    chain = make_chain(18)
    publish(tmp_path, chain, merge_over=merge_over, merge="always")
    subscriber = Subscriber(open_store(tmp_path))
    for held in range(18):
        for target in range(held, 18):
            bits, result = subscriber.fetch(chain[held], V(held), V(target))
            assert same(bits, chain[target])
            assert not result.from_anchor
            most = sum(over - 1 for over in merge_over) * 2 + 18 // max(merge_over)
            assert len(result.path) <= min(target - held, most)
    assert verify(open_store(tmp_path)).ok


def test_a_late_reader_takes_few_merged_deltas(tmp_path: Path) -> None:
    chain = make_chain(40)
    publisher = publish(tmp_path, chain, anchor_every=1000, merge_over=(8, 32), merge="always")
    assert publisher.counters["published_merged"] == 4 + 1
    subscriber = Subscriber(open_store(tmp_path))
    bits, result = subscriber.fetch(chain[0], V(0), V(39))
    assert same(bits, chain[39])
    assert result.path == (32, *range(33, 40))
    plain = sum(subscriber.chain.manifest(V(version)).payload_bytes for version in range(1, 33))
    assert result.payload_bytes < plain
    assert subscriber.fetch(chain[7], V(7), V(24))[1].path == (8, 16, 24)


def test_merged_deltas_wait_until_somebody_is_late(tmp_path: Path) -> None:
    """A reader that follows needs none. One that stays behind, and holds its version, gets those that it will go by."""
    chain = make_chain(24)
    publisher = Publisher(open_store(tmp_path), merge_over=(4,))
    reader = Subscriber(open_store(tmp_path), SubscriberConfig(lease_s=3600))
    bits, held = None, None
    for version in range(10):
        publisher.publish(V(version), chain[version])
        bits, _ = reader.fetch(bits, held, V(version))
        held = V(version)
    assert publisher.counters["published_merged"] == 0
    for version in range(10, 24):
        publisher.publish(V(version), chain[version])
    assert publisher.counters["published_merged"] == 2
    bits, result = reader.fetch(bits, held, V(23))
    assert result.path == (10, 11, 12, 16, 20, 21, 22, 23)
    assert same(bits, chain[23])


def test_a_merged_delta_survives_a_restart_of_its_publisher(tmp_path: Path) -> None:
    chain = make_chain(12)
    for version, bits in enumerate(chain):
        if version % 5 == 0:
            publisher = Publisher(open_store(tmp_path), PublisherConfig(merge="always"), merge_over=(4,))
        publisher.publish(V(version), bits)
    assert publisher.counters["published_merged"] == 0  # it went on from 9, which it found, and has come to 11
    subscriber = Subscriber(open_store(tmp_path))
    assert subscriber.fetch(chain[0], V(0), V(11))[1].path == (4, 8, 9, 10, 11)
    publisher.rewind(V(3))
    publisher.publish(V(4), chain[5])
    assert same(subscriber.fetch(chain[0], V(0), V(4))[0], chain[5])


def test_results_and_counters(tmp_path: Path) -> None:
    chain = make_chain(4)
    store = open_store(tmp_path)
    publisher = Publisher(store, anchor_every=2)
    first, *deltas = [publisher.publish(V(version), bits) for version, bits in enumerate(chain)]
    raw = sum(2 * array.size for array in chain[0].values())
    assert (first.kind, first.changed_share, first.raw_bytes) == ("full", pytest.approx(1.0, abs=0.01), raw)
    assert [delta.kind for delta in deltas] == ["delta"] * 3
    assert all(0.02 < delta.changed_share < 0.08 and delta.payload_bytes < raw / 8 for delta in deltas)
    assert [bool(delta.anchor_bytes) for delta in deltas] == [False, True, False]
    assert (publisher.counters["published_deltas"], publisher.counters["published_anchors"]) == (3, 2)
    written = sum(result.payload_bytes + result.anchor_bytes for result in [first, *deltas])
    assert publisher.counters["published_bytes"] == written

    subscriber = Subscriber(store)
    bits, full = subscriber.fetch(None, None, V(0))
    _, behind = subscriber.fetch(bits, V(0), V(3))
    assert (full.path, full.from_anchor, behind.path, behind.from_anchor) == ((0,), True, (1, 2, 3), False)
    assert (subscriber.counters["applied_anchors"], subscriber.counters["applied_deltas"]) == (1, 3)
    assert subscriber.counters["applied_bytes"] == full.payload_bytes + behind.payload_bytes
    assert subscriber.counters["root_checks"] == 3  # both results, and the base of the second


def test_a_late_joiner_takes_the_anchor(tmp_path: Path) -> None:
    chain = make_chain(9)
    publish(tmp_path, chain, anchor_every=4)
    _, result = Subscriber(open_store(tmp_path)).fetch(None, None, V(7))
    assert (result.path, result.from_anchor) == ((4, 5, 6, 7), True)
    stale, _ = Subscriber(open_store(tmp_path)).fetch(None, None, V(0))
    _, result = Subscriber(open_store(tmp_path)).fetch(stale, V(0), V(7))
    assert (result.path[0], result.from_anchor) == (1, False)  # seven small deltas cost less than a full copy


def test_an_anchor_on_demand_and_a_gap_in_the_numbers(tmp_path: Path) -> None:
    chain = make_chain(3)
    publisher = publish(tmp_path, chain[:2])
    assert publisher.publish(V(40), chain[2], anchor=True).anchor_bytes > 0
    _, result = Subscriber(open_store(tmp_path)).fetch(None, None, V(40))
    assert (result.path, result.from_anchor) == ((40,), True)
    bits, result = Subscriber(open_store(tmp_path)).fetch(chain[1], V(1), V(40))
    assert result.path == (40,)
    assert same(bits, chain[2])


# --- wrong bases, damaged and replayed objects ------------------------------------------------------------------------


def expect_refused(directory: Path, message: str, base: Bits, held: int, target: int) -> None:
    before = {name: array.copy() for name, array in base.items()}
    with pytest.raises(WeightError, match=message):
        Subscriber(open_store(directory)).fetch(base, V(held), V(target))
    assert same(base, before)


def test_wrong_base(tmp_path: Path) -> None:
    chain = make_chain(3)
    publish(tmp_path, chain)
    expect_refused(tmp_path, "another run, or from before a rewind; fetch again without a base", chain[0], 1, 2)
    expect_refused(tmp_path, "another run", move_bits(chain[2], 9), 2, 2)  # held as the target, but it is not
    expect_refused(tmp_path, "another run", {"other": chain[0]["norm"]}, 1, 2)


def test_damage_in_the_store(tmp_path: Path) -> None:
    chain = make_chain(3)
    publish(tmp_path, chain)
    pack, manifest = pack_of(tmp_path, 2), manifest_of(tmp_path, 2)
    good_pack, good_manifest = pack.read_bytes(), manifest.read_bytes()
    for offset in (0, len(good_pack) // 2, len(good_pack) - 1):
        pack.write_bytes(good_pack[:offset] + bytes([good_pack[offset] ^ 4]) + good_pack[offset + 1 :])
        expect_refused(tmp_path, "the payload of .* is corrupt; reading it again gave the same", chain[1], 1, 2)
    pack.write_bytes(good_pack[:-1])
    expect_refused(tmp_path, "is cut off", chain[1], 1, 2)
    pack.write_bytes(good_pack + b"\0")
    expect_refused(tmp_path, "at most .* were expected", chain[1], 1, 2)
    pack.unlink()
    expect_refused(tmp_path, "version 2 is not whole: .*no such object", chain[1], 1, 2)
    pack.write_bytes(good_pack)
    manifest.write_bytes(good_manifest[: len(good_manifest) // 2])
    expect_refused(tmp_path, "damaged or cut off", chain[1], 1, 2)
    manifest.unlink()
    expect_refused(tmp_path, "version 2 is not whole", chain[1], 1, 2)
    manifest.write_bytes(good_manifest)
    bits, _ = Subscriber(open_store(tmp_path)).fetch(chain[1], V(1), V(2))
    assert same(bits, chain[2])


@pytest.mark.parametrize("damage", ["pack", "no pack", "merged manifest", "wrong result"])
def test_another_way_round_what_is_damaged(tmp_path: Path, damage: str) -> None:
    """From 0 to 4 a merged delta would do; without it four single ones, and without one of those the anchor."""
    chain = make_chain(5)
    publisher = publish(tmp_path, chain[:4], merge_over=(4,), merge="always")
    publisher.publish(V(4), chain[4], anchor=True)
    read = Chain(open_store(tmp_path))
    merged, single = read.manifest(V(4), "from-00000000"), read.manifest(V(2))
    packs = [tmp_path / f"versions/{delta.version:08d}/{delta.packs[0].hash}.pack" for delta in (merged, single)]
    if damage == "pack":
        packs[0].write_bytes(packs[0].read_bytes()[:-1] + b"x")
    elif damage == "no pack":
        packs[0].unlink()
    elif damage == "merged manifest":
        (tmp_path / "versions/00000004/from-00000000").write_bytes(b"torn")
    else:  # whole, and signed by nobody: what it makes is not version 4
        held = Held(V(0), root_of(chain[0]), chain[0])
        wrong = make_delta(merged.chain, V(4), move_bits(chain[4], 9), held, 99, put=partial(read.put, V(4)))
        (tmp_path / "versions/00000004/from-00000000").unlink()
        assert read.write(wrong, "from-00000000")
    subscriber = Subscriber(open_store(tmp_path))
    bits, result = subscriber.fetch(chain[0], V(0), V(4))
    assert same(bits, chain[4])
    assert (result.path, result.from_anchor) == ((1, 2, 3, 4), False)
    assert subscriber.counters["detours"] == 1
    packs[1].write_bytes(b"torn")
    bits, result = subscriber.fetch(chain[0], V(0), V(4))
    assert same(bits, chain[4])
    assert (result.path, result.from_anchor) == ((4,), True)
    shutil.rmtree(tmp_path / "versions/00000000")
    (tmp_path / "versions/00000004/anchor").write_bytes(b"torn")
    expect_refused(tmp_path, "corrupt|cut off|not whole|zstd frame|does not have|has the root", chain[0], 0, 4)


def test_names_that_lead_round_in_circles(tmp_path: Path) -> None:
    chain = make_chain(4)
    publish(tmp_path, chain)
    for version, parent in ((1, 3), (2, 2), (2, 3)):
        (tmp_path / f"versions/{version:08d}/from-{parent:08d}").write_bytes(b"planted")
    (tmp_path / "versions/00000000/manifest").unlink()
    assert same(Subscriber(open_store(tmp_path)).fetch(chain[1], V(1), V(3))[0], chain[3])
    with pytest.raises(WeightError, match="no way from a full copy to version 3"):
        Subscriber(open_store(tmp_path)).fetch(None, None, V(3))


def test_damage_at_the_very_start(tmp_path: Path) -> None:
    """Nothing leads from the first version's manifest when it cannot be read; who is further along goes on."""
    chain = make_chain(4)
    publish(tmp_path, chain)
    manifest_of(tmp_path, 0).write_bytes(b"torn")
    assert same(Subscriber(open_store(tmp_path)).fetch(chain[1], V(1), V(3))[0], chain[3])
    with pytest.raises(WeightError, match=r"versions/00000000/manifest: .*(zstd frame|damaged)"):
        Subscriber(open_store(tmp_path)).fetch(None, None, V(3))
    with pytest.raises(WeightError, match=r"versions/00000000/manifest: .*(zstd frame|damaged)"):
        Subscriber(open_store(tmp_path)).fetch(chain[3], V(3), V(2))


def test_an_anchor_of_other_weights(tmp_path: Path) -> None:
    """A whole full copy in an anchor's place, of weights that are not that version's: never served."""
    chain = make_chain(3)
    publish(tmp_path, chain)
    read = Chain(open_store(tmp_path))
    moved = move_bits(chain[2], 5)
    wrong = make_delta(read.manifest(V(2)).chain, V(2), moved, None, 1000, put=partial(read.put, V(2)))
    assert read.write(wrong, "anchor")
    subscriber = Subscriber(open_store(tmp_path))
    bits, result = subscriber.fetch(None, None, V(2))
    assert same(bits, chain[2])
    assert (result.path, subscriber.counters["detours"]) == ((0, 1, 2), 1)


def test_a_missing_link_below_a_late_reader(tmp_path: Path) -> None:
    chain = make_chain(4)
    publish(tmp_path, chain)
    shutil.rmtree(tmp_path / "versions/00000001")
    expect_refused(tmp_path, "no way from version 0 or a full copy to version 3.*below version 1", chain[0], 0, 3)


def test_a_replayed_delta(tmp_path: Path) -> None:
    """Version 2's objects put in the place of version 3's: applied twice, they would give weights nobody trained."""
    chain = make_chain(4)
    publish(tmp_path, chain)
    shutil.rmtree(tmp_path / "versions/00000003")
    shutil.copytree(tmp_path / "versions/00000002", tmp_path / "versions/00000003")
    expect_refused(tmp_path, "it was moved or replayed", chain[2], 2, 3)


def test_a_forked_chain(tmp_path: Path) -> None:
    """Version 1 replaced by another whole version 1 of the same chain: version 2 no longer follows from it."""
    chain = make_chain(3)
    publisher = publish(tmp_path / "a", chain[:1])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    publisher.publish(V(1), chain[1])
    publisher.publish(V(2), chain[2])
    Publisher(open_store(tmp_path / "b")).publish(V(1), move_bits(chain[0], 77))
    shutil.rmtree(tmp_path / "a/versions/00000001")
    shutil.copytree(tmp_path / "b/versions/00000001", tmp_path / "a/versions/00000001")
    expect_refused(tmp_path / "a", "the chain was forked", chain[0], 0, 2)


def test_weights_larger_than_the_limit(tmp_path: Path) -> None:
    class Small(SubscriberConfig):
        max_raw_bytes: ClassVar[int] = 1000

    publish(tmp_path, make_chain(1))
    small = Subscriber(open_store(tmp_path), Small())
    with pytest.raises(WeightError, match="with more memory"):
        small.fetch(None, None, V(0))


def test_an_empty_store(tmp_path: Path) -> None:
    subscriber = Subscriber(open_store(tmp_path))
    with pytest.raises(WeightError, match="no version yet"):
        subscriber.latest()
    with pytest.raises(WeightError, match="version 3 is not whole"):
        subscriber.fetch(None, None, V(3))


def test_wait_for(tmp_path: Path) -> None:
    chain = make_chain(2)
    publisher = publish(tmp_path, chain[:1])
    subscriber = Subscriber(open_store(tmp_path))
    with pytest.raises(DeadlineExceeded, match=r"version 1 in .*: the newest is 0"):
        subscriber.wait_for(V(1), 0.05)
    later = threading.Timer(0.1, publisher.publish, (V(1), chain[1]))
    later.start()
    subscriber.wait_for(V(1), 20)
    later.join()
    assert subscriber.latest() == 1


# --- the publisher's own life -----------------------------------------------------------------------------------------


def test_publishing_again(tmp_path: Path) -> None:
    chain = make_chain(3)
    publisher = publish(tmp_path, chain)
    for again in (publisher, Publisher(open_store(tmp_path))):
        result = again.publish(V(1), chain[1])
        assert (result.kind, result.root) == ("existing", root_of(chain[1]))
        with pytest.raises(WeightError, match=r"version 1 is in .* with root .* rewind this one"):
            again.publish(V(1), chain[0])
    assert publisher.counters["published_existing"] == 1
    assert verify(open_store(tmp_path)).ok


def test_resume_goes_on_with_deltas(tmp_path: Path) -> None:
    chain = make_chain(4)
    publish(tmp_path, chain[:2])
    resumed = Publisher(open_store(tmp_path))
    assert resumed.publish(V(2), chain[2]).kind == "delta"  # fetched by itself
    given = Publisher(open_store(tmp_path))
    with pytest.raises(WeightError, match="resume without them"):
        given.resume(chain[1])
    assert given.resume(chain[2]) == 2
    assert given.publish(V(3), chain[3]).kind == "delta"
    assert Publisher(open_store(tmp_path / "new")).resume() is None
    bits, _ = Subscriber(open_store(tmp_path)).fetch(None, None, V(3))
    assert same(bits, chain[3])


def test_the_callers_later_changes_do_not_reach_the_chain(tmp_path: Path) -> None:
    publisher = Publisher(open_store(tmp_path))
    bits = make_bits(1)
    publisher.publish(V(0), bits)
    for version in range(1, 4):
        bits["norm"] += 1  # the trainer reuses its buffers
        publisher.publish(V(version), bits)
    fetched, _ = Subscriber(open_store(tmp_path)).fetch(None, None, V(3))
    assert same(fetched, bits)


def test_what_cannot_be_published(tmp_path: Path) -> None:
    chain = make_chain(2)
    publisher = publish(tmp_path, chain)
    for wrong, message in [
        ({}, "no tensors"),
        ({**chain[1], "norm": chain[1]["norm"].astype(np.float32)}, "norm: .* not float32"),
        ({**chain[1], "norm": chain[1]["norm"][:5]}, r"norm: shape \(5,\) differs"),
        ({**chain[1], "more": chain[1]["norm"]}, r"\['more'\]"),
    ]:
        with pytest.raises(WeightError, match=message):
            publisher.publish(V(2), wrong)
    assert Subscriber(open_store(tmp_path)).latest() == 1
    sparse = Publisher(open_store(tmp_path / "sparse"))
    sparse.publish(V(5), chain[0])
    with pytest.raises(WeightError, match="older than the newest"):
        sparse.publish(V(3), chain[0])


def test_rewind(tmp_path: Path) -> None:
    """A trainer that goes on from an older checkpoint takes back what it had published since."""
    chain = make_chain(6)
    publisher = publish(tmp_path, chain, anchor_every=2)
    other = move_bits(chain[3], 500)
    with pytest.raises(WeightError, match="with root"):
        publisher.publish(V(4), other)
    with pytest.raises(WeightError, match="no version 9 to rewind to"):
        publisher.rewind(V(9))
    publisher.rewind(V(3))
    assert Subscriber(open_store(tmp_path)).latest() == 3
    assert publisher.publish(V(4), other).kind == "delta"
    assert verify(open_store(tmp_path)).ok
    expect_refused(tmp_path, "from before a rewind", chain[4], 4, 4)  # an engine that already served the old version 4
    bits, _ = Subscriber(open_store(tmp_path)).fetch(None, None, V(4))
    assert same(bits, other)


def test_two_publishers_and_one_version(tmp_path: Path) -> None:
    chain = make_chain(3)
    first = publish(tmp_path, chain[:1])
    second = Publisher(open_store(tmp_path))
    second.resume()
    first.publish(V(1), chain[1])
    with pytest.raises(WeightError, match="another trainer writes there"):
        second.publish(V(1), move_bits(chain[0], 88))
    assert second.publish(V(2), chain[2]).kind == "delta"  # it has read the chain afresh
    assert verify(open_store(tmp_path)).ok


# --- retention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("anchor_every", "keep"), one_of_each(0.7, [(2, 5), (1, 1), (4, 3), (5, 5)]))
def test_retention_keeps_what_a_live_chain_needs(tmp_path: Path, anchor_every: int, keep: int) -> None:
    chain = make_chain(20)
    publisher = Publisher(open_store(tmp_path), PublisherConfig(keep=keep), anchor_every=anchor_every)
    subscriber = Subscriber(open_store(tmp_path))
    for newest, bits in enumerate(chain):
        publisher.publish(V(newest), bits)
        kept = range(max(0, newest - keep + 1), newest + 1)
        for target in kept:
            assert same(subscriber.fetch(None, None, V(target))[0], chain[target])
            assert same(subscriber.fetch(chain[kept[0]], V(kept[0]), V(target))[0], chain[target])
    assert publisher.counters["deleted_versions"] >= 20 - keep - 2 * anchor_every
    assert len(list((tmp_path / "versions").iterdir())) <= keep + 2 * anchor_every
    assert same(subscriber.fetch(chain[0], V(0), V(19))[0], chain[19])  # far behind: by way of an anchor
    with pytest.raises(WeightError, match="version 0 is not whole"):
        subscriber.fetch(None, None, V(0))


def test_retention_goes_on_after_a_restart_and_sweeps_half_written_objects(tmp_path: Path) -> None:
    chain = make_chain(12)
    for version, bits in enumerate(chain):  # a publisher that dies after each version
        Publisher(open_store(tmp_path), PublisherConfig(keep=2), anchor_every=3).publish(V(version), bits)
        (tmp_path / f"versions/{version:08d}/left.pack#1").write_bytes(b"half")
    versions = sorted(int(path.name) for path in (tmp_path / "versions").iterdir())
    assert versions[0] >= 6
    assert verify(open_store(tmp_path)).ok


def test_reading_while_publishing_and_deleting(tmp_path: Path) -> None:
    """A reader never sees anything but whole versions; one that retention overtakes is told so, and goes on."""
    chain = make_chain(40)
    roots = [root_of(bits) for bits in chain]
    publish(tmp_path, chain[:1])
    seen: list[int] = []
    failures: list[str] = []

    def read() -> None:
        subscriber, bits, version = Subscriber(open_store(tmp_path)), None, None
        deadline = time.monotonic() + 60
        while version != 39 and time.monotonic() < deadline:
            target = subscriber.latest()
            try:
                bits, result = subscriber.fetch(bits, version, target)
            except WeightError as error:
                if "is not whole" not in str(error) and "no way from" not in str(error):
                    failures.append(str(error))
                continue
            version = target
            assert result.root == root_of(bits) == roots[version]
            seen.append(version)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    publisher = Publisher(open_store(tmp_path), PublisherConfig(keep=2), anchor_every=2)
    for version in range(1, 40):
        publisher.publish(V(version), chain[version])
        time.sleep(0.005)
    for reader in readers:
        reader.join(60)
    assert not failures
    assert seen.count(39) == 2
    assert len(set(seen)) > 3
