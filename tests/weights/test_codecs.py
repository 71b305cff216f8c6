"""Every codec gives back every bit pattern, and no payload can make a decoder crash, over-write or over-allocate."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from etude.errors import WeightError
from etude.weights import codecs, range_coder, rice
from etude.weights.codecs import Codec
from etude.weights.forms import FORMS

OF_BF16 = [codec for codec in Codec if codec.of(FORMS["bf16"])]
SAYS_ANYTHING = [Codec.RAW, Codec.XOR_ZSTD, Codec.RICE, Codec.RANGE]
# zeros, subnormals, infinities, quiet and signalling NaNs with payloads, largest finite, both signs
ODD = [0, 0x8000, 1, 0x8001, 0x7F80, 0xFF80, 0x7FC0, 0xFFC0, 0x7F81, 0xFFFF, 0x7FFF, 0x7F7F, 0xFF7F, 0x3F80]
PATTERNS = st.one_of(st.sampled_from(ODD), st.integers(0, 0xFFFF))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """(parent, new): new is arbitrary, or the parent with some elements replaced, or stepped by a little."""
    size = draw(st.integers(0, 300))
    arrays = hnp.arrays(np.uint16, size, elements=PATTERNS)
    parent, other = draw(arrays), draw(arrays)
    kept = draw(hnp.arrays(np.bool_, size)) if draw(st.booleans()) else np.zeros(size, bool)
    if draw(st.booleans()):
        other = parent + draw(hnp.arrays(np.uint16, size, elements=st.sampled_from([1, 2, 3, 0xFFFF, 0xFFFE])))
    return parent, np.where(kept, parent, other).astype(np.uint16)


def decoded(payload: bytes, parent: np.ndarray) -> np.ndarray:
    chunk = parent.copy()
    codecs.apply(memoryview(payload), chunk)
    return chunk


@pytest.mark.parametrize("codec", SAYS_ANYTHING)
@given(pair=pairs())
@settings(max_examples=150, deadline=None)
def test_round_trip(codec: Codec, pair: tuple[np.ndarray, np.ndarray]) -> None:
    parent, new = pair
    payload = codecs.encode_with(codec, new, parent)
    assert payload[0] == codec
    np.testing.assert_array_equal(decoded(payload, parent), new)


@given(pair=pairs())
@settings(max_examples=200, deadline=None)
def test_the_smallest_wins(pair: tuple[np.ndarray, np.ndarray]) -> None:
    parent, new = pair
    encoded = codecs.encode(new, parent)
    np.testing.assert_array_equal(decoded(encoded.payload, parent), new)
    assert encoded.changed == np.count_nonzero(parent != new)
    assert encoded.payload[0] == encoded.codec
    assert len(encoded.payload) <= min(len(codecs.encode_with(codec, new, parent)) for codec in SAYS_ANYTHING)
    assert (encoded.codec is Codec.EMPTY) == (encoded.changed == 0)


@pytest.mark.parametrize("codec", SAYS_ANYTHING)
def test_each_of_the_65536_patterns_changes_into_others(codec: Codec) -> None:
    rng = np.random.default_rng(0)
    for parent in (np.arange(1 << 16, dtype=np.uint16), rng.permutation(1 << 16).astype(np.uint16)):
        new = rng.permutation(1 << 16).astype(np.uint16)
        np.testing.assert_array_equal(decoded(codecs.encode_with(codec, new, parent), parent), new)


def test_a_gap_longer_than_a_word_of_zeros() -> None:
    parent = np.zeros(3_000_000, np.uint16)
    new = parent.copy()
    new[-1] = 5  # at the largest Rice parameter, 91 zeros come first
    np.testing.assert_array_equal(decoded(codecs.encode_with(Codec.RICE, new, parent), parent), new)


def an_update(share: float, elements: int = 1 << 20) -> tuple[np.ndarray, np.ndarray]:
    """(parent, new): normal bf16 weights whose fp32 masters all move by about the same, so that `share` change."""
    rng = np.random.default_rng(1)
    master = rng.normal(0, 0.02, elements).astype(np.float32)
    step = (rng.normal(size=elements) * 2.83e-5 * share).astype(np.float32)
    rounded = [((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
               for bits in (master.view(np.uint32), (master + step).view(np.uint32))]  # fmt: skip
    return rounded[0], rounded[1]


def bound_given_exponents(new: np.ndarray, parent: np.ndarray) -> float:
    """Bits that no coder can go below which treats weights of one old exponent alike and apart from each other."""
    steps = np.array([rice.ordered.py_func(b) - rice.ordered.py_func(a) for a, b in zip(parent, new, strict=True)])
    bits = 0.0
    for exponent in np.unique(parent >> 7 & 255):
        counts = np.unique(steps[parent >> 7 & 255 == exponent], return_counts=True)[1]
        bits -= (counts * np.log2(counts / counts.sum())).sum()
    return bits


@pytest.mark.parametrize("share", [0.015, 0.02, 0.04])
def test_bits_a_change(share: float) -> None:
    """The goals: Rice at most 10 bits a changed weight; the range coder 7, and 5% over its bound."""
    parent, new = an_update(share)
    changed = int(np.count_nonzero(parent != new))
    assert 0.5 * share < changed / parent.size < 2 * share
    rice_bits, range_bits = (8 * len(codecs.encode_with(codec, new, parent)) for codec in (Codec.RICE, Codec.RANGE))
    assert rice_bits <= 10 * changed
    assert range_bits <= 7 * changed
    bound = bound_given_exponents(new, parent)
    assert bound <= range_bits <= 1.05 * bound
    assert codecs.encode(new, parent).codec is Codec.RANGE
    assert codecs.encode(new, parent, "fast").codec is Codec.RICE


# --- the format, as its documentation says it -------------------------------------------------------------------------


def read_by_the_documentation(stream: bytes, parent: np.ndarray) -> np.ndarray:
    """A second decoder, one bit at a time, written from the docstring of `rice`."""
    changes, k, g = struct.unpack_from("<IBB", stream)
    bits = [byte >> i & 1 for byte in stream[6:] for i in range(8)]

    def number(width: int) -> int:
        return sum(bits.pop(0) << i for i in range(width))

    def zeros() -> int:
        count = 0
        while not bits.pop(0):
            count += 1
        return count

    new, position = parent.copy(), -1
    for _ in range(changes):
        gap = zeros() << k
        gap |= number(k)
        falls = number(1)
        b = zeros()
        v = 1 << b | number(b)
        step = ((v - 1) << g | number(g)) + 1
        position += gap + 1
        x = int(parent[position])
        ordered = (x if x < 0x8000 else -(x & 0x7FFF) - 1) + (-step if falls else step)
        new[position] = ordered if ordered >= 0 else 0x8000 | -(ordered + 1)
    assert not any(bits)
    assert len(bits) < 8
    return new


@given(pair=pairs())
@settings(max_examples=60, deadline=None)
def test_rice_is_as_documented(pair: tuple[np.ndarray, np.ndarray]) -> None:
    parent, new = pair
    payload = codecs.encode_with(Codec.RICE, new, parent)
    np.testing.assert_array_equal(read_by_the_documentation(payload[1:], parent), new)


def test_rice_golden_bytes() -> None:
    """Element 1 rises by one, element 3 falls by three: two gaps of 1 at k = 0; steps 1 and 3 at g = 0."""
    parent = np.array([9, 9, 9, 9, 9], np.uint16)
    new = np.array([9, 10, 9, 6, 9], np.uint16)
    # gap 1: 0 1 | rises: 0 | v=1: 1 || gap 1: 0 1 | falls: 1 | v=3: 0 1 1 -> 01 0 1 01 1 0 | 11, lowest bit first
    assert codecs.encode_with(Codec.RICE, new, parent).hex() == "030200000000006a03"


class Reader:
    """The range decoder in whole numbers of any size, written from the docstring of `range_coder`."""

    def __init__(self, words: list[int]) -> None:
        self.words = [*words, 0]
        self.code, self.width = self.words.pop(0) << 32 | self.words.pop(0), (1 << 64) - 1
        self.contexts: dict[tuple[object, int], tuple[int, int]] = {}

    def bit(self, share: int) -> int:
        bound = (self.width >> 16) * share
        bit = int(self.code >= bound)
        self.code, self.width = (self.code - bound, self.width - bound) if bit else (self.code, bound)
        if self.width < 1 << 32:
            self.code, self.width = self.code << 32 | self.words.pop(0), self.width << 32
        return bit

    def adaptive(self, kind: object, index: int) -> int:
        share, n = self.contexts.get((kind, index), (32768, 0))
        bit = self.bit(share)
        moved = share + ((0 if bit else 65536) - share) // (n + 2)
        self.contexts[kind, index] = min(max(moved, 64), 65472), min(n + 1, 62)
        return bit

    def step(self, which: int) -> int:
        falls, t = self.adaptive(which, 4), 0
        while t < 4 and self.adaptive(which, t):
            t += 1
        if t == 4:
            b = 0
            while self.adaptive("gamma", b):
                b += 1
            v = 1
            for _ in range(b):
                v = 2 * v + self.bit(32768)
            t = v + 3
        return -(t + 1) if falls else t + 1


def range_read_by_the_documentation(stream: bytes, parent: np.ndarray) -> np.ndarray:
    changes, shift, classes = struct.unpack_from("<IBH", stream)
    shares = dict(zip(stream[7 : 7 + classes], struct.unpack_from(f"<{classes}H", stream, 7 + classes), strict=True))
    if changes == 0:
        assert len(stream) == 7
        return parent.copy()
    reader = Reader([word for (word,) in struct.iter_unpack("<I", stream[7 + 3 * classes :])])
    new, found = parent.copy(), 0
    for i, old in enumerate(map(int, parent)):
        which = old >> shift & 255
        if which in shares and reader.bit(shares[which]):
            value = int(rice.ordered.py_func(old)) + reader.step(which)
            new[i], found = rice.patterned.py_func(value), found + 1
    assert found == changes
    assert reader.words == []
    return new


@given(pair=pairs(), shift=st.integers(0, 15))
@settings(max_examples=100, deadline=None)
def test_range_coder_is_as_documented(pair: tuple[np.ndarray, np.ndarray], shift: int) -> None:
    parent, new = pair
    _, stream = range_coder.encode(new, parent, range_coder.most_bytes(new.size), shift)
    assert stream is not None
    np.testing.assert_array_equal(range_read_by_the_documentation(stream, parent), new)
    np.testing.assert_array_equal(decoded(bytes([Codec.RANGE]) + stream, parent), new)


def test_a_carry_runs_through_words_of_ones() -> None:
    """Carries are rare: enough chunks that some travel further than one word, each read back."""
    rng = np.random.default_rng(3)
    parent = np.full(20_000, 0x3C10, np.uint16)
    for _ in range(100):
        new = np.where(rng.random(parent.size) < rng.random(), parent + rng.integers(0, 5, parent.size), parent)
        new = new.astype(np.uint16)
        np.testing.assert_array_equal(decoded(codecs.encode_with(Codec.RANGE, new, parent), parent), new)
    words = np.array([7, 0xFFFFFFFF, 0xFFFFFFFF, 0], np.uint32)
    assert range_coder._raise(np.uint64(1 << 63), np.uint64((1 << 63) + 5), 3, words) == 5
    np.testing.assert_array_equal(words, [8, 0, 0, 0])


# --- hostile payloads -------------------------------------------------------------------------------------------------


def survives(payload: bytes, parent: np.ndarray) -> None:
    """Decoding ends in WeightError or in some chunk, and never writes beside it."""
    arena = np.full(parent.size + 128, 0xABCD, np.uint16)
    arena[64:-64] = parent
    with contextlib.suppress(WeightError):
        codecs.apply(memoryview(payload), arena[64 : parent.size + 64])
    assert (arena[:64] == 0xABCD).all()
    assert (arena[-64:] == 0xABCD).all()


@given(pair=pairs(), codec=st.sampled_from(OF_BF16), data=st.data())
@settings(max_examples=400, deadline=None)
def test_mutated_payloads(pair: tuple[np.ndarray, np.ndarray], codec: Codec, data: st.DataObject) -> None:
    parent, new = pair
    payload = bytearray(codecs.encode_with(codec, parent if codec is Codec.EMPTY else new, parent))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    survives(bytes(payload) + data.draw(st.binary(max_size=3)), parent)


@given(stream=st.binary(max_size=80), codec=st.integers(0, 6), size=st.integers(0, 500))
@settings(max_examples=400, deadline=None)
def test_invented_payloads(stream: bytes, codec: int, size: int) -> None:
    survives(bytes([codec]) + stream, np.zeros(size, np.uint16))


@given(
    stream=st.binary(max_size=80),
    changes=st.integers(0, 600),
    k=st.integers(0, 15),
    g=st.integers(0, 15),
    size=st.integers(0, 500),
)
@settings(max_examples=400, deadline=None)
def test_invented_rice_streams(stream: bytes, changes: int, k: int, g: int, size: int) -> None:
    survives(bytes([Codec.RICE]) + struct.pack("<IBB", changes, k, g) + stream, np.zeros(size, np.uint16))


@given(
    stream=st.binary(max_size=80),
    changes=st.integers(0, 600),
    shift=st.integers(0, 17),
    table=st.dictionaries(st.integers(0, 255), st.integers(0, 65535), max_size=4),
    parent=hnp.arrays(np.uint16, st.integers(0, 500), elements=PATTERNS),
)
@settings(max_examples=400, deadline=None)
def test_invented_range_codes(
    stream: bytes, changes: int, shift: int, table: dict[int, int], parent: np.ndarray
) -> None:
    header = struct.pack("<IBH", changes, shift, len(table))
    listed = sorted(table)
    entries = bytes(listed) + struct.pack(f"<{len(listed)}H", *(table[which] for which in listed))
    survives(bytes([Codec.RANGE]) + header + entries + stream, parent)


@pytest.mark.parametrize("codec", OF_BF16)
def test_every_proper_prefix_and_every_extension_is_refused(codec: Codec) -> None:
    rng = np.random.default_rng(2)
    parent = rng.integers(0, 1 << 16, 200, np.uint16)
    new = parent if codec is Codec.EMPTY else np.where(rng.random(200) < 0.2, parent ^ 1, parent).astype(np.uint16)
    payload = codecs.encode_with(codec, new, parent)
    for wrong in [payload[:length] for length in range(len(payload))] + [payload + b"\0"]:
        with pytest.raises(WeightError):
            decoded(wrong, parent)


def test_claims_are_checked_before_memory_is_taken() -> None:
    chunk = np.zeros(10, np.uint16)
    claims_2_to_62 = bytes.fromhex("28b52ffd") + b"\xe0" + struct.pack("<Q", 1 << 62)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    for stream in (claims_2_to_62, bomb):
        with pytest.raises(WeightError, match="claims"):
            codecs.apply(memoryview(bytes([Codec.XOR_ZSTD]) + stream), chunk)
    with pytest.raises(WeightError, match="claims 4294967295 changes"):
        codecs.apply(memoryview(bytes([Codec.RICE]) + struct.pack("<IBB", 0xFFFFFFFF, 0, 0) + bytes(100)), chunk)
    with pytest.raises(WeightError, match="claims 4294967295 changes"):
        codecs.apply(memoryview(bytes([Codec.RANGE]) + struct.pack("<IBH", 0xFFFFFFFF, 7, 65535) + bytes(100)), chunk)


def test_unknown_codec_says_what_is_known() -> None:
    with pytest.raises(WeightError, match=r"codec 9 is unknown here .*3 rice"):
        codecs.apply(memoryview(b"\x09"), np.zeros(1, np.uint16))


def test_empty_cannot_express_a_change() -> None:
    with pytest.raises(WeightError, match="cannot express"):
        codecs.encode_with(Codec.EMPTY, np.ones(3, np.uint16), np.zeros(3, np.uint16))


def test_kernels_are_compiled_once_and_then_read_from_disk(tmp_path: os.PathLike[str]) -> None:
    """One compile of the machine code serves every later process."""
    script = (
        "from etude.weights import range_coder as a, rice as r\n"
        "print(*(len(f.stats.cache_hits) for f in (r._apply, r._write, a._apply, a._encode)))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert runs == ["0 0 0 0\n", "1 1 1 1\n"]
    assert len(rice._apply.signatures) == 1


FUZZ = """
import numpy as np, struct, sys
from etude.errors import WeightError
from etude.weights import range_coder, rice
rng = np.random.default_rng(0)
coder = {"rice": rice, "range_coder": range_coder}[sys.argv[1]]
refused = 0
for trial in range(20_000):
    parent = rng.integers(0, 1 << 16, rng.integers(1, 200), np.uint16)
    if trial % 3 == 0:
        parent[:] = 0x3C10
    if trial % 2:
        new = np.where(rng.random(parent.size) < rng.random(), parent + rng.integers(0, 9, parent.size), parent)
        _, stream = coder.encode(new.astype(np.uint16), parent, 1 << 20)
        stream = bytearray(stream)
        for _ in range(rng.integers(1, 4)):
            stream[rng.integers(len(stream))] = rng.integers(256)
    else:
        if coder is rice:
            head = struct.pack("<IBB", rng.integers(0, parent.size + 1), rng.integers(0, 16), rng.integers(0, 16))
        else:
            classes = np.unique(parent >> 7 & 255)[: rng.integers(0, 9)]
            head = struct.pack("<IBH", rng.integers(0, parent.size + 1), 7, classes.size)
            head += bytes(classes.tolist()) + rng.integers(0, 65536, classes.size, np.uint16).tobytes()
        stream = head + bytes(rng.integers(0, 4, 4 * rng.integers(0, 10), np.uint8))  # few ones: long runs of zeros
    try:
        coder.apply(memoryview(bytes(stream)), parent)
    except WeightError:
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("coder", ["rice", "range_coder"])
def test_no_index_leaves_its_array(coder: str, tmp_path: os.PathLike[str]) -> None:
    """The same kernels compiled with bounds checks, which make an over-read or over-write an IndexError."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_BOUNDSCHECK": "1"}
    command = [sys.executable, "-c", FUZZ, coder]
    fuzz = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert fuzz.returncode == 0, fuzz.stderr
    assert 5_000 < int(fuzz.stdout) < 20_000
