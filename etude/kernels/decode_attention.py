"""Attention of single queries over a paged key-value cache, on CPU.

Owns one numba kernel and its page layout; `tests/kernels` holds the torch reference. One query is computed by one loop
in one order, so a row's result does not depend on what else is in the batch.

Layout: keys and values [pages, PAGE, G, C], fp32. Channels are innermost, so that a token's key or value is one or two
vector registers; tokens of a page are added to the result four at a time, to store it a quarter as often.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[np.float32]
PAGE = 16
"""Tokens of a page; a constant, so that the compiler knows it."""
_LOG2E = np.float32(1.4426950408889634)


@njit(fastmath=True, inline="always")
def _exp(x: Array, whole: npt.NDArray[np.int32], power: Array, length: int) -> None:
    """x[:length] = exp(x), for x <= 0, to about 2 ulp: loops that the compiler vectorises, which the library's exp is
    not.

    2^whole is written as the bits of a float: `power` is `whole` seen as float32.
    """
    for t in range(length):
        y = max(x[t], np.float32(-80.0)) * _LOG2E
        floor = np.floor(y)
        f = y - floor
        p = np.float32(1.8775767e-3)
        p = p * f + np.float32(8.9893397e-3)
        p = p * f + np.float32(5.5826318e-2)
        p = p * f + np.float32(2.4015361e-1)
        p = p * f + np.float32(6.9315308e-1)
        x[t] = p * f + np.float32(9.9999994e-1)
        whole[t] = (np.int32(floor) + np.int32(127)) << np.int32(23)
    for t in range(length):
        x[t] *= power[t]


@njit(fastmath=True, inline="always")
def _scores(query, keys, table, g, length, scale, scores):
    """scores[:length] = query · key * scale."""
    for t in range(length):
        key = keys[table[t // PAGE], t % PAGE, g]
        score = np.float32(0.0)
        for c in range(query.shape[0]):
            score += query[c] * key[c]
        scores[t] = score * scale


@njit(fastmath=True, inline="always")
def _weighted_sum(weights, values, table, g, length, out):
    """out = sum over tokens of weight * value."""
    out[:] = 0.0
    for p in range((length + PAGE - 1) // PAGE):
        page, first = values[table[p]], p * PAGE
        count = min(PAGE, length - first)
        t = 0
        while t + 4 <= count:
            w0, w1, w2, w3 = weights[first + t], weights[first + t + 1], weights[first + t + 2], weights[first + t + 3]
            for c in range(out.shape[0]):
                out[c] += w0 * page[t, g, c] + w1 * page[t + 1, g, c] + w2 * page[t + 2, g, c] + w3 * page[t + 3, g, c]
            t += 4
        while t < count:
            for c in range(out.shape[0]):
                out[c] += weights[first + t] * page[t, g, c]
            t += 1


@njit(fastmath=True, nogil=True, cache=True, error_model="numpy", boundscheck=False)
def decode_attention(
    queries: Array,
    keys: Array,
    values: Array,
    tables: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    scale: float,
    out: Array,
) -> None:
    """out[b, h] = softmax(scale * q[b, h] · K) V over the first `lengths[b]` tokens of the pages `tables[b]`.

    queries, out [B, H, C]; keys, values [P, PAGE, G, C], which may be the same array; tables [B, most pages]; lengths
    [B], all >= 1.
    """
    batch, heads, width = queries.shape
    groups = keys.shape[2]
    scale_ = np.float32(scale)
    scores = np.empty(tables.shape[1] * PAGE, np.float32)
    whole = np.empty_like(scores, np.int32)
    power = whole.view(np.float32)
    for b in range(batch):
        length = lengths[b]
        for h in range(heads):
            g = h * groups // heads
            _scores(queries[b, h], keys, tables[b], g, length, scale_, scores)
            highest = scores[0]
            for t in range(1, length):
                highest = max(highest, scores[t])
            for t in range(length):
                scores[t] -= highest
            _exp(scores, whole, power, length)
            total = np.float32(0.0)
            for t in range(length):
                total += scores[t]
            _weighted_sum(scores, values, tables[b], g, length, out[b, h])
            for c in range(width):
                out[b, h, c] /= total
