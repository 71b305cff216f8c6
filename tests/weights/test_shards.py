"""Several ranks publish one chain: whole versions only, whoever is late, missing, killed or out of step."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from proofs import one_of_each
from s3_server import S3Server
from weight_samples import make_chain, move_bits, publisher_on, same

from etude.errors import DeadlineExceeded, EtudeError, WeightError
from etude.records import Version
from etude.weights.delta import Held
from etude.weights.inspect import verify
from etude.weights.manifest import Bits, root_of
from etude.weights.opening import open_store
from etude.weights.publisher import PublishResult
from etude.weights.shards import Shard
from etude.weights.signing import Keys
from etude.weights.slices import cut, join
from etude.weights.store import Store
from etude.weights.subscriber import Subscriber, SubscriberConfig

V = Version
RANKS = 3
GRIDS = {"layers.0.experts": (4,), "embed": (1, 2)}
CHAIN = [cut(bits, GRIDS) for bits in make_chain(12)]


def share(bits: Bits, rank: int, ranks: int = RANKS) -> Bits:
    """Every `ranks`-th tensor or slice."""
    return {name: bits[name] for name in sorted(bits)[rank::ranks]}


class Trainer:
    """As many publishers as ranks, each in a thread of its own, all of one attempt."""

    def __init__(
        self, store: Store, keys: Keys | None = None, ranks: int = RANKS, parts_s: float = 60, **config: Any
    ) -> None:
        attempt = secrets.token_hex(16)
        shards = [Shard(rank, ranks, attempt, frozenset(share(CHAIN[0], rank, ranks))) for rank in range(ranks)]
        self.publishers = [publisher_on(store, keys=keys, shard=shard, parts_s=parts_s, **config) for shard in shards]
        self._threads = [ThreadPoolExecutor(1) for _ in shards]

    def start(self, version: int, bits: Bits, without: tuple[int, ...] = ()) -> list[Future[PublishResult]]:
        ranks = len(self.publishers)
        return [
            thread.submit(publisher.publish, V(version), share(bits, rank, ranks))
            for rank, (publisher, thread) in enumerate(zip(self.publishers, self._threads, strict=True))
            if rank not in without
        ]

    def publish(self, version: int, bits: Bits) -> list[PublishResult]:
        return [future.result(90) for future in self.start(version, bits)]


@pytest.mark.parametrize("packs", [RANKS, 2 * RANKS], ids=["a pack of each", "several"])
def test_ranks_publish_one_chain(tmp_path: Path, packs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With merged deltas, anchors and retention; read whole, in slices, and after a restart with other ranks."""
    if packs > RANKS:
        monkeypatch.setattr("etude.weights.delta.LEAST_PACK", 1)
    store = open_store(tmp_path)
    trainer = Trainer(store, anchor_every=2, keep=1, merge_over=(2,), merge="always")
    for version, bits in enumerate(CHAIN[:8]):
        results = trainer.publish(version, bits)
        assert [result.root for result in results] == [root_of(share(bits, rank)) for rank in range(RANKS)]
        assert {result.kind for result in results} == {"full" if version == 0 else "delta"}
        assert sum(result.raw_bytes for result in results) == 2 * sum(array.size for array in bits.values())
        assert not list(tmp_path.glob("versions/*/part-*"))
        if version == 0:
            made = len(Subscriber(store).chain.manifest(V(0)).packs)
            assert made == RANKS if packs == RANKS else made > RANKS
    reader = Subscriber(store)
    assert same(reader.fetch(None, None, V(7))[0], CHAIN[7])
    assert reader.chain.manifest(V(7)).root == root_of(CHAIN[7])
    assert trainer.publishers[0].counters["published_merged"] == 3
    assert trainer.publishers[0].counters["published_anchors"] > 1
    assert reader.chain.versions()[0] > 0  # retention has deleted
    again = Trainer(store, ranks=2, merge_over=(3,), merge="always")
    for version, bits in enumerate(CHAIN[8:], 8):
        again.publish(version, bits)
    whole, result = reader.fetch(CHAIN[7], V(7), V(11))
    assert same(whole, CHAIN[11])
    assert same(join(whole), make_chain(12)[11])
    assert not result.from_anchor
    slices = Subscriber(store, SubscriberConfig(slices=("2of4", "0.1of1.2")))
    mine, _ = slices.fetch(None, None, V(11))
    assert mine.keys() == {"2of4/layers.0.experts", "0.1of1.2/embed", "layers.0.router", "norm", "scale"}
    assert verify(store).ok


def test_over_s3_with_signatures(s3: S3Server) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    keys = Keys(private, (private.public_key().public_bytes_raw(),))
    trainer = Trainer(s3.store(), keys)
    for version, bits in enumerate(CHAIN[:2]):
        trainer.publish(version, bits)
    assert same(Subscriber(s3.store(), keys=Keys(None, keys.trusted)).fetch(None, None, V(1))[0], CHAIN[1])
    with pytest.raises(WeightError, match="is signed by key"):
        Trainer(s3.store()).publish(2, CHAIN[2])


