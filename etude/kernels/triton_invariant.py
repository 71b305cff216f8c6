"""Products, norms and attention on a GPU whose bits do not depend on the batch: Triton kernels of one order each.

Owns `linear`, `grouped_linear`, `rms_norm` and `attention`. What a row gets is a function of that row, and for
attention of the keys it sees: alone, in a batch, prefilled in any chunking, decoded, recomputed by a trainer in a
packed batch. A library picks its routine by shape and each adds up in another order; here shapes choose nothing:

- `linear` has one tile size. A program sums the whole contraction of its tile in order; nothing is split over programs,
  also where few rows leave most of a tile empty. A row of a tensor-core instruction depends on no other row.
- `grouped_linear` is the same for rows that are sorted by expert; no tile belongs to two experts (`kernels.groups`).
- `rms_norm` sums a row in one program, in pieces of one size.
- `attention` cuts keys into blocks of BLOCK and splits of SPLIT, counted from the sequence's first key. A split is one
  program, blocks in order, so that a long context keeps a GPU busy with one query; then splits are merged in order.
  What a query does not see adds exact zeros. Splits of a fixed *number*, the usual choice, would move their borders as
  the context grows.

fp32 and bf16 in, the same out; sums are fp32. Imported only where Triton is. The interpreter multiplies fp32 copies of
bf16 operands, which is exact. Shapes: N rows or queries, M keys, H query heads, G key heads, C channels, S sequences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from etude.errors import ConfigError
from etude.kernels.groups import Groups

ROWS, COLUMNS, DEPTH = 64, 128, 64
QUERIES, BLOCK, SPLIT = 64, 64, 512
PIECE = 1024


@triton.jit
def linear_kernel(
    x, weight, out, rows, width, outputs,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out[m, n] = x[m] . weight[n] for one tile."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, DEPTH):
        at = start + tl.arange(0, DEPTH)
        inside = (at < width)[None, :]
        left = tl.load(
            x + row.to(tl.int64)[:, None] * width + at[None, :], mask=(row < rows)[:, None] & inside, other=0
        )
        where = weight + column.to(tl.int64)[:, None] * width + at[None, :]
        right = tl.load(where, mask=(column < outputs)[:, None] & inside, other=0)
        sums = tl.dot(left, tl.trans(right), sums, input_precision="ieee")
    mask = (row < rows)[:, None] & (column < outputs)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * outputs + column[None, :], sums, mask=mask)


@triton.jit
def grouped_kernel(
    x, weight, out, expert_T, first_T, stop_T, width, outputs,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out[m, n] = sum over k of x[m, k] weight[expert, k, n] for one tile of an expert's rows."""
    tile = tl.program_id(0)
    first, stop = tl.load(first_T + tile), tl.load(stop_T + tile)
    if first == stop:  # a spare tile
        return
    row = first + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real, present = row < stop, column < outputs
    matrix = weight + tl.load(expert_T + tile).to(tl.int64) * width * outputs
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, DEPTH):
        at = start + tl.arange(0, DEPTH)
        inside = at < width
        where = x + row.to(tl.int64)[:, None] * width + at[None, :]
        left = tl.load(where, mask=real[:, None] & inside[None, :], other=0)
        where = matrix + at.to(tl.int64)[:, None] * outputs + column[None, :]
        right = tl.load(where, mask=inside[:, None] & present[None, :], other=0)
        sums = tl.dot(left, right, sums, input_precision="ieee")
    tl.store(out + row.to(tl.int64)[:, None] * outputs + column[None, :], sums, mask=real[:, None] & present[None, :])


@triton.jit
def rms_norm_kernel(x, weight, out, width, eps, PIECE: tl.constexpr):
    """One row: x / sqrt(mean(x^2) + eps) * weight."""
    row = tl.program_id(0).to(tl.int64) * width
    squares = tl.zeros((PIECE,), tl.float32)
    for start in range(0, width, PIECE):
        at = start + tl.arange(0, PIECE)
        value = tl.load(x + row + at, mask=at < width, other=0).to(tl.float32)
        squares += value * value
    scale = 1.0 / tl.sqrt_rn(tl.sum(squares, axis=0) / width + eps)
    for start in range(0, width, PIECE):
        at = start + tl.arange(0, PIECE)
        value = tl.load(x + row + at, mask=at < width, other=0).to(tl.float32) * scale
        tl.store(out + row + at, value * tl.load(weight + at, mask=at < width, other=0).to(tl.float32), mask=at < width)


