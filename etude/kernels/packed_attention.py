"""Causal attention inside the segments of a packed axis, with its gradient: the trainer's side of `paged_attention`.

Owns the gradient's kernel and the pages that a packed batch is put in. Forward it runs the kernel that the engine
samples with, so its results have the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.kernels.paged_attention import (
    PAGE,
    Array,
    Ints,
    gather,
    page_scores,
    page_sums,
    paged_attention,
    soften,
    value_width,
    wide,
)
from etude.kernels.vectors import LANES, ROWS, in_parallel, kernel, part

BLOCK = 8 * ROWS
"""Rows, each a head of a query, whose gradients are summed at once."""


def packed_attention(q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, lengths: list[int], scale: float) -> Tensor:
    """softmax(scale * q k) v of each token over its segment up to itself; segments are `lengths` long, in order.

    Computed in fp32, whatever the inputs are.
    """
    return _Packed.apply(q_NHC.float(), k_NGC.float(), v_NGV.float(), lengths, scale).to(q_NHC.dtype)


class Pages:
    """Where the tokens of each segment lie: in pages of their own, one segment after another."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.starts = np.cumsum([0, *lengths])
        counts = [(length + PAGE - 1) // PAGE for length in lengths]
        ends = np.cumsum(counts)
        self.tables = np.minimum((ends - counts)[:, None] + np.arange(max(counts)), ends[-1] - 1)
        firsts = np.repeat((ends - counts) * PAGE - self.starts[:-1], lengths)
        self.at = torch.from_numpy(firsts + np.arange(self.starts[-1]))
        self.count = int(ends[-1])

    def fill(self, x_NGC: Tensor, turned: bool) -> Array:
        """[pages, PAGE, G, V], or [pages, G, C, PAGE] if `turned`; zeros where no token is."""
        width = x_NGC.shape[2] if turned else value_width(x_NGC.shape[2])
        pages = x_NGC.new_zeros((self.count * PAGE, x_NGC.shape[1], width))
        pages[self.at, :, : x_NGC.shape[2]] = x_NGC
        pages_PTGC = pages.unflatten(0, (-1, PAGE))
        return (pages_PTGC.permute(0, 2, 3, 1) if turned else pages_PTGC).contiguous().numpy()


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, lengths: list[int], scale: float) -> Tensor:
        pages = Pages(lengths)
        keys, values = pages.fill(k_NGC, turned=True), pages.fill(v_NGV, turned=False)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        every = np.arange(len(rows))
        seen = every - pages.starts[rows] + 1
        q, out = q_NHC.contiguous().numpy(), torch.empty((*q_NHC.shape[:2], v_NGV.shape[2]))

        def some(part: slice) -> None:
            paged_attention(q, keys, values, pages.tables, every[part], rows[part], seen[part], scale, out.numpy())

        in_parallel(len(rows), 128, some)
        ctx.save_for_backward(q_NHC, k_NGC, v_NGV, out)
        ctx.lengths, ctx.scale = lengths, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q_NHC, k_NGC, v_NGV, out_NHV = ctx.saved_tensors
        pages = Pages(ctx.lengths)
        dk, dv = (torch.zeros((*x.shape[:2], value_width(x.shape[2]))) for x in (k_NGC, v_NGV))
        dq, deltas = torch.empty(q_NHC.shape), (grads[0] * out_NHV).sum(-1)
        arrays = (
            *(x.contiguous().numpy() for x in (q_NHC, grads[0], deltas)),
            *(pages.fill(x, turned) for x in (k_NGC, v_NGV) for turned in (True, False)),
        )

        def some(part: slice) -> None:
            where = pages.tables, pages.starts, part.start, part.stop
            packed_backward(*arrays, *where, ctx.scale, dq.numpy(), dk.numpy(), dv.numpy())

        in_parallel(len(ctx.lengths) * k_NGC.shape[1], 1, some, least=1)
        return dq, dk[..., : k_NGC.shape[2]], dv[..., : v_NGV.shape[2]], None, None


@kernel
def packed_backward(
    queries: Array, grads: Array, deltas: Array, turned_keys: Array, keys: Array, turned_values: Array, values: Array,
    tables: Ints, starts: Ints, first: int, end: int, scale: float, dq: Array, dk: Array, dv: Array,
) -> None:  # fmt: skip
    """Gradients of groups `first` to `end` of all segments' (group g of segment s is s * G + g), tokens starts[s] to
    starts[s + 1] of the packed axis; adds to dk and dv, whose channels are filled up as those of values in pages are.
    """
    heads, width = queries.shape[1:]
    groups = keys.shape[2]
    of_group = heads // groups
    many = max(1, BLOCK // of_group)
    rows = many * of_group
    every = np.arange(len(queries))
    tile_q, tile_g = np.zeros((rows, dk.shape[2]), np.float32), np.zeros((rows, dv.shape[2]), np.float32)
    weights = np.empty((rows, tables.shape[1] * PAGE), np.float32)
    slopes, tile_dq = np.empty_like(weights), np.empty_like(tile_q)
    for each in range(first, end):
        s, g = each // groups, each % groups
        for n in range(starts[s], starts[s + 1], many):
            some = min(many, starts[s + 1] - n)
            longest = n + some - starts[s]
            gather(queries, every, n, some, g * of_group, of_group, np.float32(scale), tile_q)
            gather(grads, every, n, some, g * of_group, of_group, np.float32(1.0), tile_g)
            slopes_of(
                tile_q, tile_g, turned_keys, turned_values, tables[s], g, n - starts[s], some, of_group,
                deltas[n : n + some, g * of_group : (g + 1) * of_group], weights, slopes,
            )  # fmt: skip
            for p in range((longest + PAGE - 1) // PAGE):
                page_sums(slopes, 0, some * of_group, keys, tables[s], p, g, longest, tile_dq)
            for r in range(some * of_group):
                for c in range(width):
                    dq[n + r // of_group, g * of_group + r % of_group, c] = tile_dq[r, c] * np.float32(scale)
            to_tokens(slopes, tile_q, dk, starts[s], g, longest, some * of_group)
            to_tokens(weights, tile_g, dv, starts[s], g, longest, some * of_group)


@part
def slopes_of(
    tile_q, tile_g, turned_keys, turned_values, table, g, before, count, of_group, deltas, weights, slopes
):  # fmt: skip
    """The softmax's weights, of `count` queries after `before` others, and the gradients of what is under it."""
    rows, longest = count * of_group, before + count
    for p in range((longest + PAGE - 1) // PAGE):
        page_scores(tile_q, 0, rows, turned_keys, table, p, g, weights)
        page_scores(tile_g, 0, rows, turned_values, table, p, g, slopes)
    for r in range(rows):
        share = np.float32(1.0) / soften(weights, r, before + r // of_group + 1, longest)
        delta = deltas[r // of_group, r % of_group]
        for t in range(longest):
            weights[r, t] *= share
            slopes[r, t] = weights[r, t] * (slopes[r, t] - delta)


@part
def to_tokens(weights, tile, out, start, g, length, rows):
    """out[start + t, g] += sum over rows r of weights[r, t] * tile[r]"""
    groups, width = out.shape[1:]
    for t in range(0, length, ROWS):
        wide(
            weights, t, 1, weights.shape[1], tile, 0, width, out, ((start + t) * groups + g) * width, groups * width,
            rows, min(ROWS, length - t), width // LANES, True, 0,
        )  # fmt: skip
