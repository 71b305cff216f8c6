"""NVFP4 with an outer scale per token: E2M1 values, an E4M3 scale per 16 of them, an FP32 scale per row.

Owns the format's exact definition in torch: `quantise`, `dequantise`, and the choice of outer scale (`row_scales`,
`matrix_scales`). `triton_quantise` writes the same bytes on a GPU. Never chooses which tensors are quantised.

A value is `E2M1(code) * E4M3(scale) * outer`. NVIDIA's format (arXiv 2509.25149) has one outer scale a tensor. In
training that makes a token's code depend on every other token of the batch: the forward is no longer batch-invariant,
and a token sees how large later tokens are. With one outer scale a row (Composer 2, arXiv 2603.24477) neither happens,
and since the outer scale is constant along the contraction it leaves the matrix product, so hardware needs nothing new.
Weights do not depend on the batch: they take one outer scale a matrix, which is the published checkpoints' form.

Rounding, with s the outer scale, all in fp32, every division IEEE (an approximate reciprocal moves values over rounding
boundaries; sampler and trainer then drift apart):

- s = max(amax of the row / (448 * 6), 2^-120): the floor keeps zero rows from dividing by zero;
- block scale b = E4M3((amax of the block / 6) / s), clamped to [2^-6, 448], i.e. never zero and never subnormal, as in
  torchao; to nearest, ties to even;
- code = E2M1(x / (b * s)), to nearest, ties to even, saturating at 6; the sign of a zero is kept;
- a NaN or infinity makes its block's scale NaN (0x7F) and its row's outer scale NaN or infinite, and with that every
  value of the row NaN. A quotient that is NaN gets the magnitude 6, as in PTX's cvt.rn.satfinite.e2m1x2.

torchao's reference multiplies by (1 / s) / b instead of dividing by b * s: its scales are byte for byte ours, its codes
differ in the rare values within two units in the last place of a rounding boundary.

Shapes: [..., K] values, K a multiple of 16; codes [..., K / 2] uint8, the even element in the low half of a byte;
scales [..., K / 16] uint8; outer [..., 1] fp32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from etude.kernels.mxfp8 import E4M3_MAX, E4M3_NAN, require_blocks

BLOCK = 16
E2M1_MAX = 6.0
SMALLEST_BLOCK_SCALE = 2.0**-6
SMALLEST_OUTER_SCALE = 2.0**-120
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class NVFP4(NamedTuple):
    """Bytes of a quantised tensor; the last axis is the one that was blocked."""

    codes: Tensor
    """uint8 [..., K / 2]: two E2M1 a byte."""
    scales: Tensor
    """uint8 [..., K / 16]: E4M3."""
    outer: Tensor
    """fp32 [..., 1]."""


def row_scales(x: Tensor) -> Tensor:
    """Outer scales [..., 1] fp32 of the rows of x [..., K]: of a token, by what is in the token alone."""
    return _outer(x.float().abs().amax(-1, keepdim=True))


def matrix_scales(weight_ENK: Tensor) -> Tensor:
    """Outer scales [E, N, 1] fp32, the same for all rows of a matrix. For weights: on activations they leak."""
    return _outer(weight_ENK.float().abs().amax((-2, -1), keepdim=True)).expand(*weight_ENK.shape[:-1], 1)


def _outer(amax: Tensor) -> Tensor:
    return (amax / (E4M3_MAX * E2M1_MAX)).clamp(min=SMALLEST_OUTER_SCALE)  # clamp keeps a NaN


def quantise(x: Tensor, outer: Tensor | None = None) -> NVFP4:
    """The nearest NVFP4 of fp32 or bf16 values [..., K], with the given outer scales [..., 1] or one a row."""
    require_blocks("NVFP4", x.shape[-1], BLOCK)
    outer = row_scales(x) if outer is None else outer
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    wanted = (blocks.abs().amax(-1) / E2M1_MAX) / outer
    scales = wanted.clamp(SMALLEST_BLOCK_SCALE, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    scales = scales.masked_fill(torch.isnan(wanted), E4M3_NAN)
    quotients = blocks / (scales.view(torch.float8_e4m3fn).float() * outer)[..., None]
    codes = encode_e2m1(quotients.copysign(blocks)).flatten(-2)  # the sign of a NaN is not defined
    return NVFP4(codes[..., 0::2] | codes[..., 1::2] << 4, scales, outer)


def dequantise_blocks(codes: Tensor, scales: Tensor) -> Tensor:
    """fp32 values [..., K] without their outer scale. Exact in bf16 too: 2 significant bits times 4."""
    unpacked = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    values = decode_e2m1(unpacked).unflatten(-1, (-1, BLOCK))
    return (values * scales.view(torch.float8_e4m3fn).float()[..., None]).flatten(-2)


def dequantise(quantised: NVFP4) -> Tensor:
    """fp32 values [..., K]."""
    return dequantise_blocks(quantised.codes, quantised.scales) * quantised.outer


def encode_e2m1(x: Tensor) -> Tensor:
    """Nearest E2M1, one a byte. The bounds are the midpoints of neighbours; a tie belongs to the even code."""
    magnitude = x.abs()
    code = (magnitude > 0.25).to(torch.uint8)
    for bound, up_at_a_tie in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)):
        code += (magnitude >= bound) if up_at_a_tie else (magnitude > bound)
    code = code.masked_fill(torch.isnan(x), 7)
    return code | torch.signbit(x).to(torch.uint8) << 3


def decode_e2m1(codes: Tensor) -> Tensor:
    """fp32 values of E2M1 codes, one a byte."""
    table = torch.tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], dtype=torch.float32, device=codes.device)
    return table[codes.int()]
