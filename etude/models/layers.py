"""The layers that every decoder shares: the norm and the dense feed-forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class SwiGLU(nn.Module):
    """A gated feed-forward; gate and up-projection are one matrix, the gate's rows first."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * inner_width, bias=False)
        self.down = nn.Linear(inner_width, width, bias=False)

    def forward(self, x_ND: Tensor) -> Tensor:
        gate, up = self.gate_up(x_ND).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)
