"""The layers that every decoder shares: the norm and the dense feed-forward, and what they compute with.

Owns `Layer`, the base of all that computes: its kernels are those of its decoder (`Decoder.place`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etude.kernels.exact import EXACT
from etude.kernels.interface import Kernels


class Layer(nn.Module):
    """A part of a decoder."""

    kernels: Kernels = EXACT


class RMSNorm(Layer):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)


class SwiGLU(Layer):
    """A gated feed-forward; gate and up-projection are one matrix, the gate's rows first."""

    def __init__(self, width: int, inner_width: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * inner_width, bias=False)
        self.down = nn.Linear(inner_width, width, bias=False)

    def forward(self, x_ND: Tensor) -> Tensor:
        hidden_NF = self.kernels.linear(x_ND, self.gate_up.weight)
        return self.kernels.linear(self.kernels.swiglu(hidden_NF), self.down.weight)
