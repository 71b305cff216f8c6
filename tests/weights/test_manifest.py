"""The root hash by its definition, and manifests that are damaged or forged."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import blake3
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from proofs import often
from weight_samples import make_bits, move_bits

from etude.errors import WeightError
from etude.records import Version
from etude.weights.delta import Held, apply_delta, make_delta, zeros_for
from etude.weights.manifest import Bits, Delta, dump, load, root_of

CHAIN = "0123456789abcdef" * 2


def packed(bits: Bits, held: Held, chunk_elements: int, threads: int = 1) -> tuple[Delta, list[bytes]]:
    packs: list[bytes] = []
    version = Version(held.version + 1)
    delta = make_delta(
        CHAIN, version, bits, held, chunk_elements, threads=threads, put=lambda pack, data: packs.append(bytes(data))
    )
    return delta, packs


def sample() -> tuple[Delta, bytes]:
    parent = make_bits(0)
    delta, [pack] = packed(move_bits(parent, 1), Held(Version(4), root_of(parent), parent), 100)
    return delta.model_copy(update={"time": 1.5}), pack  # the same bytes whenever it is made


def test_root_by_its_definition() -> None:
    bits = {"b": np.array([[1, 2], [3, 0x8000]], np.uint16), "a": np.array(7, np.uint16)}
    digest_a = blake3.blake3(b"\x07\x00").digest()
    digest_b = blake3.blake3(b"\x01\x00\x02\x00\x03\x00\x00\x80").digest()
    expected = blake3.blake3(b"a\0bf16\0\0" + digest_a + b"b\0bf16\x002,2\0" + digest_b).hexdigest()
    assert root_of(bits) == expected
    assert root_of(dict(reversed(bits.items()))) == expected


def test_root_sees_names_shapes_and_every_bit() -> None:
    array = np.arange(6, dtype=np.uint16)
    flipped = array.copy()
    flipped[3] ^= 0x8000  # 3 and its negation
    variants = [{"w": array}, {"v": array}, {"w": array.reshape(2, 3)}, {"w": array.reshape(3, 2)}, {"w": flipped}]
    assert len({root_of(variant) for variant in variants}) == len(variants)
    assert root_of({"w": array.reshape(2, 3).T.copy().T}) == root_of(
        {"w": array.reshape(2, 3)}
    )  # memory order is nothing


def test_dump_and_load() -> None:
    delta, _ = sample()
    assert load(dump(delta), "here") == delta


@given(data=st.data())
@settings(max_examples=often(75, 300))
def test_damaged_bytes(data: st.DataObject) -> None:
    """Any damage to the bytes is noticed: the frame carries a checksum."""
    delta, _ = sample()
    good = dump(delta)
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(WeightError):
        assert load(bytes(bad), "here") == delta
    with pytest.raises(WeightError, match="here"):
        load(good[: data.draw(st.integers(0, len(good) - 1))], "here")


def first_chunk(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["tensors"][0]["chunks"][0]


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "other format": lambda m: m.update(format="etude-weights/2"),
    "chain of another length": lambda m: m.update(chain="ab"),
    "unknown key": lambda m: m.update(extra=1),
    "missing key": lambda m: m.pop("packs"),
    "parent without root": lambda m: m.update(parent_root=None),
    "parent after child": lambda m: m.update(parent=5),
    "negative version": lambda m: m.update(version=-1),
    "version as text": lambda m: m.update(version="5"),
    "no tensors": lambda m: m.update(tensors=[]),
    "another root": lambda m: m.update(root="0" * 64),
    "another parent root": lambda m: m.update(parent_root="0" * 64),
    "a tensor of another parent": lambda m: m["tensors"][0].update(parent_hash="0" * 64),
    "a tensor without parent": lambda m: m["tensors"][0].update(parent_hash=None),
    "no time": lambda m: m.update(time=float("nan")),
    "no packs": lambda m: m.update(packs=[]),
    "a pack nobody uses": lambda m: m["packs"].append({"hash": "0" * 64, "size": 1}),
    "a pack that is not there": lambda m: m["tensors"][0].update(pack=1),
    "a tensor twice": lambda m: m["tensors"].append(m["tensors"][-1]),
    "tensors out of order": lambda m: m["tensors"].reverse(),
    "larger shape": lambda m: m["tensors"][0].update(shape=[1 << 40, 1 << 20]),
    "form unknown": lambda m: m["tensors"][0].update(dtype="fp64"),
    "another form": lambda m: m["tensors"][0].update(dtype="fp32"),
    "negative shape": lambda m: m["tensors"][0].update(shape=[-64, -16]),
    "renamed": lambda m: m["tensors"][0].update(name="a\0b"),
    "chunk outside the pack": lambda m: first_chunk(m).update(offset=1 << 40),
    "larger chunk": lambda m: first_chunk(m).update(size=first_chunk(m)["size"] + 1),
    "gap between chunks": lambda m: first_chunk(m).update(stop=99),
    "endless chunk": lambda m: first_chunk(m).update(stop=1 << 62),
    "more changes than elements": lambda m: first_chunk(m).update(changed=101),
    "hash of another length": lambda m: first_chunk(m).update(hash="ab"),
    "float size": lambda m: m["packs"][0].update(size=1.5),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_fields(forgery: str) -> None:
    delta, _ = sample()
    manifest = json.loads(delta.model_dump_json())
    FORGERIES[forgery](manifest)
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(json.dumps(manifest).encode())
    with pytest.raises(WeightError, match="here"):
        load(frame, "here")


@pytest.mark.parametrize("shape", [(1 << 50,), (0, 1 << 62, 1 << 62)])
def test_sizes_are_checked_before_memory_is_taken(shape: tuple[int, ...]) -> None:
    delta, _ = sample()
    huge = delta.model_copy(update={"tensors": (delta.tensors[0].model_copy(update={"shape": shape}),)})
    with pytest.raises(WeightError, match=r"more memory|does not fit this machine"):
        zeros_for(huge, 1 << 40)


@pytest.mark.parametrize("chunk_elements", [1, 7, 100, 1 << 20])
def test_delta_round_trip_at_any_chunk_size(chunk_elements: int) -> None:
    parent = make_bits(3)
    new = move_bits(parent, 4)
    held = Held(Version(0), root_of(parent), parent)
    delta, [pack] = packed(new, held, chunk_elements)
    assert packed(new, held, chunk_elements, threads=3)[1] == [pack]
    assert [len(pack)] == [stored.size for stored in delta.packs]
    assert len(pack) == delta.payload_bytes
    assert delta.changed == sum(np.count_nonzero(parent[name] != new[name]) for name in new)
    apply_delta(
        delta, {tensor.name: memoryview(pack)[slice(*tensor.span)] for tensor in delta.tensors}, parent, threads=2
    )
    assert root_of(parent) == delta.root == root_of(new)
