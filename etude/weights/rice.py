"""Codec R: the changed positions of a chunk and how far each value moved, in a few bits a change.

Owns the bit format and its numba kernels; knows nothing of files, hashes or versions. Both ways cost O(changes) after
one scan. A step of the optimizer moves most bf16 weights that change at all by exactly one unit in the last place, so
a change is written as the gap to the one before (Rice code) and a sign; the few that move further are listed behind,
with the size of their step (exponential Golomb code of order g; g = 0 is Elias gamma) on the integers that order bf16
values: x for x >= 0,
-(x & 0x7fff) - 1 below. That map is one to one on all 65,536 patterns, so NaN payloads, infinities and -0 travel like
any other value.

Payload, little endian: u16, from its lowest bit on 4 bits each of k, j and g and 2 bits each of c and f; the number of
changes in c + 1 bytes; far, how many of them move by more than 1, in f + 1 bytes; then bits, lowest first. Numbers are
Rice codes: x >> k zeros, a one, the low k bits of x. First, of every change: the unchanged elements since the one
before, with k; 1 bit, set when the value falls. Then, of every far one: the near ones since the last far one, with j;
with v = ((step - 2) >> g) + 1 of b + 1 bits: b zeros, a one, the low b bits of v, the low g bits of step - 2. The last
byte is filled with zeros. Near changes thus pay nothing for their size but to tell where far ones are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from etude.errors import WeightError

U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
I32 = npt.NDArray[np.int32]
MOST_HEAD = 2 + 4 + 4
"""Bytes before the bits, at most."""
MOST_K = 15
"""Largest parameter of a Rice code, and largest order g, as 4 bits hold it: a number but for its run of zeros then fits
a 64-bit word."""

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


@njit(types.int64(_I32_IN, types.uint32[::1], types.int32[::1]), cache=True, nogil=True)
def _find_far(steps, gaps, sizes):
    """Fill `gaps` with the near changes before every far one, and `sizes` with step - 1; returns how many."""
    found, last = 0, -1
    for i in range(steps.size):
        if abs(steps[i]) > 1:
            gaps[found], sizes[found] = i - last - 1, abs(steps[i]) - 1
            last, found = i, found + 1
    return found


@njit(types.int64[::1](_I32_IN), cache=True, nogil=True)
def _size_bits(sizes):
    """Bits that sizes from 1 on take for each order from 0 to MOST_K."""
    totals = np.zeros(MOST_K + 1, np.int64)
    for i in range(sizes.size):
        for g in range(MOST_K + 1):
            b = 63 - _leading_zeros(np.uint64(((sizes[i] - 1) >> g) + 1))
            totals[g] += 2 * np.int64(b) + 1 + g
    return totals


@njit(inline="always")
def _put(words, bit, value):
    """Or `value` into the zeroed stream at `bit`; the word behind the last one must exist."""
    at, shift = bit >> 6, np.uint64(bit & 63)
    words[at] |= value << shift
    words[at + 1] |= (value >> _ONE) >> (np.uint64(63) - shift)  # two shifts: one by 64 is undefined


@njit(inline="always")
def _put_rice(words, bit, number, k, tail):
    """A Rice code, and `tail`, what else of the word follows it; returns the bit behind the code."""
    bit += np.int64(number >> np.uint64(k))
    _put(words, bit, _ONE | (number & ((_ONE << np.uint64(k)) - _ONE)) << _ONE | tail << np.uint64(k + 1))
    return bit + k + 1


@njit(types.int64(_U32_IN, _I32_IN, types.int64, types.uint64[::1]), cache=True, nogil=True)
def _write(gaps, steps, k, words):
    """Write gap and sign of every change into the zeroed `words`; returns the bits used."""
    bit = np.int64(0)
    for i in range(gaps.size):
        bit = _put_rice(words, bit, np.uint64(gaps[i]), k, np.uint64(1 if steps[i] < 0 else 0)) + 1
    return bit


@njit(types.int64(_U32_IN, _I32_IN, types.int64, types.int64, types.uint64[::1], types.int64), cache=True, nogil=True)
def _write_far(gaps, sizes, j, g, words, bit):
    """Write the far changes from `bit` on; returns the bits used in all."""
    low_g = (_ONE << np.uint64(g)) - _ONE
    for i in range(gaps.size):
        bit = _put_rice(words, bit, np.uint64(gaps[i]), j, np.uint64(0))
        size = np.uint64(sizes[i] - 1)
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


@njit(inline="always")
def _read_zeros(words, bit, stream_bits):
    """How many zeros lie before the next one, and the bit behind that; a bit of -1 at the stream's end."""
    zeros = np.int64(0)
    window = _window(words, bit)
    while window == 0:
        zeros, bit = zeros + 64, bit + 64
        if bit >= stream_bits:
            return zeros, np.int64(-1)
        window = _window(words, bit)
    run = np.int64(_trailing_zeros(window))
    bit += run + 1
    return zeros + run, bit if bit <= stream_bits else np.int64(-1)


