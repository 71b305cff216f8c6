"""Codec R: the changed positions of a chunk and how far each value moved, in a few bits a change.

Owns the bit format and its numba kernels; knows nothing of files, hashes or versions. Both ways cost O(changes) after
one scan. A step of the optimizer moves most bf16 weights that change at all by exactly one unit in the last place, so
a change is written as the gap to the one before (Rice code of parameter k), a sign, and the size of the step
(exponential Golomb code of order g; g = 0 is Elias gamma) on the integers that order bf16 values: x for x >= 0,
-(x & 0x7fff) - 1 below. That map is one to one on all 65,536 patterns, so NaN payloads, infinities and -0 travel like
any other value.

Payload, little endian: u32 changes; u8 k; u8 g; then bits, lowest first. A change is: gap >> k zeros, a one, the low k
bits of the gap; 1 bit, set when the value falls; with v = ((step - 1) >> g) + 1 of b + 1 bits: b zeros, a one, the low
b bits of v, the low g bits of step - 1. The last byte is filled with zeros. Gaps count the unchanged elements in
between.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from etude.errors import WeightError

U16 = npt.NDArray[np.uint16]
HEADER = struct.Struct("<IBB")
MOST_K = 15
"""Largest Rice parameter, and largest order g: a change but for its run of zeros then fits one 64-bit word."""

_U8_IN = types.Array(types.uint8, 1, "C", readonly=True)
_U16_IN = types.Array(types.uint16, 1, "C", readonly=True)
_U32_IN = types.Array(types.uint32, 1, "C", readonly=True)
_U64_IN = types.Array(types.uint64, 1, "C", readonly=True)
_I32_IN = types.Array(types.int32, 1, "C", readonly=True)
_ONE = np.uint64(1)

# Signatures are given, so that a process loads compiled code from the cache on disk and never compiles a second variant
# (arrays over bytes are read-only, which is another type to numba).


def _count_zeros(instruction: str) -> Any:
    """A kernel function of one uint64, 64 for 0: zeros below its lowest set bit (cttz), or above its highest (ctlz)."""

    @intrinsic
    def count(typing_context, value):
        def generate(context, builder, signature, arguments):
            return getattr(builder, instruction)(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.uint64(types.uint64), generate

    return count


_trailing_zeros, _leading_zeros = _count_zeros("cttz"), _count_zeros("ctlz")


@njit(inline="always")
def ordered(bits):
    """The place of a bf16 pattern among all, by value: a step is a difference of two of these."""
    value = np.int32(bits)
    return value if value < 0x8000 else -(value & 0x7FFF) - 1


@njit(inline="always")
def patterned(value):
    """The bf16 pattern in that place: the inverse of `ordered`."""
    return np.uint16(value if value >= 0 else 0x8000 | -(value + 1))


@njit(types.int64(_U16_IN, _U16_IN, types.uint32[::1], types.int32[::1]), cache=True, nogil=True)
def _find_changes(new, parent, gaps, steps):
    """Fill `gaps` and `steps` with every change; returns how many."""
    found = 0
    last = -1
    for i in range(new.size):
        if new[i] != parent[i]:
            gaps[found] = i - last - 1
            steps[found] = ordered(new[i]) - ordered(parent[i])
            last = i
            found += 1
    return found


@njit(types.int64(_U32_IN, types.int64), cache=True, nogil=True)
def _gap_bits(gaps, k):
    total = gaps.size * (k + 1)
    for i in range(gaps.size):
        total += np.int64(gaps[i]) >> k
    return total


@njit(types.int64[::1](_I32_IN), cache=True, nogil=True)
def _step_bits(steps):
    """Bits that the steps take, without signs, for each order from 0 to MOST_K."""
    counts = np.zeros(65536, np.int64)
    for i in range(steps.size):
        counts[abs(steps[i])] += 1
    totals = np.zeros(MOST_K + 1, np.int64)
    for size in range(1, 65536):
        if counts[size]:
            for g in range(MOST_K + 1):
                b = 63 - _leading_zeros(np.uint64(((size - 1) >> g) + 1))
                totals[g] += counts[size] * (2 * np.int64(b) + 1 + g)
    return totals


@njit(inline="always")
def _put(words, bit, value):
    """Or `value` into the zeroed stream at `bit`; the word behind the last one must exist."""
    at, shift = bit >> 6, np.uint64(bit & 63)
    words[at] |= value << shift
    words[at + 1] |= (value >> _ONE) >> (np.uint64(63) - shift)  # two shifts: one by 64 is undefined


@njit(types.int64(_U32_IN, _I32_IN, types.int64, types.int64, types.uint64[::1]), cache=True, nogil=True)
def _write(gaps, steps, k, g, words):
    """Write every change into the zeroed `words`; returns the bits used."""
    bit = np.int64(0)
    low_k, low_g = (_ONE << np.uint64(k)) - _ONE, (_ONE << np.uint64(g)) - _ONE
    for i in range(gaps.size):
        gap, step = np.uint64(gaps[i]), steps[i]
        falls = np.uint64(1 if step < 0 else 0)
        bit += np.int64(gap >> np.uint64(k))
        _put(words, bit, _ONE | (gap & low_k) << _ONE | falls << np.uint64(k + 1))
        bit += k + 2
        size = np.uint64(abs(step) - 1)
        v = (size >> np.uint64(g)) + _ONE
        b = np.uint64(63) - _leading_zeros(v)
        bit += np.int64(b)
        _put(words, bit, _ONE | (v ^ (_ONE << b)) << _ONE | (size & low_g) << (b + _ONE))
        bit += np.int64(b) + 1 + g
    return bit


@njit(inline="always")
def _window(words, bit):
    """The 64 bits from `bit` on."""
    at, shift = bit >> 6, np.uint64(bit & 63)
    return words[at] >> shift | (words[at + 1] << _ONE) << (np.uint64(63) - shift)


@njit(
    types.int64(_U64_IN, types.int64, types.int64, types.int64, types.int64, types.uint16[::1]), cache=True, nogil=True
)
def _apply(words, stream_bits, changes, k, g, chunk):
    """Apply `changes` to `chunk` in place; returns the bits read, or -1 for a stream that no encoder wrote.

    `words` must hold three words more than `stream_bits`: a change is checked against the end of the stream once, and
    behind its run of zeros reads at most 64 bits further.
    """
    bit, position = np.int64(0), np.int64(-1)
    low_k, low_g = (_ONE << np.uint64(k)) - _ONE, (_ONE << np.uint64(g)) - _ONE
    for _ in range(changes):
        zeros = np.int64(0)
        window = _window(words, bit)
        while window == 0:
            zeros, bit = zeros + 64, bit + 64
            if bit >= stream_bits:
                return -1
            window = _window(words, bit)
        run = np.int64(_trailing_zeros(window))
        zeros, bit = zeros + run, bit + run + 1
        if bit > stream_bits:
            return -1
        window = _window(words, bit)
        position += 1 + (zeros << k | np.int64(window & low_k))
        falls = (window >> np.uint64(k)) & _ONE
        window >>= np.uint64(k + 1)
        b = _trailing_zeros(window)
        if b > np.uint64(16 - g) or position >= chunk.size:
            return -1
        v = (window >> (b + _ONE)) & ((_ONE << b) - _ONE) | _ONE << b
        low = (window >> (b + b + _ONE)) & low_g
        size = np.int64((v - _ONE) << np.uint64(g) | low) + 1
        bit += k + 2 + 2 * np.int64(b) + g
        value = np.int64(ordered(chunk[position])) + (-size if falls else size)
        if value < -0x8000 or value > 0x7FFF:
            return -1
        chunk[position] = patterned(value)
    return bit


def encode(new: U16, parent: U16, less_than: int) -> tuple[int, bytes | None]:
    """How many elements changed, and the payload; None for one of `less_than` bytes or more, which is not written."""
    gaps, steps = np.empty(new.size, np.uint32), np.empty(new.size, np.int32)
    changes = _find_changes(new, parent, gaps, steps)
    gaps, steps = gaps[:changes], steps[:changes]
    if changes == 0:
        return 0, HEADER.pack(0, 0, 0)
    guess = max(0, int(np.log2(max(1.0, 0.69 * (new.size - changes) / changes))))
    gap_bits, k = min((int(_gap_bits(gaps, k)), k) for k in {min(max(guess + d, 0), MOST_K) for d in (-1, 0, 1)})
    step_bits = _step_bits(steps)
    g = int(step_bits.argmin())
    bits = gap_bits + changes + int(step_bits[g])
    size = (bits + 7) // 8
    if HEADER.size + size >= less_than:
        return changes, None
    words = np.zeros(bits // 64 + 2, np.uint64)
    written = _write(gaps, steps, k, g, words)
    if written != bits:
        raise AssertionError(f"the Rice coder wrote {written} bits and had counted {bits}")
    return changes, HEADER.pack(changes, k, g) + words.astype("<u8", copy=False).tobytes()[:size]


def apply(payload: memoryview, chunk: U16) -> None:
    """Turn `chunk` from the parent's bits into the new ones, in place. Raises WeightError on a payload that no encoder
    wrote; `chunk` then holds garbage.
    """
    if len(payload) < HEADER.size:
        raise WeightError(f"Rice payload of {len(payload)} bytes is shorter than its header")
    changes, k, g = HEADER.unpack_from(payload)
    if changes > chunk.size or k > MOST_K or g > MOST_K:
        raise WeightError(f"Rice payload claims {changes} changes (k={k}, g={g}) of {chunk.size} elements")
    stream = np.frombuffer(payload, np.uint8, offset=HEADER.size)
    words = np.zeros(stream.size // 8 + 4, "<u8")
    words.view(np.uint8)[: stream.size] = stream
    bits = _apply(words, stream.size * 8, changes, k, g, chunk)
    if bits < 0 or (bits + 7) // 8 != stream.size or (bits % 8 and int(stream[-1]) >> (bits % 8)):
        raise WeightError(f"Rice payload of {changes} changes is damaged: its bits do not add up")