def test_a_missing_rank_is_named_and_nothing_is_visible(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    Trainer(store).publish(0, CHAIN[0])
    trainer = Trainer(store, parts_s=2.0)
    first, last = trainer.start(1, CHAIN[1], without=(1,))
    with pytest.raises(DeadlineExceeded, match=r"for rank 1 of 3 to upload its part of version 1 to .*see that rank"):
        first.result(30)
    with pytest.raises(DeadlineExceeded, match=r"for rank 0 to make version 1 visible in .*\(manifest\)"):
        last.result(30)
    assert Subscriber(store).latest() == 0
    assert verify(store).ok
    assert {result.kind for result in trainer.publish(1, CHAIN[1])} == {"delta"}
    assert same(Subscriber(store).fetch(CHAIN[0], V(0), V(1))[0], CHAIN[1])


def fails(trainer: Trainer, version: int, bits: list[Bits], message: str) -> None:
    """Each rank publishes what it is given; some fail, one of them with this message, and nothing is visible."""
    futures = [
        thread.submit(publisher.publish, V(version), own)
        for publisher, thread, own in zip(trainer.publishers, trainer._threads, bits, strict=True)
    ]
    said = [str(future.exception(30)) for future in futures]
    assert any(message in each for each in said), said
    store = trainer.publishers[0].chain.store
    assert version not in Subscriber(store).chain.versions()


@pytest.mark.proof(7)
def test_ranks_out_of_step(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    trainer = Trainer(store, parts_s=5)
    for version in range(2):
        trainer.publish(version, CHAIN[version])
    late, ahead = Trainer(store, parts_s=5), [share(CHAIN[2], rank) for rank in range(RANKS)]
    late.publishers[1].resume()
    stale = late.publishers[1]._held
    assert stale is not None
    stale.bits["norm"][0] ^= 1  # as if it had trained on from other weights
    late.publishers[1]._held = Held(stale.version, root_of(stale.bits), stale.bits)
    fails(late, 2, ahead, "a rank went on from other weights")
    two_owners = [*ahead[:2], ahead[2] | {"norm": ahead[1]["norm"]}]
    fails(Trainer(open_store(tmp_path / "new"), parts_s=5), 0, two_owners, "it needs one owner")
    assert trainer.publish(2, CHAIN[2])
    assert verify(store).ok


def test_parts_of_a_killed_attempt_are_not_mixed_in(tmp_path: Path) -> None:
    """Rank 2 had uploaded its part of version 1 when all were killed; what they do next time is another version 1."""
    store = open_store(tmp_path)
    Trainer(store).publish(0, CHAIN[0])
    trainer = Trainer(store, parts_s=0.3)
    for future in trainer.start(1, CHAIN[1], without=(0,)):
        with pytest.raises(DeadlineExceeded):
            future.result(30)
    assert len(list(tmp_path.glob("versions/00000001/part-*"))) == 2
    assert Subscriber(store).latest() == 0
    other = move_bits(CHAIN[0], 99)
    Trainer(store).publish(1, other)
    assert same(Subscriber(store).fetch(CHAIN[0], V(0), V(1))[0], other)
    assert verify(store).ok


def test_a_part_is_no_manifest(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    trainer = Trainer(store, parts_s=0.3)
    for future in trainer.start(0, CHAIN[0], without=(0,)):
        with pytest.raises(EtudeError):
            future.result(30)
    [part, _] = tmp_path.glob("versions/00000000/part-*")
    shutil.copy(part, part.with_name("manifest"))
    with pytest.raises(WeightError, match="manifest: damaged or cut off"):
        Subscriber(store).fetch(None, None, V(0))


VICTIM = """
import os, signal, sys
from test_shards import CHAIN, share
from etude.weights.publisher import Publisher
from etude.weights.shards import Shard
from etude.weights.opening import open_store
from etude.weights.store import Store

directory, rank, survived, attempt = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
shard, writes = Shard(rank, 2, attempt, frozenset(share(CHAIN[0], rank, 2))), 0

def dying(method):
    def call(self, *arguments, **options):
        global writes
        writes += 1
        if writes > survived:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(self, *arguments, **options)
    return call

publisher = Publisher(open_store(directory), merge_over=(), shard=shard, parts_s=100)
publisher.resume()
Store.put, Store.delete = dying(Store.put), dying(Store.delete)
publisher.publish(1, share(CHAIN[1], rank, 2))
"""


WRITES = [(1, 1, 0), (1, 0, 0), *((0, survived, newest) for survived, newest in enumerate([0, 0, 0, 1]))]


@pytest.mark.parametrize(("rank", "survived", "newest"), one_of_each(2.1, WRITES))
def test_killed_before_every_write(tmp_path: Path, rank: int, survived: int, newest: int) -> None:
    """Whichever write of whichever rank is its last: version 1 is whole or not there, and can be published then.

    The rank that is left waits, and is killed too where nothing can come of it.
    """
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    store = open_store(tmp_path)
    Trainer(store, ranks=2).publish(0, CHAIN[0])
    attempt = secrets.token_hex(16)
    killed, left = (
        subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(tmp_path), str(each), str(limit), attempt], env=os.environ | path
        )
        for each, limit in ((rank, survived), (1 - rank, 1000))
    )
    assert killed.wait(120) == -signal.SIGKILL
    if newest == 0:
        left.kill()
    assert left.wait(120) == (0 if newest else -signal.SIGKILL)
    assert Subscriber(store).latest() == newest
    assert verify(store).ok
    assert same(Subscriber(store).fetch(None, None, V(newest))[0], CHAIN[newest])
    Trainer(store, ranks=2).publish(1, CHAIN[1])
    assert same(Subscriber(store).fetch(CHAIN[0], V(0), V(1))[0], CHAIN[1])
    assert verify(store).ok
