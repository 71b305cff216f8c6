"""The three matrix products of a linear layer of stacked experts, on block-scaled operands: the reference, in torch.

Owns `forward`, `data_gradient` and `weight_gradient`, each of which quantises its operands along the contraction and
multiplies the codes; the forward's halves, `weight_codes` and `multiply`, are there for who keeps a weight's codes.
`triton_grouped_gemm` has the same functions for GPUs; this one looks at how many rows each expert has. Never decides
which format a pass uses (`low_precision` does).

    forward          Y[m]  = X[m] W[e]         contraction K   MXFP8 or NVFP4
    data gradient    dX[m] = dY[m] W[e]^T      contraction N   MXFP8
    weight gradient  dW[e] = X[e]^T dY[e]      contraction M   MXFP8; a group's last block of 32 tokens is zero-padded

Products are summed in fp64 and rounded to fp32 once. For NVFP4 the fp64 sum is exact up to K = 1024 (each product is a
multiple of 2^-20 below 2^23), so that there it does not depend on the order of summation, hence not on the batch: the
outer scales are applied after it, the token's first.

Shapes: M rows sorted by expert, E experts, K inputs, N outputs; `ends_E` says where each expert's rows end, as
torch._grouped_mm's `offs`. Results are fp32.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from etude.kernels import mxfp8, nvfp4
from etude.kernels.groups import Groups

Format = Literal["mxfp8", "nvfp4"]
Codes = mxfp8.MXFP8 | nvfp4.NVFP4


def forward(rows_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor, form: Format) -> Tensor:
    """Y [M, N]: each row times its expert's matrix, both quantised along K."""
    return multiply(rows_MK, weight_codes(weight_EKN, form), ends_E)


def weight_codes(weight_EKN: Tensor, form: Format) -> Codes:
    """What the forward multiplies with: codes [E, N, K], blocked along K."""
    weight_ENK = weight_EKN.transpose(1, 2).contiguous()
    if form == "mxfp8":
        return mxfp8.quantise(weight_ENK)
    return nvfp4.quantise(weight_ENK, nvfp4.matrix_scales(weight_ENK))


def multiply(rows_MK: Tensor, weight: Codes, ends_E: Tensor) -> Tensor:
    """Y [M, N]: each row, quantised in the weight's format, times its expert's matrix."""
    if isinstance(weight, mxfp8.MXFP8):
        return _multiply_rows(_through_mxfp8(rows_MK), mxfp8.dequantise(weight), ends_E)
    rows = nvfp4.quantise(rows_MK)
    product_MN = _multiply_rows(
        nvfp4.dequantise_blocks(rows.codes, rows.scales), nvfp4.dequantise_blocks(weight.codes, weight.scales), ends_E
    )
    expert_M = torch.searchsorted(ends_E, torch.arange(len(rows_MK)).to(ends_E), right=True)
    return product_MN * rows.outer * weight.outer[expert_M, :, 0]


def data_gradient(grad_MN: Tensor, weight_EKN: Tensor, ends_E: Tensor) -> Tensor:
    """dX [M, K], both operands MXFP8 along N."""
    return _multiply_rows(_through_mxfp8(grad_MN), _through_mxfp8(weight_EKN), ends_E)


def weight_gradient(rows_MK: Tensor, grad_MN: Tensor, ends_E: Tensor) -> Tensor:
    """dW [E, K, N], both operands MXFP8 along each expert's tokens."""
    groups = Groups.of(ends_E, len(rows_MK), tile=mxfp8.BLOCK)
    rows_KS = _through_mxfp8(groups.pad(rows_MK).T.contiguous()).double()
    grad_NS = _through_mxfp8(groups.pad(grad_MN).T.contiguous()).double()
    out, start = [], 0
    for stop in (groups.tile_ends_E * groups.tile).tolist():
        out.append((rows_KS[:, start:stop] @ grad_NS[:, start:stop].T).float())
        start = stop
    return torch.stack(out)


def _through_mxfp8(x: Tensor) -> Tensor:
    return mxfp8.dequantise(mxfp8.quantise(x))


def _multiply_rows(a_MK: Tensor, b_ENK: Tensor, ends_E: Tensor) -> Tensor:
    """Each row of a times the rows of its expert's b: [M, N] fp32."""
    parts, start = [], 0
    for matrix_NK, stop in zip(b_ENK, ends_E.tolist(), strict=True):
        parts.append((a_MK[start:stop].double() @ matrix_NK.double().T).float())
        start = stop
    return torch.cat(parts)
