"""MXFP8: E4M3 values that share one power-of-two scale in blocks of 32.

Owns the format's exact definition in torch: `quantise` and `dequantise`. `triton_quantise` writes the same bytes on a
GPU, `grouped_gemm` multiplies them. Never chooses which tensors are quantised: that is a recipe's business
(`low_precision`).

The format is that of the OCP Microscaling specification v1.0 (sections 5.3.1 and 5.4.1): a value is
`E4M3(code) * 2^(scale - 127)`. What the specification leaves open is decided as NVIDIA's hardware, Transformer Engine
and torchao's RCEIL mode decide it, so that bytes can be exchanged with them:

- the scale is the least power of two with which the block's largest magnitude is at most 448, i.e. it is rounded *up*:
  nothing saturates, while the specification's own rule (round down) clips the largest values of a block;
- values are rounded to nearest, ties to even, subnormals included;
- a block that would need a scale of 2^-127 or less (largest magnitude at most 448 * 2^-127) becomes zeros of scale 0;
- a block with a NaN has scale 255 (NaN) and every code 0x7F; one with an infinity has scale 254, infinities become 448.

Shapes: [..., K] values, K a multiple of 32; codes [..., K] and scales [..., K / 32], both uint8.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from etude.errors import ConfigError

BLOCK = 32
E4M3_MAX = 448.0
E8M0_NAN = 255
E8M0_INFINITE = 254
E4M3_NAN = 0x7F
_TWO_TO_MINUS_127 = 0x0040_0000  # bits of that float, a subnormal: it has no exponent field of its own


class MXFP8(NamedTuple):
    """Bytes of a quantised tensor; the last axis is the one that was blocked."""

    codes: Tensor
    """uint8 [..., K]: E4M3."""
    scales: Tensor
    """uint8 [..., K / 32]: E8M0, biased by 127."""


def quantise(x: Tensor) -> MXFP8:
    """The nearest MXFP8 of fp32 or bf16 values [..., K]."""
    require_blocks("MXFP8", x.shape[-1], BLOCK)
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    scales = _smallest_scale(blocks.abs().amax(-1))  # amax keeps a NaN
    scaled = (blocks * _reciprocal(scales)[..., None]).clamp(-E4M3_MAX, E4M3_MAX)
    codes = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    codes = codes.masked_fill((scales == E8M0_NAN)[..., None], E4M3_NAN)
    return MXFP8(codes.flatten(-2), scales)


def dequantise(quantised: MXFP8) -> Tensor:
    """fp32 values [..., K], exact."""
    values = quantised.codes.view(torch.float8_e4m3fn).float().unflatten(-1, (-1, BLOCK))
    return (values * _scale_value(quantised.scales)[..., None]).flatten(-2)


def _smallest_scale(amax: Tensor) -> Tensor:
    """E8M0 of the least power of two s with amax <= 448 s.

    No division: 448 is 0.875 * 2^9, so with amax = m * 2^e, 0.5 <= m < 1, the exponent is e - 9, one more if m is
    above 0.875. A logarithm of the quotient is wrong beside a power of two.
    """
    mantissa, exponent = torch.frexp(amax)
    biased = exponent - 9 + (mantissa > 0.875).int() + 127
    biased = torch.where(amax == 0, 0, biased).clamp(min=0)
    biased = torch.where(torch.isinf(amax), E8M0_INFINITE, biased)
    return torch.where(torch.isnan(amax), E8M0_NAN, biased).to(torch.uint8)


def _reciprocal(scales: Tensor) -> Tensor:
    """fp32 2^(127 - scale), and 0 where a block is flushed to zeros. Built from bits: exact everywhere."""
    wide = scales.int()
    bits = (254 - wide).clamp(min=0) << 23
    bits = torch.where(wide == E8M0_INFINITE, _TWO_TO_MINUS_127, bits)
    return torch.where(wide == 0, 0, bits).view(torch.float32)


def _scale_value(scales: Tensor) -> Tensor:
    """fp32 2^(scale - 127); NaN for 255."""
    wide = scales.int()
    bits = torch.where(wide == 0, _TWO_TO_MINUS_127, wide << 23)
    return bits.view(torch.float32).masked_fill(wide == E8M0_NAN, torch.nan)


def require_blocks(what: str, width: int, block: int) -> None:
    """A blocked axis must be whole blocks; a ConfigError says what to change."""
    if width % block:
        raise ConfigError(
            f"{what} shares a scale between {block} values, and {width} is not a multiple of {block}: "
            f"change the model's widths, or leave this layer in bf16"
        )
