"""The order in which Blackwell's tensor cores read block scales.

Owns `swizzle` and its inverse: the 128x4 layout of tcgen05.mma and cuBLAS ("1D block scaling factors layout" in the
cuBLAS documentation), the same for MXFP8 and NVFP4. The quantise kernels write it directly (`triton_quantise`), the
grouped GEMMs read it; this is the reference for both.

A matrix of scales is cut into atoms of 128 rows by 4 columns, atoms in row-major order, 512 bytes each. In an atom, the
scale of row r and column c is at byte (r % 32) * 16 + (r / 32) * 4 + c: 32 rows of 16 bytes, in which rows r, r + 32,
r + 64 and r + 96 lie beside each other. Missing rows and columns are zero bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

ROWS, COLUMNS = 128, 4
ATOM = ROWS * COLUMNS


def swizzle(scales_RC: Tensor) -> Tensor:
    """Row-major bytes [R, C] as atoms: uint8 [ceil(R / 128), ceil(C / 4), 512]."""
    rows, columns = scales_RC.shape
    padded = F.pad(scales_RC, (0, -columns % COLUMNS, 0, -rows % ROWS))
    atoms = padded.view(padded.shape[0] // ROWS, 4, 32, padded.shape[1] // COLUMNS, COLUMNS)
    return atoms.permute(0, 3, 2, 1, 4).reshape(atoms.shape[0], atoms.shape[3], ATOM)


def unswizzle(atoms: Tensor, rows: int, columns: int) -> Tensor:
    """The row-major bytes [rows, columns] of `swizzle`'s atoms."""
    down, across, _ = atoms.shape
    order = atoms.view(down, across, 32, 4, COLUMNS).permute(0, 3, 2, 1, 4)
    return order.reshape(down * ROWS, across * COLUMNS)[:rows, :columns].contiguous()


def empty_atoms(rows: int, columns: int, device: torch.device) -> Tensor:
    """Zeroed atoms for [rows, columns] scales: kernels write only what exists."""
    return torch.zeros(-(-rows // ROWS), -(-columns // COLUMNS), ATOM, dtype=torch.uint8, device=device)
