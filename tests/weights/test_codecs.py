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
from proofs import often, one_of_each

from etude.errors import WeightError
from etude.weights import codecs, range_coder, rice, whole
from etude.weights.codecs import Codec
from etude.weights.forms import FORMS

OF_BF16 = [codec for codec in Codec if codec.of(FORMS["bf16"])]
SAYS_ANYTHING = [Codec.RAW, Codec.XOR_ZSTD, Codec.RICE, Codec.RANGE, Codec.WHOLE]
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
    codecs.apply(memoryview(payload), chunk := parent.copy())
    return chunk


@pytest.mark.parametrize("codec", SAYS_ANYTHING)
@given(pair=pairs())
@settings(max_examples=often(50, 150))
def test_round_trip(codec: Codec, pair: tuple[np.ndarray, np.ndarray]) -> None:
    parent, new = pair
    payload = codecs.encode_with(codec, new, parent)
    assert payload[0] == codec
    np.testing.assert_array_equal(decoded(payload, parent), new)


@given(pair=pairs())
@settings(max_examples=often(60, 200))
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


@pytest.mark.parametrize("share", one_of_each(2.5, [0.02, 0.015, 0.04]))
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


def moved(pattern: int, step: int) -> int:
    """The bf16 pattern that lies so many places further."""
    value = (pattern if pattern < 0x8000 else -(pattern & 0x7FFF) - 1) + step
    return value if value >= 0 else 0x8000 | -(value + 1)


def rice_head(changes: int, far: int, k: int = 0, j: int = 0, g: int = 0) -> bytes:
    """With counts of four bytes, however small."""
    return struct.pack("<HII", k | j << 4 | g << 8 | 15 << 12, changes, far)


def read_by_the_documentation(stream: bytes, parent: np.ndarray) -> np.ndarray:
    """A second decoder, one bit at a time, written from the docstring of `rice`."""
    bits = [byte >> i & 1 for byte in stream for i in range(8)]

    def number(width: int) -> int:
        return sum(bits.pop(0) << i for i in range(width))

    def zeros() -> int:
        count = 0
        while not bits.pop(0):
            count += 1
        return count

    def rice_code(parameter: int) -> int:
        return zeros() << parameter | number(parameter)

    k, j, g, c, f = number(4), number(4), number(4), number(2), number(2)
    changes, far = number(8 * (c + 1)), number(8 * (f + 1))
    found, position, at = [], -1, -1
    for _ in range(changes):
        position += rice_code(k) + 1
        found.append([position, -1 if number(1) else 1])
    for _ in range(far):
        at += rice_code(j) + 1
        b = zeros()
        v = 1 << b | number(b)
        found[at][1] *= ((v - 1) << g | number(g)) + 2
    new = parent.copy()
    for position, step in found:
        new[position] = moved(int(parent[position]), step)
    assert not any(bits)
    assert len(bits) < 8
    return new


@given(pair=pairs())
@settings(max_examples=60)
def test_rice_is_as_documented(pair: tuple[np.ndarray, np.ndarray]) -> None:
    parent, new = pair
    payload = codecs.encode_with(Codec.RICE, new, parent)
    np.testing.assert_array_equal(read_by_the_documentation(payload[1:], parent), new)


def test_rice_golden_bytes() -> None:
    """Element 1 rises by one, element 3 falls by three: gaps of 1 at k = 0; the second is far, at j = 0, g = 1."""
    parent = np.array([9, 9, 9, 9, 9], np.uint16)
    new = np.array([9, 10, 9, 6, 9], np.uint16)
    # 0 1 0 (gap 1, rises) | 0 1 1 (gap 1, falls) || 0 1 (one near one before) | 1 (v = 1), 1 (the low bit of 3 - 2)
    assert codecs.encode_with(Codec.RICE, new, parent).hex() == "0600010201b203"


class Reader:
    """The range decoder in whole numbers of any size, written from the docstring of `range_coder`."""

    def __init__(self, stream: bytes) -> None:
        self.words = [int.from_bytes(stream[at : at + 4].ljust(4, b"\0"), "big") for at in range(0, len(stream), 4)]
        self.code, self.width = self.word() << 32 | self.word(), (1 << 64) - 1

    def word(self) -> int:
        return self.words.pop(0) if self.words else 0

    def shrink(self) -> None:
        if self.width < 1 << 32:
            self.code, self.width = self.code << 32 | self.word(), self.width << 32

    def bit(self, share: int) -> int:
        bound = (self.width >> 22) * share
        bit = int(self.code >= bound)
        self.code, self.width = (self.code - bound, self.width - bound) if bit else (self.code, bound)
        self.shrink()
        return bit


