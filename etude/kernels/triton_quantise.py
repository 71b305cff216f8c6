"""Quantising on a GPU: Triton kernels that write the bytes of `mxfp8` and `nvfp4`, scales already in their layout.

Owns three kernels and their launchers: MXFP8 along rows, MXFP8 along columns (transposing: the operands of a weight
gradient, which contracts over tokens), NVFP4 along rows. Imported only where Triton is: for tensors on a CUDA device,
or in Triton's interpreter (TRITON_INTERPRET=1), where the tests compare every byte with the references.

One exact path for device and interpreter. A code is found with integers and one addition: to round y to a format with
m mantissa bits, add the power of two whose fp32 mantissa ends at y's last kept bit; the adder then rounds to nearest
even, subnormals included (`_encode`). Largest magnitudes are compared as integers, which order a NaN above everything,
where a floating maximum may lose it. Division is IEEE (`div_rn`). bf16 is read as bits and shifted, which is exact.

Scales go to atoms (`scale_layout`) or, with `swizzled=False`, to a row-major matrix. Rows keep their place; their
scales lie in the tiles' order of `groups`, padded per expert, because a GEMM's tile needs whole atoms of one expert.

Bandwidth: each kernel reads its input once from memory (NVFP4's second pass over a row hits the cache) and writes codes
and scales once; `benchmarks/gpu/low_precision.py` compares that with a copy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.kernels import mxfp8, nvfp4, scale_layout
from etude.kernels.groups import Groups

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_INFINITE = tl.constexpr(0x7F800000)


@triton.jit
def _load_bits(pointer, mask, BF16: tl.constexpr):
    """fp32 bits of fp32 (seen as int32) or bf16 (seen as int16) values; 0 outside the mask."""
    raw = tl.load(pointer, mask=mask, other=0)
    if BF16:
        raw = raw.to(tl.int32) << 16
    return raw


@triton.jit
def _float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _encode(magnitude, MANTISSA: tl.constexpr, LOWEST: tl.constexpr):
    """Code, without its sign, of fp32 magnitudes in [0, largest value]; LOWEST is the exponent field of the smallest
    normal value."""
    exponent = tl.maximum(magnitude.to(tl.int32, bitcast=True) >> 23, LOWEST)
    adder = (exponent + (23 - MANTISSA)) << 23
    steps = (magnitude + _float(adder)).to(tl.int32, bitcast=True) - adder
    return ((exponent - LOWEST) << MANTISSA) + steps


@triton.jit
def _encode_e4m3(magnitude):
    return _encode(tl.where(magnitude < 448.0, magnitude, 448.0), 3, 121)


@triton.jit
def _encode_e2m1(magnitude):
    return _encode(tl.where(magnitude < 6.0, magnitude, 6.0), 1, 127)  # a NaN becomes 6


@triton.jit
def _e8m0(amax_bits):
    """`mxfp8._smallest_scale` on the bits of magnitudes: 448 is 1.75 * 2^8."""
    scale = tl.maximum((amax_bits >> 23) - 8 + ((amax_bits & 0x7FFFFF) > 0x600000).to(tl.int32), 0)
    scale = tl.where(amax_bits == _INFINITE, 254, scale)
    return tl.where(amax_bits > _INFINITE, 255, scale)


@triton.jit
def _reciprocal(scale):
    """2^(127 - scale), 0 for a block that becomes zeros."""
    bits = tl.where(scale >= 254, 0x00400000, (254 - scale) << 23)
    return _float(tl.where(scale == 0, 0, bits))


@triton.jit
def _e4m3_block(bits, scale):
    """Codes of values under their (broadcast) E8M0 scales."""
    codes = _encode_e4m3(_float(bits & _MAGNITUDE) * _reciprocal(scale)) | ((bits >> 24) & 0x80)
    return tl.where(scale == 255, 0x7F, codes)


@triton.jit
def scale_offset(row, column, across, SWIZZLED: tl.constexpr):
    """Byte of a scale: in atoms of which `across` lie side by side, or in a row-major matrix of `across` columns."""
    if SWIZZLED:
        inside = (row % 32) * 16 + (row % 128) // 32 * 4 + column % 4
        return (row // 128 * across + column // 4).to(tl.int64) * 512 + inside
    return row.to(tl.int64) * across + column


@triton.jit
def mxfp8_rows_kernel(
    x, codes, scales, first_T, stop_T, K, across,
    BF16: tl.constexpr, SWIZZLED: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """ROWS rows by BLOCKS blocks of 32 of one tile."""
    parts: tl.constexpr = TILE // ROWS
    tile = tl.program_id(0) // parts
    inside = tl.program_id(0) % parts * ROWS + tl.arange(0, ROWS)
    row = tl.load(first_T + tile) + inside
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    mask = (row < tl.load(stop_T + tile))[:, None, None] & (column < K)[None, :, :]
    at = row.to(tl.int64)[:, None, None] * K + column[None, :, :]
    bits = _load_bits(x + at, mask, BF16)
    scale = _e8m0(tl.max(bits & _MAGNITUDE, axis=2))
    tl.store(codes + at, _e4m3_block(bits, scale[:, :, None]).to(tl.uint8), mask=mask)
    slot = tile * TILE + inside
    where = scale_offset(slot[:, None], block[None, :], across, SWIZZLED)
    tl.store(scales + where, scale.to(tl.uint8), mask=(block * 32 < K)[None, :] & (slot >= 0)[:, None])


@triton.jit
def mxfp8_columns_kernel(
    x, codes, scales, first_T, stop_T, K, slots, across,
    BF16: tl.constexpr, SWIZZLED: tl.constexpr, TILE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """One tile of tokens by CHANNELS channels, written transposed: codes [K, slots], scales [K, slots / 32]."""
    blocks: tl.constexpr = TILE // 32
    tile = tl.program_id(0)
    inside = tl.arange(0, blocks)[:, None] * 32 + tl.arange(0, 32)[None, :]
    row = tl.load(first_T + tile) + inside
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = (row < tl.load(stop_T + tile))[:, :, None] & (channel < K)[None, None, :]
    bits = _load_bits(x + row.to(tl.int64)[:, :, None] * K + channel[None, None, :], mask, BF16)
    scale = _e8m0(tl.max(bits & _MAGNITUDE, axis=1))
    transposed = tl.permute(_e4m3_block(bits, scale[:, None, :]).to(tl.uint8), (2, 0, 1))
    at = channel.to(tl.int64)[:, None, None] * slots + (tile * TILE + inside)[None, :, :]
    tl.store(codes + at, transposed, mask=(channel < K)[:, None, None] & (inside >= 0)[None, :, :])
    block = tile * blocks + tl.arange(0, blocks)
    where = scale_offset(channel[:, None], block[None, :], across, SWIZZLED)
    tl.store(scales + where, tl.trans(scale).to(tl.uint8), mask=(channel < K)[:, None] & (block >= 0)[None, :])


@triton.jit
def nvfp4_rows_kernel(
    x, codes, scales, outer, first_T, stop_T, K, across,
    GIVEN: tl.constexpr, BF16: tl.constexpr, SWIZZLED: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """ROWS whole rows of one tile: once through them for the outer scale (unless GIVEN), once for the codes."""
    parts: tl.constexpr = TILE // ROWS
    tile = tl.program_id(0) // parts
    inside = tl.program_id(0) % parts * ROWS + tl.arange(0, ROWS)
    row = tl.load(first_T + tile) + inside
    real = row < tl.load(stop_T + tile)
    base = row.to(tl.int64) * K
    if GIVEN:
        token = tl.load(outer + row, mask=real, other=1.0)
    else:
        highest = tl.zeros((ROWS,), tl.int32)
        for start in range(0, K, BLOCKS * 16):
            column = start + tl.arange(0, BLOCKS * 16)
            mask = real[:, None] & (column < K)[None, :]
            bits = _load_bits(x + base[:, None] + column[None, :], mask, BF16)
            highest = tl.maximum(highest, tl.max(bits & _MAGNITUDE, axis=1))
        token = tl.div_rn(_float(highest), tl.full((ROWS,), 2688.0, tl.float32))
        token = tl.where(token < 7.523163845262640e-37, 7.523163845262640e-37, token)  # 2^-120; a NaN stays
        tl.store(outer + row, token, mask=real)
    for start in range(0, K, BLOCKS * 16):
        block = start // 16 + tl.arange(0, BLOCKS)
        column = block[:, None] * 16 + tl.arange(0, 16)[None, :]
        mask = real[:, None, None] & (column < K)[None, :, :]
        bits = _load_bits(x + base[:, None, None] + column[None, :, :], mask, BF16)
        scale, code = _nvfp4_block(bits, token, ROWS, BLOCKS)
        low, high = tl.split(tl.reshape(code, (ROWS, BLOCKS * 8, 2)))
        byte = start // 2 + tl.arange(0, BLOCKS * 8)
        at = row.to(tl.int64)[:, None] * (K // 2) + byte[None, :]
        tl.store(codes + at, (low | high << 4).to(tl.uint8), mask=real[:, None] & (byte * 2 < K)[None, :])
        where = scale_offset((tile * TILE + inside)[:, None], block[None, :], across, SWIZZLED)
        scale = tl.where(real[:, None], scale, 0)
        tl.store(scales + where, scale.to(tl.uint8), mask=(block * 16 < K)[None, :] & (inside >= 0)[:, None])


@triton.jit
def _nvfp4_block(bits, token, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Scale codes [ROWS, BLOCKS] and value codes [ROWS, BLOCKS, 16] of values under the outer scales [ROWS]."""
    token = tl.broadcast_to(token[:, None], (ROWS, BLOCKS))
    largest = _float(tl.max(bits & _MAGNITUDE, axis=2))
    wanted = tl.div_rn(tl.div_rn(largest, tl.full((ROWS, BLOCKS), 6.0, tl.float32)), token)
    number = wanted == wanted
    scale = tl.where(number, _encode_e4m3(tl.where(wanted < 0.015625, 0.015625, wanted)), 0x7F)
    value = _float(tl.where(number, (scale << 20) + 0x3C000000, 0x7FC00000))  # never subnormal: bits suffice
    divisor = tl.broadcast_to((value * token)[:, :, None], (ROWS, BLOCKS, 16))
    code = _encode_e2m1(tl.div_rn(_float(bits & _MAGNITUDE), divisor)) | ((bits >> 28) & 8)
    return scale, code


