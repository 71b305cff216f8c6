"""Slices: cut and joined bit for bit, and fetched by who needs them, with roots of their own."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_samples import make_chain, move_bits, same

from etude.errors import ConfigError, WeightError
from etude.records import Version
from etude.weights.inspect import verify
from etude.weights.manifest import Bits, root_of
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.slices import chosen, cut, join
from etude.weights.store import StoreConfig
from etude.weights.subscriber import Subscriber, SubscriberConfig

V = Version
GRIDS = {"*.experts": (2, 1, 3), "embed": (4, 1)}


@given(data=st.data())
@settings(max_examples=100)
def test_cut_and_join(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), max_size=4)))
    grid = tuple(data.draw(st.integers(1, size)) for size in shape[: data.draw(st.integers(0, len(shape)))])
    array = np.arange(math.prod(shape), dtype=np.uint16).reshape(shape)
    slices = cut({"a/b.c": array}, {"*": grid})
    assert len(slices) == math.prod(grid)
    assert sum(part.size for part in slices.values()) == array.size
    keys = data.draw(st.permutations(list(slices)))
    assert same(join({key: slices[key] for key in keys}), {"a/b.c": array})


def test_names_and_shares() -> None:
    array = np.arange(60, dtype=np.uint16).reshape(5, 4, 3)
    slices = cut({"w": array, "norm": array[0, 0]}, {"w": (2, 2, 1)})
    assert sorted(slices) == ["0.0of2.2/w", "0.1of2.2/w", "1.0of2.2/w", "1.1of2.2/w", "norm"]
    share = {name: slices[name] for name in ("1.1of2.2/w", "0.1of2.2/w", "norm")}
    assert same(join(share), {"w": array[:, 2:], "norm": array[0, 0]})
    assert list(cut({"w": array}, {"w": (5, 1, 1)}))[4] == "4of5/w"
    with pytest.raises(WeightError, match="no box"):
        join({name: slices[name] for name in ("1.1of2.2/w", "0.0of2.2/w")})
    with pytest.raises(WeightError, match="in another way"):
        join({"w": array, "0.0of2.2/w": array})
    for wrong in [(6,), (1, 1, 1, 2)]:
        with pytest.raises(ConfigError, match="cannot be cut"):
            cut({"w": array}, {"w": wrong})
    with pytest.raises(ConfigError, match=r"\['7of8'\]"):
        chosen(slices, ["0.0of2.2", "7of8"])


def publish(directory: Path, chain: list[Bits], store: StoreConfig | None = None) -> list[Bits]:
    versions = [cut(bits, GRIDS) for bits in chain]
    publisher = Publisher(
        open_store(directory, store), PublisherConfig(anchor_every=3, merge_over=(2,), merge="always")
    )
    for version, bits in enumerate(versions):
        publisher.publish(V(version), bits)
    return versions


def test_a_replica_fetches_its_slices_and_proves_them(tmp_path: Path) -> None:
    chain = make_chain(6)
    versions = publish(tmp_path, chain)
    coordinates = ("1.0.2of2.1.3", "2of4")
    mine = [{name: bits[name] for name in chosen(bits, coordinates)} for bits in versions]
    replica = Subscriber(open_store(tmp_path), SubscriberConfig(slices=coordinates))
    everything = Subscriber(open_store(tmp_path))
    for held in [None, *range(6)]:
        for target in range(6):
            version, base = (None, None) if held is None else (V(held), mine[held])
            bits, result = replica.fetch(base, version, V(target))
            assert same(bits, mine[target])
            assert result.root == root_of(mine[target])
            whole, all_of_it = everything.fetch(None if held is None else versions[held], version, V(target))
            assert same(join(whole), chain[target])
            assert result.payload_bytes <= all_of_it.payload_bytes
    local = join(bits)
    assert same(local, {**chain[5], "embed": chain[5]["embed"][32:48], "layers.0.experts": local["layers.0.experts"]})
    assert np.array_equal(local["layers.0.experts"], chain[5]["layers.0.experts"][2:, :, 8:])
    assert verify(open_store(tmp_path)).ok


def test_a_share_with_a_wrong_base_is_refused(tmp_path: Path) -> None:
    versions = publish(tmp_path, make_chain(3))
    replica = Subscriber(open_store(tmp_path), SubscriberConfig(slices=("0of4", "0.0.0of2.1.3")))
    mine, _ = replica.fetch(None, None, V(1))
    with pytest.raises(WeightError, match="another run"):
        replica.fetch(move_bits(mine, 3), V(1), V(2))
    with pytest.raises(WeightError, match="another run"):
        replica.fetch(versions[1], V(1), V(2))  # it holds more than its share
    elsewhere = Subscriber(open_store(tmp_path), SubscriberConfig(slices=("0of4", "0of2")))
    with pytest.raises(ConfigError, match=r"\['0of2'\]"):
        elsewhere.fetch(None, None, V(1))


def test_a_share_reads_no_more_blocks_than_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slices of one coordinate lie together in the pack."""
    rng = np.random.default_rng(0)
    bits = {f"layer.{n}": rng.integers(0, 1 << 16, (64, 256), np.uint16) for n in range(4)}
    config = StoreConfig(block_bytes=1 << 10)
    Publisher(open_store(tmp_path, config)).publish(V(0), cut(bits, {"*": (8, 1)}))
    store = open_store(tmp_path, config)
    read: list[int] = []
    original = store.get_range

    def counting(key: str, start: int, stop: int, size: int, *, again: bool = False) -> memoryview:
        read.append(stop - start)
        return original(key, start, stop, size, again=again)

    monkeypatch.setattr(store, "get_range", counting)
    share, result = Subscriber(store, SubscriberConfig(slices=("3of8",))).fetch(None, None, V(0))
    assert all(np.array_equal(share[f"3of8/{name}"], bits[name][24:32]) for name in bits)
    assert sum(read) <= result.payload_bytes + 2 * (1 << 10)
