"""The experts of a few tokens on a GPU, output by output: `moe_decode` in two Triton kernels.

Owns the kernels and their launcher. A decoding step has too few tokens an expert for tensor cores: it is bound by
reading weights. The usual path sorts tokens by expert, pads each group to a tile, multiplies tiles that are mostly
padding, and sorts back. Here a program owns a few output neurons of one token and streams their weight rows once,
without a permutation, padding or buffers of sorted tokens: the first kernel makes silu(gate) * up for each of a token's
experts, the second adds the experts' outputs up, weighted. Rows of an expert that several tokens share come from L2.

A result depends on its own token alone and is summed in one order, so its bits are the same in any batch. Sums and the
activations between the kernels are fp32. Weights are fp32, bf16 or MXFP8; codes times scales are exact in fp32. bf16 is
read and written as bits, which the interpreter can do too. Imported only where Triton is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.errors import ConfigError
from etude.kernels.moe_decode import Experts, Matrix
from etude.kernels.mxfp8 import MXFP8

NEURONS, DEPTH, WARPS = 8, 512, 4
"""Output neurons of a program, how much of their rows it reads at a time, and its warps."""
_FLOAT, _BF16, _MXFP8 = 0, 1, 2


@triton.jit
def _load(pointer, at, mask, FORM: tl.constexpr):
    """fp32 values of fp32, or of bf16 seen as int16."""
    raw = tl.load(pointer + at, mask=mask, other=0)
    if FORM == 1:
        raw = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return raw


@triton.jit
def _rows(weight, scales, row, real, start, width, FORM: tl.constexpr, DEPTH: tl.constexpr):
    """[rows, DEPTH] fp32 of a matrix with contiguous rows, from column `start` on; 0 beyond it."""
    column = start + tl.arange(0, DEPTH)
    mask = real[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    if FORM == 2:
        code = tl.load(weight + at, mask=mask, other=0).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        scale = tl.load(scales + at // 32, mask=mask, other=0).to(tl.int32)
        values = code * tl.where(scale == 255, 0x7FC00000, scale << 23).to(tl.float32, bitcast=True)
    else:
        values = _load(weight, at, mask, FORM)
    return values


@triton.jit
def gate_up_kernel(
    x, weight, scales, experts, out, width, hidden,
    K: tl.constexpr, X: tl.constexpr, W: tl.constexpr, NEURONS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out[token, k, f] = silu(gate_f) * up_f of the token's k-th expert, for NEURONS values of f."""
    slot = tl.program_id(0)
    neuron = tl.program_id(1) * NEURONS + tl.arange(0, NEURONS)
    real = neuron < hidden
    first = tl.load(experts + slot).to(tl.int64) * 2 * hidden
    gates, ups = tl.zeros((NEURONS, DEPTH), tl.float32), tl.zeros((NEURONS, DEPTH), tl.float32)
    for start in range(0, width, DEPTH):
        column = start + tl.arange(0, DEPTH)
        values = _load(x, (slot // K).to(tl.int64) * width + column, column < width, X)[None, :]
        gates += _rows(weight, scales, first + neuron, real, start, width, W, DEPTH) * values
        ups += _rows(weight, scales, first + hidden + neuron, real, start, width, W, DEPTH) * values
    gate = tl.sum(gates, axis=1)
    tl.store(out + slot.to(tl.int64) * hidden + neuron, gate / (1.0 + tl.exp(-gate)) * tl.sum(ups, axis=1), mask=real)


@triton.jit
def down_kernel(
    inner, weight, scales, experts, gates, out, width, hidden,
    K: tl.constexpr, X: tl.constexpr, W: tl.constexpr, NEURONS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """out[token, d] = sum over the token's experts of gate * (inner . down row d), for NEURONS values of d."""
    token = tl.program_id(0)
    neuron = tl.program_id(1) * NEURONS + tl.arange(0, NEURONS)
    real = neuron < width
    total = tl.zeros((NEURONS,), tl.float32)
    for k in range(K):
        slot = token * K + k
        first = tl.load(experts + slot).to(tl.int64) * width
        sums = tl.zeros((NEURONS, DEPTH), tl.float32)
        for start in range(0, hidden, DEPTH):
            column = start + tl.arange(0, DEPTH)
            values = tl.load(inner + slot.to(tl.int64) * hidden + column, mask=column < hidden, other=0.0)
            sums += _rows(weight, scales, first + neuron, real, start, hidden, W, DEPTH) * values[None, :]
        total += tl.load(gates + slot) * tl.sum(sums, axis=1)
    at = out + token.to(tl.int64) * width + neuron
    if X == 1:  # to the nearest bf16, ties to even
        bits = total.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        tl.store(at, tl.where(total != total, 0x7FC0, rounded).to(tl.int16), mask=real)
    else:
        tl.store(at, total, mask=real)


def moe_decode(x_ND: Tensor, experts_NK: Tensor, gates_NK: Tensor, experts: Experts) -> Tensor:
    """[N, D] of x's dtype: see `moe_decode.moe_decode`."""
    tokens, width = x_ND.shape
    gate_up, gate_up_scales, hidden = _parts(experts.gate_up, width)
    down, down_scales, outputs = _parts(experts.down, hidden // 2)
    if outputs != width:
        raise ConfigError(f"experts of {outputs} outputs do not fit a model of width {width}")
    hidden, top_k = hidden // 2, experts_NK.shape[1]
    chosen, gates = experts_NK.contiguous(), gates_NK.float().contiguous()
    inner = torch.empty(tokens, top_k, hidden, dtype=torch.float32, device=x_ND.device)
    out = torch.empty_like(x_ND, memory_format=torch.contiguous_format)
    if not tokens:
        return out
    x = x_ND.contiguous()
    shape = {"K": top_k, "X": _form(x), "NEURONS": NEURONS, "DEPTH": DEPTH, "num_warps": WARPS}
    gate_up_kernel[(tokens * top_k, triton.cdiv(hidden, NEURONS))](
        _bits(x), gate_up, gate_up_scales, chosen, inner, width, hidden, W=_form(experts.gate_up), **shape
    )
    down_kernel[(tokens, triton.cdiv(width, NEURONS))](
        inner, down, down_scales, chosen, gates, _bits(out), width, hidden, W=_form(experts.down), **shape
    )
    return out


def _parts(weight: Matrix, width: int) -> tuple[Tensor, Tensor, int]:
    """What the kernels read (codes, and scales or, for want of them, the same again), and the rows of an expert."""
    codes, scales = (weight.codes, weight.scales) if isinstance(weight, MXFP8) else (weight, weight)
    if codes.shape[2] != width or not codes.is_contiguous():
        raise ConfigError(f"expert weights of shape {list(codes.shape)} are not contiguous rows of {width}")
    return _bits(codes), _bits(scales), codes.shape[1]


def _form(x: Matrix) -> int:
    if isinstance(x, MXFP8):
        return _MXFP8
    if x.dtype not in (torch.float32, torch.bfloat16):
        raise ConfigError(f"{x.dtype} is not computed with here: give fp32, bf16 or MXFP8")
    return _BF16 if x.dtype == torch.bfloat16 else _FLOAT


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int16) if x.dtype == torch.bfloat16 else x