def mxfp8_rows(x_MK: Tensor, groups: Groups, swizzled: bool = True) -> mxfp8.MXFP8:
    """Codes [M, K]; scales of the tiles' order, as atoms or as a matrix [slots, K / 32]."""
    x_MK, bf16 = _bits_of(x_MK)
    rows, width = x_MK.shape
    mxfp8.require_blocks("MXFP8", width, mxfp8.BLOCK)
    codes = torch.empty(rows, width, dtype=torch.uint8, device=x_MK.device)
    scales, across = _scales(groups.slots, width // mxfp8.BLOCK, x_MK.device, swizzled)
    part, blocks = 16, 8
    grid = (len(groups.expert_T) * (groups.tile // part), triton.cdiv(width, blocks * mxfp8.BLOCK))
    mxfp8_rows_kernel[grid](
        x_MK, codes, scales, groups.first_T, groups.stop_T, width, across,
        BF16=bf16, SWIZZLED=swizzled, TILE=groups.tile, ROWS=part, BLOCKS=blocks,
    )  # fmt: skip
    return mxfp8.MXFP8(codes, scales)


def mxfp8_columns(x_MK: Tensor, groups: Groups, swizzled: bool = True) -> mxfp8.MXFP8:
    """Codes of the transpose [K, slots], blocked along each expert's tokens; scales as atoms or [K, slots / 32]."""
    x_MK, bf16 = _bits_of(x_MK)
    width = x_MK.shape[1]
    codes = torch.empty(width, groups.slots, dtype=torch.uint8, device=x_MK.device)
    scales, across = _scales(width, groups.slots // mxfp8.BLOCK, x_MK.device, swizzled)
    channels = 64
    mxfp8_columns_kernel[(len(groups.expert_T), triton.cdiv(width, channels))](
        x_MK, codes, scales, groups.first_T, groups.stop_T, width, groups.slots, across,
        BF16=bf16, SWIZZLED=swizzled, TILE=groups.tile, CHANNELS=channels,
    )  # fmt: skip
    return mxfp8.MXFP8(codes, scales)


def nvfp4_rows(x_MK: Tensor, groups: Groups, outer_M1: Tensor | None = None, swizzled: bool = True) -> nvfp4.NVFP4:
    """Codes [M, K / 2] and outer scales [M, 1], the rows' own where none are given; scales as in `mxfp8_rows`."""
    x_MK, bf16 = _bits_of(x_MK)
    rows, width = x_MK.shape
    mxfp8.require_blocks("NVFP4", width, nvfp4.BLOCK)
    codes = torch.empty(rows, width // 2, dtype=torch.uint8, device=x_MK.device)
    scales, across = _scales(groups.slots, width // nvfp4.BLOCK, x_MK.device, swizzled)
    given = outer_M1 is not None
    outer = outer_M1.contiguous() if given else torch.empty(rows, 1, dtype=torch.float32, device=x_MK.device)
    part = 4  # whole rows: few of them, so that there are programs enough
    nvfp4_rows_kernel[(len(groups.expert_T) * (groups.tile // part),)](
        x_MK, codes, scales, outer, groups.first_T, groups.stop_T, width, across,
        GIVEN=given, BF16=bf16, SWIZZLED=swizzled, TILE=groups.tile, ROWS=part, BLOCKS=32,
    )  # fmt: skip
    return nvfp4.NVFP4(codes, scales, outer)


def _bits_of(x: Tensor) -> tuple[Tensor, bool]:
    if x.dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(f"the quantise kernels read float32 or bfloat16, not {x.dtype}")
    bf16 = x.dtype == torch.bfloat16
    return x.detach().contiguous().view(torch.int16 if bf16 else torch.int32), bf16


def _scales(rows: int, columns: int, device: torch.device, swizzled: bool) -> tuple[Tensor, int]:
    """Room for scales, and how many atoms or columns lie side by side."""
    if swizzled:
        atoms = scale_layout.empty_atoms(rows, columns, device)
        return atoms, atoms.shape[1]
    return torch.empty(rows, columns, dtype=torch.uint8, device=device), columns
