"""A few seconds of the fuzzer on the way, and that it would notice."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fuzzing import Broken, Fuzzer

from etude.weights import codecs, signing
from etude.weights.subscriber import Subscriber


def test_seconds_of_hostile_input() -> None:
    fuzzer = Fuzzer(1)
    fuzzer.run(60, last=400)
    kinds = {kind.__name__ for kind in fuzzer.kinds}
    assert all(fuzzer.counts[kind] >= 5 for kind in kinds), fuzzer.counts
    assert all(fuzzer.counts[f"{kind}_refused"] for kind in kinds - {"invented", "pin"}), fuzzer.counts
    assert fuzzer.counts["store_refused"] < fuzzer.counts["store"]  # some damage is gone round


def test_a_case_is_repeated_by_its_number() -> None:
    counts = []
    for _ in range(2):
        fuzzer = Fuzzer(2)
        fuzzer.run(60, last=60)
        counts.append(fuzzer.counts)
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "flaw", ["decoder writes beside", "signature passes", "hash is not looked at", "another error"]
)
def test_the_fuzzer_notices(monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    """Each of these holes in what is tested is found within seconds."""
    fuzzer = Fuzzer(3)
    if flaw == "decoder writes beside":

        def beside(payload: memoryview, chunk: np.ndarray) -> None:
            np.ndarray(chunk.nbytes + 1, np.uint8, chunk.base, offset=64)[-1:] = 7

        monkeypatch.setattr(codecs, "apply", beside)
        kinds = [fuzzer.payload]
    elif flaw == "signature passes":
        monkeypatch.setattr(signing, "_verified", lambda *arguments: True)
        kinds = [fuzzer.envelope]
    elif flaw == "hash is not looked at":
        monkeypatch.setattr("etude.weights.chain._damage", lambda *arguments: None)
        monkeypatch.setattr("etude.weights.delta.hash_of", lambda data: _Anything())
        monkeypatch.setattr(Subscriber, "_root", lambda self, bits: _Anything())
        kinds = [fuzzer.store]
    else:
        monkeypatch.setattr("etude.weights.codecs.zstandard.ZstdError", KeyError)
        kinds = [fuzzer.payload]
    fuzzer.kinds = [*kinds]
    with pytest.raises(Broken, match=r"case \d+ \(seed 3, "):
        fuzzer.run(60, last=5000)


class _Anything(str):
    """Equal to every hash."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


def test_mutations_are_drawn_from_the_case_alone() -> None:
    from fuzzing import Mutator

    data = bytes(range(200))
    assert Mutator(random.Random(5)).bytes(data) == Mutator(random.Random(5)).bytes(data)
    trees = [Mutator(random.Random(seed)).json({"a": [1, "b", {"c": None}]}) for seed in range(50)]
    assert len({repr(tree) for tree in trees}) > 20
