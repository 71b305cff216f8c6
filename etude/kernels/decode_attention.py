"""Attention of single queries over a paged key-value cache, on CPU.

Owns one numba kernel and its page layout; `tests/kernels` holds the torch reference. One query is computed by one loop in
one order, so a row's result does not depend on what else is in the batch.

Layout: keys [pages, G, C, PAGE] with the tokens innermost, so that a page's scores come out as one vector; values
[pages, PAGE, G, C] with the channels innermost, so that a token's contribution is one vector. fp32 throughout.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Array = npt.NDArray[np.float32]
PAGE = 16
"""Tokens of a page: one AVX-512 vector of scores, and a constant so that the compiler unrolls it."""
_LOG2E = np.float32(1.4426950408889634)


@njit(fastmath=True, inline="always")
def _exp(x: Array, whole: npt.NDArray[np.int32], power: Array, length: int) -> None:
    """x[:length] = exp(x), for x <= 0, to about 2 ulp: loops that the compiler vectorises, which the library's exp is not.

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


@njit(fastmath=True, nogil=True, cache=True, error_model="numpy")
def decode_attention(
    queries: Array, keys: Array, values: Array, tables: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], out: Array
) -> None:
    """out[b, h] = softmax(q[b, h] · K / sqrt(C)) V over the first `lengths[b]` tokens of the pages `tables[b]`.

    queries, out [B, H, C]; keys [P, G, C, PAGE]; values [P, PAGE, G, C]; tables [B, most pages]; lengths [B], all >= 1.
    """
    batch, heads, width = queries.shape
    groups, page = keys.shape[1], PAGE
    scale = np.float32(1.0) / np.sqrt(np.float32(width))
    scores = np.empty(tables.shape[1] * page, np.float32)
    whole = np.empty_like(scores, np.int32)
    power = whole.view(np.float32)
    accumulated = np.empty(width, np.float32)
    for b in range(batch):
        length = lengths[b]
        pages = (length + page - 1) // page
        for h in range(heads):
            g = h * groups // heads
            for p in range(pages):
                row = scores[p * page : (p + 1) * page]
                row[:] = 0.0
                block = keys[tables[b, p], g]
                for c in range(width):
                    q = queries[b, h, c] * scale
                    for t in range(page):
                        row[t] += q * block[c, t]
            highest = scores[0]
            for t in range(1, length):
                highest = max(highest, scores[t])
            for t in range(length):
                scores[t] -= highest
            _exp(scores, whole, power, length)
            total = np.float32(0.0)
            for t in range(length):
                total += scores[t]
            accumulated[:] = 0.0
            for p in range(pages):
                block = values[tables[b, p]]
                for t in range(min(page, length - p * page)):
                    weight = scores[p * page + t]
                    for c in range(width):
                        accumulated[c] += weight * block[t, g, c]
            for c in range(width):
                out[b, h, c] = accumulated[c] / total
