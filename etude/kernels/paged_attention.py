"""Attention over a paged key-value cache, on CPU: the one attention of sampling and training.

Owns its kernels, forward and backward, and the layout of pages. A score is a sum over channels in order, a result a sum
over pages in order, each summed over its tokens in order (`kernels.vectors`); the softmax's sum depends on nothing but
how many tokens are seen. So a token's result has the same bits in a batch or alone, decoded, prefilled in any chunks,
or recomputed by the trainer; torch's own attention gives each of these other bits.

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
BLOCK = 144
"""Most rows, each a head of a query, that read a page together: what their scores take should stay in a cache."""


def value_width(width: int) -> int:
    """Channels of a value in its page."""
    return -(-width // LANES) * LANES


@part
def wide(x, x_at, x_row, x_step, w, w_at, w_step, out, out_at, out_row, depth, rows, vectors, onto, ahead):
    """`multiply`, but of any number of rows and vectors."""
    for r in range(0, rows, ROWS):
        for v in range(0, vectors, VECTORS):
            multiply(
                x, x_at + r * x_row, x_row, x_step, w, w_at + v * LANES, w_step, out, out_at + r * out_row + v * LANES,
                out_row, depth, min(ROWS, rows - r), min(VECTORS, vectors - v), onto, ahead,
            )  # fmt: skip


@part
def page_scores(queries, first, rows, keys, table, p, g, scores):
    """scores[r, t] = queries[r] · key t for `rows` rows from the `first` and all tokens of the table's page p: what
    lies beyond the last token is of no use, and harmless.
    """
    size, across = keys.shape[2] * PAGE, scores.shape[1]
    wide(
        queries, first * queries.shape[1], queries.shape[1], 1, keys, (table[p] * keys.shape[1] + g) * size, PAGE,
        scores, first * across + p * PAGE, across, keys.shape[2], rows, PAGE // LANES, False,
        (table[min(p + 1, len(table) - 1)] - table[p]) * keys.shape[1] * size,
    )  # fmt: skip


@part
def page_sums(weights, first, rows, values, table, p, g, length, sums):
    """sums[r] += sum over tokens t < length of page p of weights[r, t] * value t, for `rows` rows from the `first`;
    page 0 sets them.
    """
    across, token, width = weights.shape[1], values.shape[2] * values.shape[3], values.shape[3]
    wide(
        weights, first * across + p * PAGE, across, 1, values, table[p] * PAGE * token + g * width, token,
        sums, first * width, width, min(PAGE, length - p * PAGE), rows, width // LANES, p > 0,
        (table[min(p + 1, len(table) - 1)] - table[p]) * PAGE * token,
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
def gather(queries, order, n, count, first, heads, scale, tile):
    """tile[i * heads + a] = queries[order[n + i], first + a] * scale."""
    for i in range(count):
        for a in range(heads):
            for c in range(queries.shape[2]):
                tile[i * heads + a, c] = queries[order[n + i], first + a, c] * scale


@part
def follows(rows, lengths, i):
    """Whether query i is of a later position of the sequence of the one before."""
    return rows[i] == rows[i - 1] and lengths[i] > lengths[i - 1]


@part
def shared_pages(tables, rows, lengths, i):
    """How many leading pages queries i - 1 and i read together: all, of one sequence; of two tables, those that are
    equal and full for both.
    """
    if follows(rows, lengths, i):
        return tables.shape[1]
    full = min(lengths[i - 1], lengths[i]) // PAGE
    p = 0
    while p < full and tables[rows[i - 1], p] == tables[rows[i], p]:
        p += 1
    return p


@part
def readers(shared, i, count, p):
    """How many queries from i, the first to read page p, read it together."""
    j = i + 1
    while j < count and shared[j] > p:
        j += 1
    return j - i


@kernel
def paged_attention(
    queries: Array, keys: Array, values: Array, tables: Ints, order: Ints, rows: Ints, lengths: Ints, scale: float,
    out: Array,
) -> None:  # fmt: skip
    """out[n, h] = softmax(scale * q[n, h] · K) V over the first `lengths[i]` tokens of the pages `tables[rows[i]]`, for
    every n = order[i].

    queries [N, H, C]; out [N, H, <= V]; tables [sequences, most pages]; order, rows, lengths: of the queries that are
    to attend, all lengths >= 1. Those that follow each other read the leading pages that they share together: queries
    of one sequence, in the order of its positions, and of sequences whose tables begin alike. A decoded token does
    little with a key, so that reading it is most of the time.
    """
    heads, width = queries.shape[1:]
    groups = keys.shape[1]
    of_group = heads // groups
    together = max(1, BLOCK // heads)
    tile, totals = np.empty((together * heads, width), np.float32), np.empty(together * heads, np.float32)
    scores = np.empty((together * heads, tables.shape[1] * PAGE), np.float32)
    sums = np.empty((together * heads, values.shape[3]), np.float32)
    shared, ends = np.zeros(together, np.int64), np.empty(together, np.int64)
    n = 0
    while n < len(order):
        count = 1
        while count < together and n + count < len(order):
            shared[count] = shared_pages(tables, rows, lengths, n + count)
            if shared[count] == 0:
                break
            count += 1
        for i in range(count - 1, -1, -1):  # where the last query of its sequence ends
            goes_on = i + 1 < count and follows(rows, lengths, n + i + 1)
            ends[i] = ends[i + 1] if goes_on else lengths[n + i]
        tall = count * of_group  # rows of a group
        for g in range(groups):
            gather(queries, order, n, count, g * of_group, of_group, np.float32(scale), tile[g * tall :])
        for i in range(count):
            for p in range(shared[i], (ends[i] + PAGE - 1) // PAGE):
                some, table = readers(shared, i, count, p) * of_group, tables[rows[n + i]]
                for g in range(groups):
                    page_scores(tile, g * tall + i * of_group, some, keys, table, p, g, scores)
        for r in range(groups * tall):
            i = r % tall // of_group
            totals[r] = soften(scores, r, lengths[n + i], ends[i])
        for i in range(count):
            for p in range(shared[i], (ends[i] + PAGE - 1) // PAGE):
                some, table = readers(shared, i, count, p) * of_group, tables[rows[n + i]]
                for g in range(groups):
                    page_sums(scores, g * tall + i * of_group, some, values, table, p, g, ends[i], sums)
        for r in range(groups * tall):
            head = r // tall * of_group + r % of_group
            for c in range(out.shape[2]):
                out[order[n + r % tall // of_group], head, c] = sums[r, c] / totals[r]
        n += count


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