@triton.jit
def split_kernel(
    q, k, v, sums, tops, totals, sequence_T, first_T, stop_T, query_ends_S, key_ends_S, queries, scale,
    H: tl.constexpr, SHARED: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr,
    QUERIES: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One tile of a sequence's queries, one head, one split of its keys: sum of p v, largest logit, sum of p."""
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, stop = tl.load(first_T + tile), tl.load(stop_T + tile)
    if first == stop:  # a spare tile
        return
    sequence = tl.load(sequence_T + tile)
    key_first = tl.load(key_ends_S + sequence - 1, mask=sequence > 0, other=0)
    key_stop = tl.load(key_ends_S + sequence)
    query = first + tl.arange(0, QUERIES)
    real = query < stop
    seen = key_stop - key_first - tl.load(query_ends_S + sequence) + query + 1  # keys of the sequence that a query sees
    if split * SPLIT >= tl.max(tl.where(real, seen, 0)):
        return
    channel = tl.arange(0, WIDE)
    own = real[:, None] & (channel < C)[None, :]
    at = (query.to(tl.int64)[:, None] * H + head) * C + channel[None, :]
    values = tl.load(q + at, mask=own, other=0)
    total = tl.zeros((QUERIES,), tl.float32)
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    mixed = tl.zeros((QUERIES, WIDE), tl.float32)
    for start in range(0, SPLIT, BLOCK):
        key = split * SPLIT + start + tl.arange(0, BLOCK)
        inside = (key < key_stop - key_first)[:, None] & (channel < C)[None, :]
        where = ((key_first + key).to(tl.int64)[:, None] * (H // SHARED) + head // SHARED) * C + channel[None, :]
        logits = tl.dot(values, tl.trans(tl.load(k + where, mask=inside, other=0)), input_precision="ieee") * scale
        logits = tl.where(key[None, :] < seen[:, None], logits, float("-inf"))
        higher = tl.maximum(top, tl.max(logits, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a query that has seen nothing yet
        weights = tl.exp(logits - base[:, None])
        fade = tl.exp(top - base)
        total = total * fade + tl.sum(weights, axis=1)
        value = tl.load(v + where, mask=inside, other=0)
        mixed = tl.dot(weights.to(value.dtype), value, mixed * fade[:, None], input_precision="ieee")
        top = higher
    slot = (split * queries + query).to(tl.int64) * H + head
    tl.store(tops + slot, top, mask=real)
    tl.store(totals + slot, total, mask=real)
    tl.store(sums + slot[:, None] * C + channel[None, :], mixed, mask=own)


@triton.jit
def merge_kernel(sums, tops, totals, out, seen_N, queries, H: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr,
                 SPLIT: tl.constexpr):  # fmt: skip
    """One query and head: its splits, first to last."""
    query, head = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, WIDE)
    top, total = float("-inf"), 0.0
    mixed = tl.zeros((WIDE,), tl.float32)
    for split in range(0, tl.cdiv(tl.load(seen_N + query), SPLIT)):
        slot = (split * queries + query).to(tl.int64) * H + head
        other = tl.load(tops + slot)
        higher = tl.maximum(top, other)
        fade, share = tl.exp(top - higher), tl.exp(other - higher)
        total = total * fade + tl.load(totals + slot) * share
        mixed = mixed * fade + tl.load(sums + slot * C + channel, mask=channel < C, other=0.0) * share
        top = higher
    at = (query.to(tl.int64) * H + head) * C + channel
    tl.store(out + at, mixed / total, mask=channel < C)


def linear(x_ND: Tensor, weight_OD: Tensor) -> Tensor:
    """x W^T [N, O], as torch's."""
    rows, width = x_ND.shape
    outputs = weight_OD.shape[0]
    out = _result(x_ND, rows, outputs)
    if rows:
        linear_kernel[(triton.cdiv(rows, ROWS), triton.cdiv(outputs, COLUMNS))](
            _operand(x_ND), _operand(weight_OD), out, rows, width, outputs,
            ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, num_warps=8,
        )  # fmt: skip
    return out.to(x_ND.dtype)


def grouped_linear(rows_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor) -> Tensor:
    """Each row times its expert's matrix [M, N]; rows are sorted by expert, whose rows end at `ends_E`."""
    count, width = rows_MK.shape
    outputs = weight_EKN.shape[2]
    out, tiles = _result(rows_MK, count, outputs), Groups.of(ends_E, count, ROWS)
    if count:
        grouped_kernel[(len(tiles.expert_T), triton.cdiv(outputs, COLUMNS))](
            _operand(rows_MK), _operand(weight_EKN), out, tiles.expert_T, tiles.first_T, tiles.stop_T, width, outputs,
            ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, num_warps=8,
        )  # fmt: skip
    return out.to(rows_MK.dtype)


def rms_norm(x_ND: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """[N, D], as torch's."""
    out = _result(x_ND, *x_ND.shape)
    if len(x_ND):
        rms_norm_kernel[(len(x_ND),)](
            _operand(x_ND), _operand(weight_D), out, x_ND.shape[1], eps, PIECE=PIECE, num_warps=4
        )
    return out.to(x_ND.dtype)


def attention(
    q_NHC: Tensor,
    k_MGC: Tensor,
    v_MGC: Tensor,
    query_ends_S: Tensor,
    key_ends_S: Tensor,
    scale: float,
    longest: int | None = None,
) -> Tensor:
    """Causal attention [N, H, C] of packed sequences. A sequence's queries are the last of its tokens: as many as its
    keys where it is trained on or prefilled whole, one where it decodes. Who knows how many keys the `longest` has
    says so: otherwise the device is asked.
    """
    queries, heads, channels = q_NHC.shape
    groups = k_MGC.shape[1]
    if heads % groups:
        raise ConfigError(f"{heads} query heads cannot share {groups} key heads evenly")
    out = _result(q_NHC, queries, heads, channels)
    if not queries:
        return out.to(q_NHC.dtype)
    tiles = Groups.of(query_ends_S, queries, QUERIES)
    key_ends, query_ends = key_ends_S.int(), query_ends_S.int()
    lengths = torch.diff(key_ends, prepend=key_ends.new_zeros(1))
    splits = triton.cdiv(int(lengths.max()) if longest is None else longest, SPLIT)
    owner_N = torch.searchsorted(query_ends, torch.arange(queries, device=out.device).int(), right=True)
    seen_N = (lengths - query_ends)[owner_N] + torch.arange(queries, device=out.device).int() + 1
    sums = torch.empty(splits, queries, heads, channels, dtype=torch.float32, device=out.device)
    tops, totals = torch.empty(2, splits, queries, heads, dtype=torch.float32, device=out.device)
    shape = {"H": heads, "C": channels, "WIDE": max(16, triton.next_power_of_2(channels)), "SPLIT": SPLIT}
    split_kernel[(len(tiles.expert_T), heads, splits)](
        _operand(q_NHC), _operand(k_MGC), _operand(v_MGC), sums, tops, totals,
        tiles.expert_T, tiles.first_T, tiles.stop_T, query_ends, key_ends, queries, scale,
        SHARED=heads // groups, QUERIES=QUERIES, BLOCK=BLOCK, num_warps=4, **shape,
    )  # fmt: skip
    merge_kernel[(queries, heads)](sums, tops, totals, out, seen_N.int(), queries, num_warps=1, **shape)
    return out.to(q_NHC.dtype)


def _operand(x: Tensor) -> Tensor:
    if x.dtype not in (torch.float32, torch.bfloat16):
        raise ConfigError(f"{x.dtype} is not computed with here: give fp32 or bf16")
    return x.float().contiguous() if knobs.runtime.interpret else x.contiguous()


def _result(x: Tensor, *shape: int) -> Tensor:
    """What a kernel stores into: it rounds to this dtype; the interpreter stores fp32, which is rounded after."""
    dtype = torch.float32 if knobs.runtime.interpret else x.dtype
    return torch.empty(shape, dtype=dtype, device=x.device)
