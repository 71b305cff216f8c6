"""The layers that every decoder shares: the norm and the dense feed-forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etude.kernels import rows
from etude.kernels.pointwise import rms_norm, swiglu


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class SwiGLU(nn.Module):
    """A gated feed-forward; gate and up-projection are one matrix, the gate's rows first."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * inner_width, bias=False)
        self.down = nn.Linear(inner_width, width, bias=False)

    def forward(self, x_ND: Tensor) -> Tensor:
        return rows.linear(swiglu(rows.linear(x_ND, self.gate_up.weight)), self.down.weight)
