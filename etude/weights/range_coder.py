"""Codec A: which elements of a chunk changed and how far, by a range coder that knows the old exponents.

Owns the bit format and its numba kernels; knows nothing of files, hashes or versions. An optimizer's step is about as
large for every weight, and the gap to the next bf16 value is not: it doubles with the exponent. So whether a weight
changes, and by how many units, hangs on its *old* exponent, which the receiver already has. Given the exponent the
changes are as good as independent. One number, `level`, says how large the step was; from it follow the chances for
every exponent at the start, and counting does the rest: no table travels, and small tensors cost little more than
their changes.

Payload: u16 level, little endian; words of 32 bits, the highest byte first, without the zero bytes at their end. An
element's class c is (old symbol >> shift) & 255, and which shift is the form's to say (`forms`): 7 for bf16, whose
classes are exponents. All chances start from the class's gap over the step, in units of 1 / 256: gap(c) = 1024 div
(4 + level mod 4), shifted left by d = c - (level - 256 div 4) bits, at most 40, or right by -d.

The words are one range code (Martin, 1979) of 64 bits that shifts by 32. Coder and decoder hold a range of at first
2^64 - 1. A bit of share s (of 2^22) splits it at bound = (range >> 22) * s: 0 keeps the part below, 1 the part above;
when the range has then fallen under 2^32, one word is shifted out and the range grows by 2^32. The last words are
those of the value in the final interval with the most zero bits at its end; bytes behind the stream's end count as 0.

Shares are made of two counts, of `ones` in `seen` bits, in units of 1 / 256: the share of a 0 is 2^22 - (ones * 2^22
div seen, kept within 1 and 2^22 - 1). A bit adds 256 to seen, a 1 to ones too. Every element codes "does it change?"
with its class's counts, at first ones = 1536 and seen = 1536 + max(6 * gap(c), 256). This share alone is not made anew
with each bit, but after each change, and when as many elements of the class have passed since as its pause was: 16 +
(seen >> 12). If the element changes, there follow the sign of its step (1: falls) with counts of the chunk's own, at
first 8192 and 16384; then, with t = |step| - 1, up to four bits "t > i" with counts of (c, i), ended by the first 0;
and after four ones v = t - 3 of b + 1 bits: b ones and a zero with counts of (c, 4), (c, 5), ..., and the low b bits of
v, highest first, of share 2^21. Counts of (c, i) start at seen = 2048 and ones = 2^22 div (2048 + g * g div 8), at
least 1, where g is gap(c), from i = 4 on shifted left by i - 3 bits, and at most 2^24. Steps are those of `rice`.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt
from numba import njit, types

from etude.errors import WeightError
from etude.weights.rice import ordered, patterned

U16 = npt.NDArray[np.uint16]
HEADER = struct.Struct("<H")
BF16_SHIFT = 7
MOST_LEVEL = 1535
_LEVEL_OF_ONE = 256
"""The level of a step as large as the gap of class 0; four levels are a doubling."""
_CLASSES, _SIZES, _MOST_GAMMA = 256, 20, 16
_SIGN = _CLASSES * (1 + _SIZES)
"""Where counts lie: of changes by class, of sizes by class and bit, of the sign."""
_MOST_WORDS_AN_ELEMENT = 32
"""A change takes at most 38 bits, none of which shrinks the range by more than 2^22."""

_U16_IN = types.Array(types.uint16, 1, "C", readonly=True)
_U32_IN = types.Array(types.uint32, 1, "C", readonly=True)
_COUNTS = types.int64[::1]
_BITS, _HALF, _LEAST = np.uint64(22), np.uint64(32), np.uint64(1 << 32)
_WHOLE, _EVEN = np.uint64((1 << 64) - 1), np.uint64(1 << 21)
_UNIT = 256
_TRUST = 6
"""How many changes the level's word counts for."""


@njit(types.void(_U16_IN, _U16_IN, types.int64, _COUNTS, _COUNTS), cache=True, nogil=True)
def _count(new, parent, shift, elements, changed):
    """Elements and changes of every class."""
    for i in range(new.size):
        which = (parent[i] >> shift) & 255
        elements[which] += 1
        changed[which] += new[i] != parent[i]


# --- chances ----------------------------------------------------------------------------------------------------------


@njit(nogil=True)
def _gap(level, which):
    """The class's gap between values over the step, in units of 1 / 256."""
    gap, doublings = 4 * _UNIT // (4 + level % 4), which - ((level - _LEVEL_OF_ONE) >> 2)
    return gap << min(doublings, 40) if doublings >= 0 else gap >> min(-doublings, 62)


