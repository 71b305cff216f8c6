"""The products of `grouped_gemm` on a GPU: quantise with `triton_quantise`, multiply in two Triton kernels.

Owns the kernels and the same functions as the reference. Imported
only where Triton is, as `triton_quantise`.

How operands reach the tensor cores depends on the device:

- Blackwell (compute capability 10) multiplies both formats as they are: `tl.dot_scaled` becomes tcgen05.mma with block
  scales. This branch is compiled by the tests; it has not been run, for want of such a device.
- Hopper (H100) has no FP4 and no block scales. The kernel multiplies codes by their block scales in registers and feeds
  bf16 tensor cores. Nothing is rounded there: E2M1 times E4M3 has 6 significant bits and E4M3 times a power of two 4,
  bf16 keeps 8. So Hopper computes Blackwell's products, at no more than bf16's speed: for developing and checking.
- The interpreter cannot multiply bf16 and takes fp32, with the same operand values.

A row's result depends on that row, its expert's matrix and the tile sizes only: one program sums a row's whole
contraction in one order, whatever else is in the batch. Outer scales are applied at the end, the token's first.

Tiles: a program has TILE rows of one expert by COLUMNS outputs. Programs of one expert and one block of columns follow
each other, so that the expert's matrix stays in L2 while its tokens stream by.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from etude.kernels import nvfp4
from etude.kernels.devices import reads_block_scales
from etude.kernels.grouped_gemm import Codes, Format
from etude.kernels.groups import Groups
from etude.kernels.triton_quantise import mxfp8_columns, mxfp8_rows, nvfp4_rows, scale_offset

_COLUMNS, _DEPTH = 128, 128


@triton.jit
def _operand(codes, scales, row, real, slot, start, width, across, FP4: tl.constexpr, DEPTH: tl.constexpr):
    """Codes [rows, DEPTH] (or half as many bytes) and scales [rows, DEPTH / block] from `start` on; 0 past the end."""
    pack: tl.constexpr = 2 if FP4 else 1
    size: tl.constexpr = 16 if FP4 else 32
    byte = start // pack + tl.arange(0, DEPTH // pack)
    at = row.to(tl.int64)[:, None] * (width // pack) + byte[None, :]
    code = tl.load(codes + at, mask=real[:, None] & (byte * pack < width)[None, :], other=0)
    block = start // size + tl.arange(0, DEPTH // size)
    where = scale_offset(slot[:, None], block[None, :], across, True)
    return code, tl.load(scales + where, mask=real[:, None] & (block < across * 4)[None, :], other=0)


@triton.jit
def _values(code, scale, FP4: tl.constexpr, OPERAND: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    """Codes times block scales [ROWS, DEPTH], exact in bf16."""
    size: tl.constexpr = 16 if FP4 else 32
    if FP4:
        nibble = tl.reshape(tl.join(code & 15, code >> 4), (ROWS, DEPTH)).to(tl.int32)
        bits = ((nibble & 7) << 22) | ((nibble & 8) << 28)  # E2M1's exponent and mantissa where fp32 has them
        value = bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126: the difference of the biases
        factor = scale.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        wide = scale.to(tl.int32)
        factor = tl.where(wide == 255, 0x7FC00000, wide << 23).to(tl.float32, bitcast=True)  # 0: all codes are zeros
    blocks = tl.reshape(value, (ROWS, DEPTH // size, size)) * factor[:, :, None]
    return tl.reshape(blocks, (ROWS, DEPTH)).to(OPERAND)


@triton.jit
def _accumulate(
    a, a_scale, b, b_scale, sums,
    FP4: tl.constexpr, NATIVE: tl.constexpr, OPERAND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """sums [ROWS, COLUMNS] + a b^T."""
    if NATIVE:
        if FP4:
            a_scale = a_scale.to(tl.float8e4nv, bitcast=True)
            b_scale = b_scale.to(tl.float8e4nv, bitcast=True)
            return tl.dot_scaled(a, a_scale, "e2m1", tl.trans(b), b_scale, "e2m1", sums)
        else:
            return tl.dot_scaled(a, a_scale, "e4m3", tl.trans(b), b_scale, "e4m3", sums)
    else:
        left = _values(a, a_scale, FP4, OPERAND, ROWS, DEPTH)
        right = _values(b, b_scale, FP4, OPERAND, COLUMNS, DEPTH)
        return tl.dot(left, tl.trans(right), sums, input_precision="ieee")


@triton.jit
def rows_kernel(
    a, a_scales, a_outer, b, b_scales, b_outer, out, expert_T, first_T, stop_T, width, outputs, across,
    FP4: tl.constexpr, NATIVE: tl.constexpr, OPERAND: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """out[m] = a[m] b[expert]^T for one tile of rows and one block of columns; `outputs` rows in each expert's b."""
    tile = tl.program_id(0)
    first, stop = tl.load(first_T + tile), tl.load(stop_T + tile)
    if first == stop:  # a spare tile
        return
    inside = tl.arange(0, TILE)
    row, real = first + inside, first + inside < stop
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    present = column < outputs
    expert = tl.load(expert_T + tile)
    slot = expert * tl.cdiv(outputs, TILE) * TILE + column
    sums = tl.zeros((TILE, COLUMNS), tl.float32)
    for start in range(0, width, DEPTH):
        a_code, a_scale = _operand(a, a_scales, row, real, tile * TILE + inside, start, width, across, FP4, DEPTH)
        b_code, b_scale = _operand(
            b, b_scales, expert * outputs + column, present, slot, start, width, across, FP4, DEPTH
        )
        sums = _accumulate(a_code, a_scale, b_code, b_scale, sums, FP4, NATIVE, OPERAND, TILE, COLUMNS, DEPTH)
    if FP4:
        sums = sums * tl.load(a_outer + row, mask=real, other=0.0)[:, None]
        sums = sums * tl.load(b_outer + expert * outputs + column, mask=present, other=0.0)[None, :]
    at = row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(out + at, sums, mask=real[:, None] & present[None, :])