@njit(types.int64(_U64_IN, types.int64, types.int64, types.uint16[::1], types.uint32[::1]), cache=True, nogil=True)
def _apply(words, stream_bits, k, chunk, places):
    """Move every changed element by one, and note where: its position, and in bit 31 whether it falls. Returns the bits
    read, or -1 for a stream that no encoder wrote.

    `words` must hold three words more than `stream_bits`: a number is checked against the end of the stream once, and
    behind its run of zeros reads at most 64 bits further.
    """
    bit, position = np.int64(0), np.int64(-1)
    low_k = (_ONE << np.uint64(k)) - _ONE
    for i in range(places.size):
        zeros, bit = _read_zeros(words, bit, stream_bits)
        if bit < 0:
            return -1
        window = _window(words, bit)
        position += 1 + (zeros << k | np.int64(window & low_k))
        if position >= chunk.size:
            return -1
        falls = (window >> np.uint64(k)) & _ONE
        value = ordered(chunk[position]) + (-1 if falls else 1)
        if value < -0x8000 or value > 0x7FFF:
            return -1
        chunk[position] = patterned(value)
        places[i] = np.uint32(np.uint64(position) | falls << np.uint64(31))
        bit += k + 1
    return bit


@njit(
    types.int64(_U64_IN, types.int64, types.int64, types.int64, types.int64, types.int64, types.uint16[::1], _U32_IN),
    cache=True,
    nogil=True,
)
def _apply_far(words, stream_bits, bit, far, j, g, chunk, places):
    """Move the far ones among the changes at `places` the rest of their way; returns as `_apply` does."""
    low_j, low_g, at = (_ONE << np.uint64(j)) - _ONE, (_ONE << np.uint64(g)) - _ONE, np.int64(-1)
    for _ in range(far):
        zeros, bit = _read_zeros(words, bit, stream_bits)
        if bit < 0:
            return -1
        at += 1 + (zeros << j | np.int64(_window(words, bit) & low_j))
        bit += j
        window = _window(words, bit)
        b = _trailing_zeros(window)
        if b > np.uint64(16 - g) or at >= places.size:
            return -1
        window >>= b + _ONE
        v = _ONE << b | (window & ((_ONE << b) - _ONE))
        step = np.int64((v - _ONE) << np.uint64(g) | ((window >> b) & low_g)) + 1
        bit += 2 * np.int64(b) + 1 + g
        position = np.int64(places[at]) & 0x7FFFFFFF
        value = ordered(chunk[position]) + (-step if places[at] >> 31 else step)
        if value < -0x8000 or value > 0x7FFF:
            return -1
        chunk[position] = patterned(value)
    return bit


def encode(new: U16, parent: U16, less_than: int) -> tuple[int, bytes | None]:
    """How many elements changed, and the payload; None for one of `less_than` bytes or more, which is not written."""
    gaps, steps = np.empty(new.size, np.uint32), np.empty(new.size, np.int32)
    changes = _find_changes(new, parent, gaps, steps)
    return changes, pack(gaps[:changes], steps[:changes], new.size, less_than)