@njit(types.void(types.int64, _COUNTS, _COUNTS), cache=True, nogil=True)
def _start(level, ones, seen):
    """Counts before the first element; those of sizes are made when they are first used."""
    for which in range(_CLASSES):
        ones[which] = _TRUST * _UNIT
        seen[which] = _TRUST * _UNIT + max(_TRUST * _gap(level, which), _UNIT)
    ones[_CLASSES:_SIGN], seen[_CLASSES:_SIGN] = 0, 0
    ones[_SIGN], seen[_SIGN] = 32 * _UNIT, 64 * _UNIT


@njit(nogil=True)
def _size_context(level, ones, seen, which, i):
    """Where the counts of a bit of a size lie: i < 4 for "t > i", from 4 on of an escape's b."""
    context = _CLASSES + _SIZES * which + i
    if seen[context] == 0:
        gap = min(min(_gap(level, which), 1 << 24) << max(i - 3, 0), 1 << 24)
        ones[context], seen[context] = max((1 << 22) // (2048 + gap * gap // 8), 1), 2048
    return context


@njit(nogil=True)
def _share(ones, seen):
    """The share of a 0."""
    return np.uint64((1 << 22) - min(max((ones << 22) // seen, 1), (1 << 22) - 1))


@njit(nogil=True)
def _pause(seen):
    """For how many elements of a class its share stays as it is, unless one changes."""
    return 16 + (seen >> 12)


@njit(nogil=True)
def _cost(level, elements, changed, first, last):
    """About how many nats these changes take at that level, but for what all levels take."""
    cost = 0.0
    for which in range(first, last + 1):
        if elements[which]:
            rest = max(_TRUST * _gap(level, which), _UNIT) / _UNIT
            n, k = np.float64(elements[which]), np.float64(changed[which])
            cost += math.lgamma(_TRUST + rest + n) - math.lgamma(_TRUST + k) - math.lgamma(rest + n - k)
            cost -= math.lgamma(_TRUST + rest) - math.lgamma(rest)
    return cost


@njit(types.int64(_COUNTS, _COUNTS), cache=True, nogil=True)
def _best_level(elements, changed):
    """The level that suits these changes, looked for in ever smaller strides."""
    first, last = 0, _CLASSES - 1
    while first < last and elements[first] == 0:
        first += 1
    while last > first and elements[last] == 0:
        last -= 1
    low, high = _LEVEL_OF_ONE + 4 * (first - 20), _LEVEL_OF_ONE + 4 * (last + 12)
    best, stride = low, 16
    while stride:
        least = np.inf
        for level in range(max(low, 0), min(high, MOST_LEVEL) + 1, stride):
            cost = _cost(level, elements, changed, first, last)
            if cost < least:
                best, least = level, cost
        low, high, stride = best - stride, best + stride, stride >> 2
    return best


# --- coding -----------------------------------------------------------------------------------------------------------


@njit(nogil=True)
def _raise(low, by, n, words):
    """low + by; what leaves its 64 bits is carried into the `n` words already written."""
    low += by
    if low < by:
        at = n - 1
        while words[at] == 0xFFFFFFFF:
            words[at] = 0
            at -= 1
        words[at] += np.uint32(1)
    return low


@njit(nogil=True)
def _put(low, width, n, words, share, bit):
    """Code one bit; returns the state (low, width, n), `n` words being written."""
    bound = (width >> _BITS) * share
    if bit:
        low, width = _raise(low, bound, n, words), width - bound
    else:
        width = bound
    if width < _LEAST:
        words[n] = np.uint32(low >> _HALF)
        low, width, n = low << _HALF, width << _HALF, n + 1
    return low, width, n


@njit(nogil=True)
def _put_counted(low, width, n, words, ones, seen, context, bit):
    low, width, n = _put(low, width, n, words, _share(ones[context], seen[context]), bit)
    ones[context] += _UNIT * bit
    seen[context] += _UNIT
    return low, width, n


@njit(nogil=True)
def _put_step(low, width, n, words, level, ones, seen, which, step):
    low, width, n = _put_counted(low, width, n, words, ones, seen, _SIGN, step < 0)
    t = abs(step) - 1
    for i in range(4):
        low, width, n = _put_counted(
            low, width, n, words, ones, seen, _size_context(level, ones, seen, which, i), t > i
        )
        if t <= i:
            return low, width, n
    v, b = t - 3, 0
    while v >> (b + 1):
        b += 1
    for i in range(b + 1):
        low, width, n = _put_counted(
            low, width, n, words, ones, seen, _size_context(level, ones, seen, which, 4 + i), i < b
        )
    for i in range(b - 1, -1, -1):
        low, width, n = _put(low, width, n, words, _EVEN, (v >> i) & 1 == 1)
    return low, width, n


@njit(nogil=True)
def _round_up(low, width, n, words):
    """The last two words: the value in the interval with the most zero bits at its end."""
    last = low + (width - np.uint64(1))  # behind 2^64 - 1 if it is below low
    for zeros in range(63, -1, -1):
        below = (np.uint64(1) << np.uint64(zeros)) - np.uint64(1)
        value = (low + below) & ~below
        if value - low <= last - low:
            break
    low = _raise(low, value - low, n, words)
    words[n], words[n + 1] = np.uint32(low >> _HALF), np.uint32(low & (_LEAST - np.uint64(1)))
    return n + 2


@njit(
    types.int64(_U16_IN, _U16_IN, types.int64, types.int64, _COUNTS, _COUNTS, types.uint32[::1]),
    cache=True,
    nogil=True,
)
def _encode(new, parent, shift, level, ones, seen, words):
    """Fill `words`, which has _MOST_WORDS_AN_ELEMENT to spare; returns how many, or -1 if they do not fit."""
    low, width, n = np.uint64(0), _WHOLE, np.int64(0)
    limit = words.size - _MOST_WORDS_AN_ELEMENT
    shares, left = np.empty(_CLASSES, np.uint64), np.empty(_CLASSES, np.int64)
    for which in range(_CLASSES):
        shares[which], left[which] = _share(ones[which], seen[which]), _pause(seen[which])
    for i in range(new.size):
        which = (parent[i] >> shift) & 255
        left[which] -= 1
        bound = (width >> _BITS) * shares[which]
        if new[i] == parent[i] and bound >= _LEAST and left[which]:  # nearly always: a 0 that `_put` codes like this
            width = bound
            continue
        changes = new[i] != parent[i]
        low, width, n = _put(low, width, n, words, shares[which], changes)
        if changes or not left[which]:
            seen[which] += _UNIT * (_pause(seen[which]) - left[which])
            ones[which] += _UNIT * changes
            shares[which], left[which] = _share(ones[which], seen[which]), _pause(seen[which])
        if changes:
            low, width, n = _put_step(
                low, width, n, words, level, ones, seen, which, ordered(new[i]) - ordered(parent[i])
            )
        if n >= limit:
            return -1
    return _round_up(low, width, n, words)


@njit(nogil=True)
def _shift_in(code, width, n, words):
    """The state with one word more; behind the last one they are 0."""
    word = np.uint64(words[n]) if n < words.size else np.uint64(0)
    return code << _HALF | word, width << _HALF, n + 1


@njit(nogil=True)
def _opened(words):
    """The state (code, width, n) at a stream's start."""
    code, _, n = _shift_in(np.uint64(0), _WHOLE, np.int64(0), words)
    code, _, n = _shift_in(code, _WHOLE, n, words)
    return code, _WHOLE, n


@njit(nogil=True)
def _take(code, width, n, words, share):
    """Read one bit; returns it behind the state (code, width, n), the next word to read being `n`."""
    bound = (width >> _BITS) * share
    bit = code >= bound
    if bit:
        code, width = code - bound, width - bound
    else:
        width = bound
    if width < _LEAST:
        code, width, n = _shift_in(code, width, n, words)
    return code, width, n, bit


@njit(nogil=True)
def _take_counted(code, width, n, words, ones, seen, context):
    code, width, n, bit = _take(code, width, n, words, _share(ones[context], seen[context]))
    ones[context] += _UNIT * bit
    seen[context] += _UNIT
    return code, width, n, bit


@njit(nogil=True)
def _take_step(code, width, n, words, level, ones, seen, which):
    """Read a step, 0 for one that no coder wrote; returns it behind the state."""
    code, width, n, falls = _take_counted(code, width, n, words, ones, seen, _SIGN)
    t = 0
    while t < 4:
        code, width, n, bit = _take_counted(
            code, width, n, words, ones, seen, _size_context(level, ones, seen, which, t)
        )
        if not bit:
            return code, width, n, -(t + 1) if falls else t + 1
        t += 1
    b, v = 0, 1
    while True:
        code, width, n, bit = _take_counted(
            code, width, n, words, ones, seen, _size_context(level, ones, seen, which, 4 + b)
        )
        if not bit:
            break
        b += 1
        if b == _MOST_GAMMA:
            return code, width, n, 0
    for _ in range(b):
        code, width, n, bit = _take(code, width, n, words, _EVEN)
        v = v << 1 | bit
    return code, width, n, -(v + 4) if falls else v + 4


@njit(
    types.int64(_U32_IN, types.int64, types.int64, _COUNTS, _COUNTS, types.uint16[::1]),
    cache=True,
    nogil=True,
)
def _apply(words, shift, level, ones, seen, chunk):
    """Apply a stream to `chunk` in place; returns the words it took, two of them ahead, or -1 if no coder wrote it."""
    code, width, n = _opened(words)
    shares, left = np.empty(_CLASSES, np.uint64), np.empty(_CLASSES, np.int64)
    for which in range(_CLASSES):
        shares[which], left[which] = _share(ones[which], seen[which]), _pause(seen[which])
    for i in range(chunk.size):
        old = chunk[i]
        which = (old >> shift) & 255
        left[which] -= 1
        bound = (width >> _BITS) * shares[which]
        if code < bound and bound >= _LEAST and left[which]:  # nearly always: a 0 that `_take` reads like this
            width = bound
            continue
        code, width, n, bit = _take(code, width, n, words, shares[which])
        if bit or not left[which]:
            seen[which] += _UNIT * (_pause(seen[which]) - left[which])
            ones[which] += _UNIT * bit
            shares[which], left[which] = _share(ones[which], seen[which]), _pause(seen[which])
        if bit:
            code, width, n, step = _take_step(code, width, n, words, level, ones, seen, which)
            value = ordered(old) + step
            if step == 0 or value < -0x8000 or value > 0x7FFF:
                return -1
            chunk[i] = patterned(value)
    return n


def encode(new: U16, parent: U16, less_than: int, shift: int = BF16_SHIFT) -> tuple[int, bytes | None]:
    """How many elements changed, and the payload; None for one of `less_than` bytes or more, which is not kept."""
    elements, changed = np.zeros(_CLASSES, np.int64), np.zeros(_CLASSES, np.int64)
    _count(new, parent, shift, elements, changed)
    changes = int(changed.sum())
    level = _best_level(elements, changed) if changes else 0
    room = max(less_than - HEADER.size, 0) // 4 + 2
    words = np.empty(room + _MOST_WORDS_AN_ELEMENT, np.uint32)
    count = _encode(new, parent, shift, level, *_counts(level), words)
    if count < 0:
        return changes, None
    payload = HEADER.pack(level) + bytes_of(words[:count])
    return changes, payload if len(payload) < less_than else None


def most_bytes(elements: int) -> int:
    """More than any payload of so many elements takes."""
    return HEADER.size + 4 * _MOST_WORDS_AN_ELEMENT * (elements + 1)


def apply(payload: memoryview, chunk: U16, shift: int = BF16_SHIFT) -> None:
    """Turn `chunk` from the parent's bits into the new ones, in place. Raises WeightError on a payload that no coder
    wrote; `chunk` then holds garbage.
    """
    if len(payload) < HEADER.size:
        raise WeightError(f"range-coded payload of {len(payload)} bytes is shorter than its header")
    (level,) = HEADER.unpack_from(payload)
    stream = payload[HEADER.size :]
    if level > MOST_LEVEL or (len(stream) and stream[-1] == 0):
        raise WeightError(f"range-coded payload of {len(payload)} bytes is damaged (level {level}), or was lengthened")
    words = words_of(stream)
    if _apply(words, shift, level, *_counts(level), chunk) < words.size:
        raise WeightError(f"range-coded payload of {len(payload)} bytes is damaged: its words do not add up")


def words_of(stream: memoryview) -> npt.NDArray[np.uint32]:
    """A stream's words; bytes that are missing from the last one are 0."""
    words = np.zeros((len(stream) + 3) // 4, ">u4")
    words.view(np.uint8)[: len(stream)] = stream
    return words.astype(np.uint32)


def bytes_of(words: npt.NDArray[np.uint32]) -> bytes:
    """A stream of these words."""
    return words.astype(">u4").tobytes().rstrip(b"\0")


def _counts(level: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ones and seen of all contexts at the start of a chunk."""
    ones, seen = np.empty(_SIGN + 1, np.int64), np.empty(_SIGN + 1, np.int64)
    _start(level, ones, seen)
    return ones, seen