@triton.jit
def weight_kernel(
    a, a_scales, b, b_scales, out, tile_ends_E, inputs, outputs, slots, across,
    NATIVE: tl.constexpr, OPERAND: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[expert] = a b^T over the expert's tiles of tokens; a [inputs, slots], b [outputs, slots], zero-padded."""
    expert = tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real, present = row < inputs, column < outputs
    begin = tl.load(tile_ends_E + expert - 1, mask=expert > 0, other=0)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(begin, tl.load(tile_ends_E + expert)):
        a_code, a_scale = _operand(a, a_scales, row, real, row, tile * TILE, slots, across, False, TILE)
        b_code, b_scale = _operand(b, b_scales, column, present, column, tile * TILE, slots, across, False, TILE)
        sums = _accumulate(a_code, a_scale, b_code, b_scale, sums, False, NATIVE, OPERAND, ROWS, COLUMNS, TILE)
    at = (expert * inputs + row).to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(out + at, sums, mask=real[:, None] & present[None, :])


def forward(rows_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor, form: Format) -> Tensor:
    """Y [M, N] fp32: see `grouped_gemm.forward`."""
    return multiply(rows_MK, weight_codes(weight_EKN, form), ends_E)


def weight_codes(weight_EKN: Tensor, form: Format) -> Codes:
    """Codes [E N, K], with scales in the kernel's layout: see `grouped_gemm.weight_codes`."""
    experts, width, outputs = weight_EKN.shape
    weight_ENK = weight_EKN.transpose(1, 2).contiguous()
    matrices = Groups.uniform(experts, outputs, weight_EKN.device)
    if form == "mxfp8":
        return mxfp8_rows(weight_ENK.view(-1, width), matrices)
    return nvfp4_rows(weight_ENK.view(-1, width), matrices, nvfp4.matrix_scales(weight_ENK).reshape(-1, 1))


def multiply(rows_MK: Tensor, weight: Codes, ends_E: Tensor) -> Tensor:
    """Y [M, N] fp32: see `grouped_gemm.multiply`."""
    groups = Groups.of(ends_E, len(rows_MK))
    quantise = nvfp4_rows if isinstance(weight, nvfp4.NVFP4) else mxfp8_rows
    return _multiply_rows(quantise(rows_MK, groups), weight, groups, len(weight.codes) // len(ends_E))


def data_gradient(grad_MN: Tensor, weight_EKN: Tensor, ends_E: Tensor) -> Tensor:
    """dX [M, K] fp32: see `grouped_gemm.data_gradient`."""
    experts, inputs, width = weight_EKN.shape
    groups = Groups.of(ends_E, len(grad_MN))
    matrices = Groups.uniform(experts, inputs, weight_EKN.device)
    weight = mxfp8_rows(weight_EKN.reshape(-1, width), matrices)
    return _multiply_rows(mxfp8_rows(grad_MN, groups), weight, groups, inputs)


def weight_gradient(rows_MK: Tensor, grad_MN: Tensor, ends_E: Tensor) -> Tensor:
    """dW [E, K, N] fp32: see `grouped_gemm.weight_gradient`."""
    groups = Groups.of(ends_E, len(rows_MK))
    inputs, outputs, experts = rows_MK.shape[1], grad_MN.shape[1], len(ends_E)
    a, b = mxfp8_columns(rows_MK, groups), mxfp8_columns(grad_MN, groups)
    out = torch.empty(experts, inputs, outputs, dtype=torch.float32, device=rows_MK.device)
    grid = (triton.cdiv(inputs, _COLUMNS), triton.cdiv(outputs, _COLUMNS), experts)
    weight_kernel[grid](
        a.codes, a.scales, b.codes, b.scales, out, groups.tile_ends_E,
        inputs, outputs, groups.slots, len(groups.expert_T),
        NATIVE=_native(out), OPERAND=_operand_type(), TILE=groups.tile, ROWS=_COLUMNS, COLUMNS=_COLUMNS, num_warps=8,
    )  # fmt: skip
    return out


def _multiply_rows(a, b, groups: Groups, outputs: int) -> Tensor:
    """Rows of a times their expert's b, both MXFP8 or both NVFP4, b's rows `outputs` an expert: [M, outputs] fp32."""
    fp4 = isinstance(a, nvfp4.NVFP4)
    width = a.codes.shape[1] * (2 if fp4 else 1)
    out = torch.empty(a.codes.shape[0], outputs, dtype=torch.float32, device=a.codes.device)
    rows_kernel[(len(groups.expert_T), triton.cdiv(outputs, _COLUMNS))](
        a.codes, a.scales, a.outer if fp4 else out, b.codes, b.scales, b.outer if fp4 else out, out,
        groups.expert_T, groups.first_T, groups.stop_T, width, outputs, a.scales.shape[1],
        FP4=fp4, NATIVE=_native(out), OPERAND=_operand_type(), TILE=groups.tile, COLUMNS=_COLUMNS, DEPTH=_DEPTH,
        num_warps=8,
    )  # fmt: skip
    return out


def _native(x: Tensor) -> bool:
    """Whether the tensor cores read block scales themselves."""
    return reads_block_scales(x.device)


def _operand_type() -> tl.dtype:
    return tl.float32 if knobs.runtime.interpret else tl.bfloat16