def pack(gaps: U32, steps: I32, elements: int, less_than: int) -> bytes | None:
    """The payload of these changes among so many elements: unchanged ones before each, and how far it moves."""
    changes = gaps.size
    far_gaps, sizes = np.empty(changes, np.uint32), np.empty(changes, np.int32)
    far = _find_far(steps, far_gaps, sizes)
    far_gaps, sizes = far_gaps[:far], sizes[:far]
    k, gap_bits = _best_parameter(gaps, elements - changes)
    j, far_bits = _best_parameter(far_gaps, changes - far)
    size_bits = _size_bits(sizes)
    g = int(size_bits.argmin())
    bits = gap_bits + changes + far_bits + int(size_bits[g])
    size = (bits + 7) // 8
    head = _head(changes, far, k, j, g)
    if len(head) + size >= less_than:
        return None
    words = np.zeros(bits // 64 + 2, np.uint64)
    written = _write_far(far_gaps, sizes, j, g, words, _write(gaps, steps, k, words))
    if written != bits:
        raise AssertionError(f"the Rice coder wrote {written} bits and had counted {bits}")
    return head + words.astype("<u8", copy=False).tobytes()[:size]


def _head(changes: int, far: int, k: int, j: int, g: int) -> bytes:
    counts = [count.to_bytes(max(1, (count.bit_length() + 7) // 8), "little") for count in (changes, far)]
    lengths = len(counts[0]) - 1 | (len(counts[1]) - 1) << 2
    return (k | j << 4 | g << 8 | lengths << 12).to_bytes(2, "little") + b"".join(counts)


def _read_head(payload: memoryview) -> tuple[int, int, int, int, int, int]:
    """changes, far, k, j, g, and where the bits begin."""
    packed = int.from_bytes(payload[:2], "little")
    middle = 3 + (packed >> 12 & 3)
    end = middle + 1 + (packed >> 14)
    if len(payload) < end:
        raise WeightError(f"Rice payload of {len(payload)} bytes is shorter than its header")
    changes, far = (int.from_bytes(part, "little") for part in (payload[2:middle], payload[middle:end]))
    return changes, far, packed & 15, packed >> 4 & 15, packed >> 8 & 15, end


def _best_parameter(gaps: U32, between: int) -> tuple[int, int]:
    """The Rice parameter for gaps that add up to about `between`, and the bits that they take."""
    if gaps.size == 0:
        return 0, 0
    guess = int(np.log2(max(1.0, 0.69 * between / gaps.size)))
    bits, k = min((int(_gap_bits(gaps, k)), k) for k in {min(max(guess + d, 0), MOST_K) for d in (-1, 0, 1)})
    return k, bits


def apply(payload: memoryview, chunk: U16) -> None:
    """Turn `chunk`, of less than 2^31 elements, from the parent's bits into the new ones, in place. Raises WeightError
    on a payload that no encoder wrote; `chunk` then holds garbage.
    """
    changes, far, k, j, g, begin = _read_head(payload)
    if changes > chunk.size or far > changes:
        claim = f"{changes} changes, {far} of them far (k={k}, j={j}, g={g})"
        raise WeightError(f"Rice payload claims {claim} of {chunk.size} elements")
    stream = np.frombuffer(payload[begin:], np.uint8)
    words = np.zeros(stream.size // 8 + 4, "<u8")
    words.view(np.uint8)[: stream.size] = stream
    places = np.empty(changes, np.uint32)
    bits = _apply(words, stream.size * 8, k, chunk, places)
    if bits >= 0:
        bits = _apply_far(words, stream.size * 8, bits, far, j, g, chunk, places)
    if bits < 0 or (bits + 7) // 8 != stream.size or (bits % 8 and int(stream[-1]) >> (bits % 8)):
        raise WeightError(f"Rice payload of {changes} changes is damaged: its bits do not add up")
