"""Codec W: the elements of a chunk themselves, without their parents, in fewer bits than they have in memory.

Owns the bit format and its numba kernels; knows nothing of files, hashes or versions. It is what a full copy travels
in. The exponents of a tensor's weights keep to a few values, and so do the first bits of their mantissas with them: a
range coder writes these with their shares in the chunk. Sign and lower bits are as good as random, and travel as they
are: a bf16 weight of normal distribution takes 10.5 bits of its 16, and could not do with less than 10.4.

Payload, little endian but for the words: u16 classes, at least 1; the classes that occur, ascending, a u16 each; their
shares of 65536, less one, a u16 each; u32 bytes of the words; the words; then the rest of every element in turn, lowest
bit first, and zeros to fill the last byte. An element's class is (symbol & 0x7fff) >> shift, and its rest of shift + 1
bits is the symbol's lowest `shift` bits below its sign; which shift is the form's to say (`forms`): 6 for bf16.

The words are a range code as `range_coder` has it, of 32 bits each, the highest byte first and without zero bytes at
the end. A class of share s, the classes below it having shares of c together, narrows a range to (range >> 16) * s from
(range >> 16) * c on; who reads finds the class in which min((code div (range >> 16)), 65535) lies.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
from numba import njit, types

from etude.errors import WeightError
from etude.weights.range_coder import _opened, _raise, _round_up, _shift_in, bytes_of, words_of

U16 = npt.NDArray[np.uint16]
BF16_SHIFT = 6
_COUNT, _BYTES = struct.Struct("<H"), struct.Struct("<I")
_SHARES, _MOST_CLASSES = 1 << 16, 1 << 15
_SPARE_WORDS = 4
_U16_IN = types.Array(types.uint16, 1, "C", readonly=True)
_U32_IN = types.Array(types.uint32, 1, "C", readonly=True)
_U64_IN = types.Array(types.uint64, 1, "C", readonly=True)
_BITS, _HALF, _LEAST = np.uint64(16), np.uint64(32), np.uint64(1 << 32)
_WHOLE, _ONE = np.uint64((1 << 64) - 1), np.uint64(1)


@njit(types.int64(_U16_IN, types.int64, _U64_IN, _U64_IN, types.uint32[::1], types.uint64[::1]), cache=True, nogil=True)
def _encode(symbols, shift, shares, below, words, rest):
    """Fill `words` and the zeroed `rest`; returns how many words, or -1 if they do not fit."""
    low, width, n = np.uint64(0), _WHOLE, np.int64(0)
    limit, mask, bit = words.size - _SPARE_WORDS, np.uint64((1 << shift) - 1), np.uint64(0)
    for i in range(symbols.size):
        symbol = np.uint64(symbols[i])
        which = (symbols[i] & 0x7FFF) >> shift
        part = width >> _BITS
        low, width = _raise(low, part * below[which], n, words), part * shares[which]
        if width < _LEAST:
            if n >= limit:
                return -1
            words[n] = np.uint32(low >> _HALF)
            low, width, n = low << _HALF, width << _HALF, n + 1
        left = (symbol & mask) | (symbol >> np.uint64(15)) << np.uint64(shift)
        at, offset = np.int64(bit >> np.uint64(6)), bit & np.uint64(63)
        rest[at] |= left << offset
        rest[at + 1] |= (left >> _ONE) >> (np.uint64(63) - offset)
        bit += np.uint64(shift + 1)
    return _round_up(low, width, n, words)


@njit(
    types.int64(_U32_IN, types.int64, _U16_IN, _U16_IN, _U64_IN, _U64_IN, _U64_IN, types.uint16[::1]),
    cache=True,
    nogil=True,
)
def _decode(words, shift, lookup, classes, shares, below, rest, symbols):
    """Fill `symbols`; returns how many words it took, two of them ahead."""
    code, width, n = _opened(words)
    mask, bit = np.uint64((1 << shift) - 1), np.uint64(0)
    for i in range(symbols.size):
        part = width >> _BITS
        at = np.int64(lookup[min(code // part, np.uint64(65535))])
        code, width = code - part * below[at], part * shares[at]
        if width < _LEAST:
            code, width, n = _shift_in(code, width, n, words)
        word, offset = np.int64(bit >> np.uint64(6)), bit & np.uint64(63)
        left = rest[word] >> offset | (rest[word + 1] << _ONE) << (np.uint64(63) - offset)
        sign = (left >> np.uint64(shift)) & _ONE
        symbols[i] = np.uint16(sign << np.uint64(15) | np.uint64(classes[at]) << np.uint64(shift) | (left & mask))
        bit += np.uint64(shift + 1)
    return n


def encode(symbols: U16, less_than: int, shift: int = BF16_SHIFT) -> bytes | None:
    """The payload; None for one of `less_than` bytes or more, which is not kept."""
    rest_bytes = (symbols.size * (shift + 1) + 7) // 8
    if rest_bytes >= less_than:
        return None
    counts = np.bincount((symbols & 0x7FFF) >> shift, minlength=_MOST_CLASSES >> shift)
    counts[0] += symbols.size == 0
    used = np.flatnonzero(counts)
    shares = _shares(counts[used])
    by_class, below = np.zeros((2, counts.size), np.uint64)
    by_class[used], below[used] = shares, np.cumsum(shares) - shares
    head = _COUNT.pack(used.size) + used.astype("<u2").tobytes() + (shares - 1).astype("<u2").tobytes()
    room = less_than - len(head) - _BYTES.size - rest_bytes
    if room < 1:
        return None
    words = np.empty(room // 4 + 2 + _SPARE_WORDS, np.uint32)
    rest = np.zeros(rest_bytes // 8 + 2, np.uint64)
    count = _encode(symbols, shift, by_class, below, words, rest)
    coded = bytes_of(words[: max(count, 0)])
    if count < 0 or len(coded) >= room:
        return None
    return head + _BYTES.pack(len(coded)) + coded + rest.astype("<u8", copy=False).tobytes()[:rest_bytes]


def most_bytes(elements: int) -> int:
    """More than any payload of so many elements takes."""
    return _COUNT.size + _BYTES.size + 4 * _MOST_CLASSES + 6 * elements + 64


def apply(payload: memoryview, symbols: U16, shift: int = BF16_SHIFT) -> None:
    """Fill `symbols`. Raises WeightError on a payload that no encoder wrote for so many; they then hold garbage."""
    classes, shares, start = _table(payload, shift)
    (size,) = _BYTES.unpack_from(payload, start - _BYTES.size)
    rest_bytes = (symbols.size * (shift + 1) + 7) // 8
    if len(payload) != start + size + rest_bytes or (size and payload[start + size - 1] == 0):
        raise WeightError(f"a payload of whole elements has {len(payload)} bytes, and claims {size} for exponents")
    words = words_of(payload[start : start + size])
    rest = np.zeros(rest_bytes // 8 + 2, "<u8")
    rest.view(np.uint8)[:rest_bytes] = payload[start + size :]
    below = np.cumsum(shares) - shares
    lookup = np.repeat(np.arange(classes.size, dtype=np.uint16), shares.astype(np.int64))
    read = _decode(words, shift, lookup, classes, shares, below, rest, symbols)
    spare = symbols.size * (shift + 1) % 8
    if read < words.size or (spare and payload[-1] >> spare):
        raise WeightError(f"a payload of {symbols.size} whole elements is damaged: its words do not add up")


def _table(payload: memoryview, shift: int) -> tuple[U16, npt.NDArray[np.uint64], int]:
    """The classes, their shares, and where the words start. Raises WeightError for one that no encoder wrote."""
    if len(payload) >= _COUNT.size:
        (count,) = _COUNT.unpack_from(payload)
        start = _COUNT.size + 4 * count + _BYTES.size
        if 1 <= count <= _MOST_CLASSES >> shift and len(payload) >= start:
            classes = np.frombuffer(payload, "<u2", count, _COUNT.size).astype(np.uint16)
            shares = np.frombuffer(payload, "<u2", count, _COUNT.size + 2 * count).astype(np.uint64) + _ONE
            ascending = (classes[1:] > classes[:-1]).all() and classes[-1] < _MOST_CLASSES >> shift
            if ascending and int(shares.sum()) == _SHARES:
                return classes, shares, start
    raise WeightError(f"a payload of whole elements has {len(payload)} bytes and a damaged table")


def _shares(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Shares of 65536 as the counts are, none below 1."""
    shares = np.maximum(counts * _SHARES // counts.sum(), 1)
    while (excess := int(shares.sum()) - _SHARES) > 0:  # too many got their 1 for nothing: the largest pay
        largest = int(shares.argmax())
        shares[largest] -= min(excess, int(shares[largest]) // 2)
    shares[int(shares.argmax())] -= excess
    return shares.astype(np.uint64)