def share_of(ones: int, seen: int) -> int:
    return (1 << 22) - min(max((ones << 22) // seen, 1), (1 << 22) - 1)


class DeltaReader(Reader):
    def __init__(self, stream: bytes) -> None:
        (level,) = struct.unpack_from("<H", stream)
        super().__init__(stream[2:])
        self.level, self.counts, self.shares = level, {"sign": [32 * 256, 64 * 256]}, {}

    def gap(self, which: int) -> int:
        up = which - (self.level - 256) // 4
        gap = 1024 // (4 + self.level % 4)
        return gap << min(up, 40) if up >= 0 else gap >> min(-up, 62)

    def counted(self, counts: list[int]) -> int:
        bit = self.bit(share_of(*counts))
        counts[0], counts[1] = counts[0] + 256 * bit, counts[1] + 256
        return bit

    def size(self, which: int, i: int) -> int:
        g = min(self.gap(which) << max(i - 3, 0), 1 << 24)
        return self.counted(self.counts.setdefault((which, i), [max((1 << 22) // (2048 + g * g // 8), 1), 2048]))

    def changes(self, which: int) -> int:
        counts = self.counts.setdefault(which, [1536, 1536 + max(6 * self.gap(which), 256)])
        share, pause, passed = self.shares.get(which) or (share_of(*counts), 16 + (counts[1] >> 12), 0)
        bit = self.bit(share)
        self.shares[which] = share, pause, passed + 1
        if bit or passed + 1 == pause:
            counts[0], counts[1] = counts[0] + 256 * bit, counts[1] + 256 * (passed + 1)
            del self.shares[which]
        return bit

    def step(self, which: int) -> int:
        falls, t = self.counted(self.counts["sign"]), 0
        while t < 4 and self.size(which, t):
            t += 1
        if t == 4:
            b, v = 0, 1
            while self.size(which, 4 + b):
                b += 1
            for _ in range(b):
                v = 2 * v + self.bit(1 << 21)
            t = v + 3
        return -(t + 1) if falls else t + 1


def range_read_by_the_documentation(stream: bytes, parent: np.ndarray, shift: int) -> np.ndarray:
    reader, new = DeltaReader(stream), parent.copy()
    for i, old in enumerate(map(int, parent)):
        which = old >> shift & 255
        if reader.changes(which):
            new[i] = moved(old, reader.step(which))
    assert not any(reader.words)
    return new


@given(pair=pairs(), shift=st.integers(0, 15))
@settings(max_examples=100)
def test_range_coder_is_as_documented(pair: tuple[np.ndarray, np.ndarray], shift: int) -> None:
    parent, new = pair
    _, stream = range_coder.encode(new, parent, range_coder.most_bytes(new.size), shift)
    assert stream is not None
    np.testing.assert_array_equal(range_read_by_the_documentation(stream, parent, shift), new)
    chunk = parent.copy()
    range_coder.apply(memoryview(stream), chunk, shift)
    np.testing.assert_array_equal(chunk, new)


def whole_read_by_the_documentation(stream: bytes, size: int, shift: int) -> np.ndarray:
    (classes,) = struct.unpack_from("<H", stream)
    table = struct.unpack_from(f"<{classes}H", stream, 2)
    shares = [share + 1 for share in struct.unpack_from(f"<{classes}H", stream, 2 + 2 * classes)]
    (coded,) = struct.unpack_from("<I", stream, 2 + 4 * classes)
    reader = Reader(stream[6 + 4 * classes : 6 + 4 * classes + coded])
    rest = int.from_bytes(stream[6 + 4 * classes + coded :], "little")
    symbols = np.zeros(size, np.uint16)
    for i in range(size):
        at, below, part = 0, 0, reader.width >> 16
        while min(reader.code // part, 65535) >= below + shares[at]:
            at, below = at + 1, below + shares[at]
        reader.code, reader.width = reader.code - part * below, part * shares[at]
        reader.shrink()
        left = rest >> i * (shift + 1) & (1 << shift + 1) - 1
        symbols[i] = (left >> shift) << 15 | table[at] << shift | left & (1 << shift) - 1
    assert not any(reader.words)
    return symbols


@given(symbols=hnp.arrays(np.uint16, st.integers(0, 300), elements=PATTERNS), shift=st.integers(0, 15))
@settings(max_examples=60)
def test_whole_elements_are_as_documented(symbols: np.ndarray, shift: int) -> None:
    stream = whole.encode(symbols, whole.most_bytes(symbols.size), shift)
    assert stream is not None
    np.testing.assert_array_equal(whole_read_by_the_documentation(stream, symbols.size, shift), symbols)
    made = np.zeros_like(symbols)
    whole.apply(memoryview(stream), made, shift)
    np.testing.assert_array_equal(made, symbols)


def test_a_full_copy_takes_what_exponents_leave() -> None:
    """Normal weights have 10.4 bits of entropy; a full copy is coded in little more."""
    weights, _ = an_update(0.02)
    encoded = codecs.encode(weights, np.zeros_like(weights))
    assert encoded.codec is Codec.WHOLE
    assert 10.4 < 8 * len(encoded.payload) / weights.size < 10.55


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
@settings(max_examples=often(100, 400))
def test_mutated_payloads(pair: tuple[np.ndarray, np.ndarray], codec: Codec, data: st.DataObject) -> None:
    parent, new = pair
    payload = bytearray(codecs.encode_with(codec, parent if codec is Codec.EMPTY else new, parent))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    survives(bytes(payload) + data.draw(st.binary(max_size=3)), parent)


@given(stream=st.binary(max_size=80), codec=st.integers(0, 9), size=st.integers(0, 500))
@settings(max_examples=often(100, 400))
def test_invented_payloads(stream: bytes, codec: int, size: int) -> None:
    survives(bytes([codec]) + stream, np.zeros(size, np.uint16))


@given(
    stream=st.binary(max_size=80),
    changes=st.integers(0, 600),
    far=st.integers(0, 600),
    parameters=st.tuples(*[st.integers(0, 15)] * 3),
    size=st.integers(0, 500),
)
@settings(max_examples=often(100, 400))
def test_invented_rice_streams(
    stream: bytes, changes: int, far: int, parameters: tuple[int, int, int], size: int
) -> None:
    head = rice_head(changes, min(far, changes), *parameters)
    survives(bytes([Codec.RICE]) + head + stream, np.zeros(size, np.uint16))


@given(
    stream=st.binary(max_size=80),
    level=st.integers(0, 1600),
    parent=hnp.arrays(np.uint16, st.integers(0, 500), elements=PATTERNS),
)
@settings(max_examples=often(100, 400))
def test_invented_range_codes(stream: bytes, level: int, parent: np.ndarray) -> None:
    survives(bytes([Codec.RANGE]) + struct.pack("<H", level) + stream, parent)


@given(
    stream=st.binary(max_size=80),
    table=st.dictionaries(st.integers(0, 511), st.integers(1, 65535), min_size=1, max_size=4),
    coded=st.integers(0, 40),
    size=st.integers(0, 60),
)
@settings(max_examples=often(100, 400))
def test_invented_whole_elements(stream: bytes, table: dict[int, int], coded: int, size: int) -> None:
    listed = sorted(table)
    shares = [max(table[which] * 65536 // sum(table.values()), 1) for which in listed]
    shares[0] += 65536 - sum(shares)
    head = struct.pack(f"<H{2 * len(listed)}HI", len(listed), *listed, *(share - 1 for share in shares), coded)
    survives(bytes([Codec.WHOLE]) + head + stream, np.zeros(size, np.uint16))


@pytest.mark.parametrize("codec", OF_BF16)
def test_no_proper_prefix_and_no_extension_passes(codec: Codec) -> None:
    """A range code that was cut off goes on with zeros: it may decode, but never to what was encoded."""
    rng = np.random.default_rng(2)
    parent = rng.integers(0, 1 << 16, 200, np.uint16)
    new = parent if codec is Codec.EMPTY else np.where(rng.random(200) < 0.2, parent ^ 1, parent).astype(np.uint16)
    payload = codecs.encode_with(codec, new, parent)
    for wrong in [payload[:length] for length in range(len(payload))]:
        refused = pytest.raises(WeightError) if codec is not Codec.RANGE else contextlib.suppress(WeightError)
        with refused:
            assert not np.array_equal(decoded(wrong, parent), new)
    for longer in (payload + b"\0", payload + b"\1\2\3\4\5\6\7\10\11"):
        with pytest.raises(WeightError):
            decoded(longer, parent)


def test_claims_are_checked_before_memory_is_taken() -> None:
    chunk = np.zeros(10, np.uint16)
    claims_2_to_62 = bytes.fromhex("28b52ffd") + b"\xe0" + struct.pack("<Q", 1 << 62)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    for stream in (claims_2_to_62, bomb):
        with pytest.raises(WeightError, match="claims"):
            codecs.apply(memoryview(bytes([Codec.XOR_ZSTD]) + stream), chunk)
    for changes, far in ((0xFFFFFFFF, 0), (10, 0xFFFFFFFF)):
        with pytest.raises(WeightError, match=r"claims \d+ changes"):
            codecs.apply(memoryview(bytes([Codec.RICE]) + rice_head(changes, far) + bytes(100)), chunk)
    table = struct.pack("<HHHI", 1, 0, 0xFFFF, 0xFFFFFFFF)
    with pytest.raises(WeightError, match="claims 4294967295 for exponents"):
        codecs.apply(memoryview(bytes([Codec.WHOLE]) + table + bytes(100)), chunk)


def test_unknown_codec_says_what_is_known() -> None:
    with pytest.raises(WeightError, match=r"codec 9 is unknown here .*6 rice"):
        codecs.apply(memoryview(b"\x09"), np.zeros(1, np.uint16))


def test_empty_cannot_express_a_change() -> None:
    with pytest.raises(WeightError, match="cannot express"):
        codecs.encode_with(Codec.EMPTY, np.ones(3, np.uint16), np.zeros(3, np.uint16))


KERNELS = {"rice": ["_apply", "_write"], "range_coder": ["_apply", "_encode"], "whole": ["_decode"]}


@pytest.mark.parametrize("coder", one_of_each(7, KERNELS))
def test_kernels_are_compiled_once_and_then_read_from_disk(coder: str, tmp_path: os.PathLike[str]) -> None:
    """One compile of the machine code serves every later process."""
    hits = ", ".join(f"len(coder.{kernel}.stats.cache_hits)" for kernel in KERNELS[coder])
    command = [sys.executable, "-c", f"from etude.weights import {coder} as coder; print(sum([{hits}]))"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [subprocess.run(command, env=environment, capture_output=True, check=True).stdout for _ in range(2)]
    assert [int(run) for run in runs] == [0, len(KERNELS[coder])]
    assert len(rice._apply.signatures) == 1


FUZZ = """
import numpy as np, struct, sys
from etude.errors import WeightError
from etude.weights import range_coder, rice, whole
rng = np.random.default_rng(0)
coder = {"rice": rice, "range_coder": range_coder, "whole": whole}[sys.argv[1]]
def invented(size):
    if coder is rice:
        changes = rng.integers(0, size + 1)
        return struct.pack("<HII", 0xF000 | rng.integers(0, 1 << 12), changes, rng.integers(0, changes + 1))
    if coder is range_coder:
        return struct.pack("<H", rng.integers(0, 1536))
    share = int(rng.integers(1, 65535))
    return struct.pack("<HHHHHI", 2, 0x70, 0x7A, share - 1, 65535 - share, 4 * rng.integers(0, 3))
refused = 0
for trial in range(20_000):
    parent = rng.integers(0, 1 << 16, rng.integers(1, 200), np.uint16)
    if trial % 3 == 0:
        parent[:] = 0x3C10
    if trial % 2:
        new = np.where(rng.random(parent.size) < rng.random(), parent + rng.integers(0, 9, parent.size), parent)
        new = new.astype(np.uint16)
        stream = coder.encode(new, 1 << 20) if coder is whole else coder.encode(new, parent, 1 << 20)[1]
        stream = bytearray(stream)
        for _ in range(rng.integers(1, 4)):
            stream[rng.integers(len(stream))] = rng.integers(256)
    else:
        stream = invented(parent.size) + bytes(rng.integers(0, 4, 4 * rng.integers(0, 10), np.uint8))  # few ones
    try:
        coder.apply(memoryview(bytes(stream)), parent)
    except WeightError:
        refused += 1
print(refused)
"""


@pytest.mark.proof(7)
@pytest.mark.parametrize("coder", ["rice", "range_coder", "whole"])
def test_no_index_leaves_its_array(coder: str, tmp_path: os.PathLike[str]) -> None:
    """The same kernels compiled with bounds checks, which make an over-read or over-write an IndexError."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_BOUNDSCHECK": "1"}
    command = [sys.executable, "-c", FUZZ, coder]
    fuzz = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert fuzz.returncode == 0, fuzz.stderr
    assert 2_000 < int(fuzz.stdout) < 20_000
