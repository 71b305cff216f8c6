"""Codec A: which elements of a chunk changed and how far, by a range coder that knows the old exponents.

Owns the bit format and its numba kernels; knows nothing of files, hashes or versions. An optimizer's step is about as
large for every weight, and the gap to the next bf16 value is not: it doubles with the exponent. So whether a weight
changes, and by how many units, hangs on its *old* exponent, which the receiver already has. Given the exponent the
changes are as good as independent, and the stream comes within a few percent of their entropy: about two thirds of
codec R's bytes, for several times its time, since every element is coded and not only those that changed.

Payload, little endian: u32 changes; u8 shift; u16 classes; the classes in which something changed, ascending, a u8
each; their shares, a u16 each; then u32 words. Without changes it ends after `classes`, which is 0. An element's class
is (old bits >> shift) & 255: with 7 the exponent of a bf16 value, with 0 the magnitude of an 8-bit code whose sign is
bit 15.

The words are one range code (Martin, 1979) of 64 bits that shifts by 32. Coder and decoder hold a range of at first
2^64 - 1. A bit of share s (of 65536) splits it at bound = (range >> 16) * s: 0 keeps the part below, 1 the part above;
when the range has then fallen under 2^32, one word is shifted out and the range grows by 2^32. The last word is the
top half of the smallest multiple of 2^32 in the final interval; the word behind it counts as 0.

Every element of a listed class, in order, codes one bit with the class's share: does it change? If it does, there
follow, with shares that adapt, the sign of its step (1: falls) in context (class, 4); then, with t = |step| - 1, up to
four bits "t > i" in the contexts (class, i), ended by the first 0; and after four ones v = t - 3 of b + 1 bits: b ones
and a zero in the contexts (gamma, 0), (gamma, 1), …, and the low b bits of v, highest first, with share 32768. Steps
are those of `rice`. A context starts at share 32768 with n = 0; a bit moves its share by floor((target - share) / (n +
2)), the target being 65536 for 0 and 0 for 1, keeps it within 64 and 65472, and adds one to n up to 62.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
from numba import njit, types

from etude.errors import WeightError
from etude.weights.rice import ordered, patterned

U16 = npt.NDArray[np.uint16]
HEADER = struct.Struct("<IBH")
BF16_SHIFT = 7
_MOST_SHIFT = 15
_ENTRY_BYTES = 3
_CLASSES, _CONTEXTS, _GAMMA, _MOST_GAMMA = 256, 5, 256 * 5, 16
_MOST_WORDS_AN_ELEMENT = 32
"""A change takes at most 38 bits, none of which shrinks the range by more than 2^16."""

_U16_IN = types.Array(types.uint16, 1, "C", readonly=True)
_U32_IN = types.Array(types.uint32, 1, "C", readonly=True)
_U64_IN = types.Array(types.uint64, 1, "C", readonly=True)
_SHIFT, _HALF, _LEAST = np.uint64(16), np.uint64(32), np.uint64(1 << 32)
_WHOLE, _EVEN = np.uint64((1 << 64) - 1), np.uint64(32768)


@njit(types.void(_U16_IN, _U16_IN, types.int64, types.int64[::1], types.int64[::1]), cache=True, nogil=True)
def _count(new, parent, shift, elements, changed):
    """Elements and changes of every class."""
    for i in range(new.size):
        which = (parent[i] >> shift) & 255
        elements[which] += 1
        changed[which] += new[i] != parent[i]


@njit(nogil=True)
def _learn(shares, seen, context, bit):
    share, n = np.int64(shares[context]), np.int64(seen[context])
    share += ((0 if bit else 65536) - share) // (n + 2)
    shares[context] = np.uint64(min(max(share, 64), 65472))
    if n < 62:
        seen[context] = n + 1


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
    bound = (width >> _SHIFT) * share
    if bit:
        low, width = _raise(low, bound, n, words), width - bound
    else:
        width = bound
    if width < _LEAST:
        words[n] = np.uint32(low >> _HALF)
        low, width, n = low << _HALF, width << _HALF, n + 1
    return low, width, n


@njit(nogil=True)
def _put_step(low, width, n, words, shares, seen, which, step):
    context = which * _CONTEXTS
    bit = step < 0
    low, width, n = _put(low, width, n, words, shares[context + 4], bit)
    _learn(shares, seen, context + 4, bit)
    t = abs(step) - 1
    for i in range(4):
        bit = t > i
        low, width, n = _put(low, width, n, words, shares[context + i], bit)
        _learn(shares, seen, context + i, bit)
        if not bit:
            return low, width, n
    v, b = t - 3, 0
    while v >> (b + 1):
        b += 1
    for i in range(b + 1):
        bit = i < b
        low, width, n = _put(low, width, n, words, shares[_GAMMA + i], bit)
        _learn(shares, seen, _GAMMA + i, bit)
    for i in range(b - 1, -1, -1):
        low, width, n = _put(low, width, n, words, _EVEN, (v >> i) & 1 == 1)
    return low, width, n


@njit(
    types.int64(_U16_IN, _U16_IN, types.int64, _U64_IN, types.uint64[::1], types.int64[::1], types.uint32[::1]),
    cache=True,
    nogil=True,
)
def _encode(new, parent, shift, classes, shares, seen, words):
    """Fill `words`, which has _MOST_WORDS_AN_ELEMENT to spare; returns how many, or -1 if they do not fit."""
    low, width, n = np.uint64(0), _WHOLE, np.int64(0)
    limit = words.size - _MOST_WORDS_AN_ELEMENT
    for i in range(new.size):
        which = (parent[i] >> shift) & 255
        share = classes[which]
        if share == 0:
            continue
        bound = (width >> _SHIFT) * share
        if new[i] == parent[i] and bound >= _LEAST:  # nearly always: a 0 that shifts nothing out, as `_put` codes it
            width = bound
            continue
        changes = new[i] != parent[i]
        low, width, n = _put(low, width, n, words, share, changes)
        if changes:
            step = ordered(new[i]) - ordered(parent[i])
            low, width, n = _put_step(low, width, n, words, shares, seen, which, step)
        if n >= limit:
            return -1
    words[n] = np.uint32(_raise(low, _LEAST - np.uint64(1), n, words) >> _HALF)
    return n + 1


@njit(nogil=True)
def _take(code, width, n, words, share):
    """Read one bit; returns it behind the state (code, width, n), the next word to read being `n`."""
    bound = (width >> _SHIFT) * share
    bit = code >= bound
    if bit:
        code, width = code - bound, width - bound
    else:
        width = bound
    if width < _LEAST:
        code, width, n = code << _HALF | np.uint64(words[n]), width << _HALF, n + 1
    return code, width, n, bit


@njit(nogil=True)
def _take_step(code, width, n, words, shares, seen, which):
    """Read a step, 0 for one that no coder wrote; returns it behind the state."""
    context = which * _CONTEXTS
    code, width, n, falls = _take(code, width, n, words, shares[context + 4])
    _learn(shares, seen, context + 4, falls)
    t = 0
    while t < 4:
        code, width, n, bit = _take(code, width, n, words, shares[context + t])
        _learn(shares, seen, context + t, bit)
        if not bit:
            return code, width, n, -(t + 1) if falls else t + 1
        t += 1
    b, v = 0, 1
    while True:
        code, width, n, bit = _take(code, width, n, words, shares[_GAMMA + b])
        _learn(shares, seen, _GAMMA + b, bit)
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
    types.int64(_U32_IN, types.int64, types.int64, _U64_IN, types.uint64[::1], types.int64[::1], types.uint16[::1]),
    cache=True,
    nogil=True,
)
def _apply(words, count, shift, classes, shares, seen, chunk):
    """Apply a stream of `count` words to `chunk` in place; returns the changes, or -1 for one that no coder wrote.

    `words` has _MOST_WORDS_AN_ELEMENT zeros behind the stream: its end is looked for once an element.
    """
    code, width, n = np.uint64(words[0]) << _HALF | np.uint64(words[1]), _WHOLE, np.int64(2)
    changes = 0
    for i in range(chunk.size):
        old = chunk[i]
        which = (old >> shift) & 255
        share = classes[which]
        if share == 0:
            continue
        bound = (width >> _SHIFT) * share
        if code < bound and bound >= _LEAST:  # nearly always: a 0 that shifts nothing in, as `_take` reads it
            width = bound
            continue
        code, width, n, bit = _take(code, width, n, words, share)
        if bit:
            changes += 1
            code, width, n, step = _take_step(code, width, n, words, shares, seen, which)
            value = ordered(old) + step
            if step == 0 or value < -0x8000 or value > 0x7FFF:
                return -1
            chunk[i] = patterned(value)
        if n > count + 1:
            return -1
    return changes if n == count + 1 else -1


def encode(new: U16, parent: U16, less_than: int, shift: int = BF16_SHIFT) -> tuple[int, bytes | None]:
    """How many elements changed, and the payload; None for one of `less_than` bytes or more, which is not kept."""
    elements, changed = np.zeros(_CLASSES, np.int64), np.zeros(_CLASSES, np.int64)
    _count(new, parent, shift, elements, changed)
    changes, used = int(changed.sum()), np.flatnonzero(changed)
    header = HEADER.pack(changes, shift, used.size)
    if changes == 0:
        return 0, header
    kept = (elements[used] - changed[used] + 0.5) / (elements[used] + 1)
    shares = np.clip(np.rint(65536 * kept), 1, 65535).astype("<u2")
    head = header + used.astype(np.uint8).tobytes() + shares.tobytes()
    room = (less_than - 1 - len(head)) // 4
    if room < 1:
        return changes, None
    words = np.empty(room + 1 + _MOST_WORDS_AN_ELEMENT, np.uint32)
    count = _encode(new, parent, shift, _by_class(used, shares), *_fresh_contexts(), words)
    if not 0 < count <= room:
        return changes, None
    return changes, head + words[:count].astype("<u4", copy=False).tobytes()


def most_bytes(elements: int) -> int:
    """More than any payload of so many elements takes."""
    return HEADER.size + _CLASSES * _ENTRY_BYTES + 4 * _MOST_WORDS_AN_ELEMENT * (elements + 1)


def apply(payload: memoryview, chunk: U16) -> None:
    """Turn `chunk` from the parent's bits into the new ones, in place. Raises WeightError on a payload that no coder
    wrote; `chunk` then holds garbage.
    """
    if len(payload) < HEADER.size:
        raise WeightError(f"range-coded payload of {len(payload)} bytes is shorter than its header")
    changes, shift, classes = HEADER.unpack_from(payload)
    start = HEADER.size + classes * _ENTRY_BYTES
    fits = changes <= chunk.size and classes <= min(changes, _CLASSES) and shift <= _MOST_SHIFT
    if not fits or len(payload) < start or (len(payload) - start) % 4:
        claim = f"claims {changes} changes in {classes} classes of {chunk.size} elements (shift {shift})"
        raise WeightError(f"range-coded payload of {len(payload)} bytes {claim}")
    listed = np.frombuffer(payload, np.uint8, classes, HEADER.size)
    shares = np.frombuffer(payload, "<u2", classes, HEADER.size + classes)
    count = (len(payload) - start) // 4
    if (listed[1:] <= listed[:-1]).any() or (shares == 0).any():
        raise WeightError("range-coded payload has a damaged table of classes")
    if changes == 0:
        found = 0 if count == 0 else -1
    else:
        words = np.zeros(count + 1 + _MOST_WORDS_AN_ELEMENT, np.uint32)
        words[:count] = np.frombuffer(payload, "<u4", count, start)
        found = _apply(words, count, shift, _by_class(listed, shares), *_fresh_contexts(), chunk)
    if found != changes:
        raise WeightError(f"range-coded payload of {changes} changes is damaged: its words do not add up")


def _by_class(listed: np.ndarray, shares: np.ndarray) -> npt.NDArray[np.uint64]:
    """Shares by class, 0 where nothing changes."""
    every = np.zeros(_CLASSES, np.uint64)
    every[listed] = shares
    return every


def _fresh_contexts() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """The adapting contexts' shares, and how many bits each has seen."""
    contexts = _GAMMA + _MOST_GAMMA
    return np.full(contexts, _EVEN, np.uint64), np.zeros(contexts, np.int64)
