"""Attention over a paged key-value cache, on CPU: the one attention of sampling and training.

Owns its kernels, forward and backward, and the layout of pages. A score is a sum over channels in order, a result a sum
over tokens in order (`kernels.vectors`), the softmax's sum depends on nothing but how many tokens are seen. So a
token's result has the same bits in a batch or alone, decoded, prefilled in any chunks, or recomputed by the trainer;
torch's own attention gives each of these other bits.

Layout: keys [pages, G, C, PAGE], so that a page's scores are vectors that each channel is added to; values
[pages, PAGE, G, V], V a multiple of LANES (`value_width`), what it adds being zero. fp32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from etude.kernels.vectors import (
    LANES,
    ROWS,
    VECTORS,
    add,
    exp,
    highest,
    kernel,
    larger,
    load,
    multiply,
    part,
    splat,
    store,
    subtract,
    total,
)

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
PAGE = 32
"""Tokens of a page; a constant, so that the compiler knows it."""


def value_width(width: int) -> int:
    """Channels of a value in its page."""
    return -(-width // LANES) * LANES


@part
def wide(x, x_at, x_row, x_step, w, w_at, w_step, out, out_at, out_row, depth, rows, vectors, onto):
    """`multiply`, but of any number of vectors."""
    for v in range(0, vectors, VECTORS):
        multiply(
            x, x_at, x_row, x_step, w, w_at + v * LANES, w_step, out, out_at + v * LANES, out_row, depth, rows,
            min(VECTORS, vectors - v), onto,
        )  # fmt: skip


@part
def page_scores(queries, first, rows, keys, table, g, pages, scores):
    """scores[r, t] = queries[r] · key t for `rows` rows from the `first`, over whole pages: what lies beyond the last
    token is of no use, and harmless.
    """
    groups, width, at = keys.shape[1], keys.shape[2], first * scores.shape[1]
    for p in range(pages):
        wide(
            queries, first * queries.shape[1], queries.shape[1], 1, keys, (table[p] * groups + g) * width * PAGE, PAGE,
            scores, at + p * PAGE, scores.shape[1], width, rows, PAGE // LANES, False,
        )  # fmt: skip


@part
def page_sums(weights, first, rows, values, table, g, length, sums):
    """sums[r] = sum over tokens t < length of weights[r, t] * value t, for `rows` rows from the `first`."""
    groups, width, at = values.shape[2], values.shape[3], first * weights.shape[1]
    for p in range((length + PAGE - 1) // PAGE):
        wide(
            weights, at + p * PAGE, weights.shape[1], 1, values, (table[p] * PAGE * groups + g) * width, groups * width,
            sums, first * width, width, min(PAGE, length - p * PAGE), rows, width // LANES, p > 0,
        )  # fmt: skip


@part
def soften(scores, row, length, end):
    """scores[row, :length] = exp(scores - their highest), and 0 from there to `end`; returns the sum."""
    at = row * scores.shape[1]
    filled = at + (length + LANES - 1) // LANES * LANES
    for t in range(length, filled - at):
        scores[row, t] = -np.inf
    best = load(scores, at)
    for t in range(at + LANES, filled, LANES):
        best = larger(best, load(scores, t))
    shift = splat(highest(best))
    summed = splat(np.float32(0.0))
    for t in range(at, filled, LANES):
        weight = exp(subtract(load(scores, t), shift))
        store(weight, scores, t)
        summed = add(summed, weight)
    for t in range(filled - at, end):
        scores[row, t] = 0.0
    return total(summed)


@part
def gather(queries, n, count, first, heads, scale, tile):
    """tile[i * heads + a] = queries[n + i, first + a] * scale."""
    for i in range(count):
        for a in range(heads):
            for c in range(queries.shape[2]):
                tile[i * heads + a, c] = queries[n + i, first + a, c] * scale


@kernel
def paged_attention(
    queries: Array, keys: Array, values: Array, tables: Ints, rows: Ints, lengths: Ints, scale: float, out: Array
) -> None:
    """out[n, h] = softmax(scale * q[n, h] · K) V over the first `lengths[n]` tokens of the pages `tables[rows[n]]`.

    queries [N, H, C]; out [N, H, <= V]; tables [sequences, most pages]; rows, lengths [N], all lengths >= 1. Queries
    of one sequence that follow each other, in the order of their positions, share the loads of its keys.
    """
    count, heads, width = queries.shape
    groups = keys.shape[1]
    of_group = heads // groups
    together = max(1, ROWS // of_group)
    tile, totals = np.empty((ROWS, width), np.float32), np.empty(ROWS, np.float32)
    scores = np.empty((ROWS, tables.shape[1] * PAGE), np.float32)
    sums = np.empty((ROWS, values.shape[3]), np.float32)
    n = 0
    while n < count:
        m = n + 1
        while m < min(n + together, count) and rows[m] == rows[n] and lengths[m] > lengths[m - 1]:
            m += 1
        longest, table = lengths[m - 1], tables[rows[n]]
        for g in range(groups):
            for first in range(0, of_group, ROWS):
                some = min(ROWS, of_group - first)
                head, tall = g * of_group + first, (m - n) * some
                gather(queries, n, m - n, head, some, np.float32(scale), tile)
                page_scores(tile, 0, tall, keys, table, g, (longest + PAGE - 1) // PAGE, scores)
                for r in range(tall):
                    totals[r] = soften(scores, r, lengths[n + r // some], longest)
                page_sums(scores, 0, tall, values, table, g, longest, sums)
                for r in range(tall):
                    for c in range(out.shape[2]):
                        out[n + r // some, head + r % some, c] = sums[r, c] / totals[r]
        n = m


@kernel
def write_pages(new_keys: Array, new_values: Array, pages: Ints, offsets: Ints, keys: Array, values: Array) -> None:
    """Put new tokens' keys and values [N, G, C], [N, G, <= V] at their place in the pages."""
    n = 0
    while n < len(pages):
        m = n + 1
        while m < len(pages) and pages[m] == pages[n] and offsets[m] == offsets[m - 1] + 1:
            m += 1
        for g in range(new_keys.shape[1]):
            for c in range(new_keys.shape[2]):
                for i in range(n, m):  # side by side in the page
                    keys[pages[n], g, c, offsets[n] + i - n] = new_keys[i, g, c]
            for i in range(n, m):
                for c in range(new_values.shape[2]):
                    values[pages[n], offsets[i], g, c] = new_values[i, g, c]
        n = m
