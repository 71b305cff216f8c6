"""A version in several packs: whoever writes a large one holds little of it at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from weight_samples import same

from etude.records import Version
from etude.weights.inspect import verify
from etude.weights.opening import open_store
from etude.weights.publisher import Publisher
from etude.weights.store import Store
from etude.weights.subscriber import Subscriber

V = Version


def test_a_pack_holds_little_more_than_its_largest_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a model is: its packs are in the store before the manifest, and a reader puts them together."""
    monkeypatch.setattr("etude.weights.delta.LEAST_PACK", 100)
    chance = np.random.default_rng(3)
    first = {f"layer{number}": chance.integers(0, 1 << 16, 5000, np.uint16) for number in range(12)}
    second = {name: chance.integers(0, 1 << 16, 5000, np.uint16) for name in first}
    stored: list[tuple[str, int]] = []
    put = Store.put

    def counted(self: Store, key: str, data: bytes | bytearray, *, create: bool = False) -> bool:
        stored.append((key, len(data)))
        return put(self, key, data, create=create)

    monkeypatch.setattr(Store, "put", counted)
    publisher = Publisher(open_store(tmp_path))
    publisher.publish(V(0), first)
    publisher.publish(V(1), second)
    packs = [size for key, size in stored if key.endswith(".pack")]
    assert len(packs) >= 12 and max(packs) < 1.3 * first["layer0"].nbytes
    assert [key.endswith(".pack") for key, _ in stored if "00000001" in key] == [True] * (len(packs) // 2) + [False]
    for base in ((None, None), (first, V(0))):
        bits, _ = Subscriber(open_store(tmp_path)).fetch(*base, V(1))
        assert same(bits, second)
    assert verify(open_store(tmp_path)).ok
