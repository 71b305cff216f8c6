"""The experts of a few tokens, as decoding has them: the reference of `triton_moe_decode`, in torch.

Owns `Experts`, stacked expert weights laid out for decoding, and the exact computation: for each token and each of its
experts, silu(gate) * up and then down, added up in the order of the token's experts, weighted by their gates. Weights
are bf16, fp32, or MXFP8 codes (`kernels.mxfp8`) that are multiplied as they are; activations between the two products
are not rounded. Never routes (`models.experts`).

Shapes: N tokens, K experts a token, E experts, D model width, F expert width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from etude.kernels import mxfp8
from etude.kernels.mxfp8 import MXFP8

Matrix = Tensor | MXFP8


class Experts(NamedTuple):
    """Weights by output neuron: the row of each is contiguous, for it is what a warp reads."""

    gate_up: Matrix
    """[E, 2F, D], gates first."""
    down: Matrix
    """[E, D, F]"""

    @classmethod
    def of(cls, gate_up_EDF: Tensor, down_EFD: Tensor, as_mxfp8: bool = False) -> Experts:
        """From the decoder's parameters, gate_up [E, D, 2F] and down [E, F, D]."""
        gate_up, down = gate_up_EDF.transpose(1, 2).contiguous(), down_EFD.transpose(1, 2).contiguous()
        return cls(mxfp8.quantise(gate_up), mxfp8.quantise(down)) if as_mxfp8 else cls(gate_up, down)


def moe_decode(x_ND: Tensor, experts_NK: Tensor, gates_NK: Tensor, experts: Experts) -> Tensor:
    """[N, D] of x's dtype."""
    gate_up, down = values(experts.gate_up), values(experts.down)
    out = torch.zeros(x_ND.shape, dtype=torch.float32, device=x_ND.device)
    for slot in range(experts_NK.shape[1]):
        chosen = experts_NK[:, slot]
        gate, up = torch.einsum("nd,nfd->nf", x_ND.float(), gate_up[chosen]).chunk(2, dim=-1)
        outputs = torch.einsum("nf,ndf->nd", F.silu(gate) * up, down[chosen])
        out += gates_NK[:, slot, None].float() * outputs
    return out.to(x_ND.dtype)


def values(weight: Matrix) -> Tensor:
    """What a stored matrix stands for, in fp32."""
    return mxfp8.dequantise(weight) if isinstance(weight, MXFP8) else weight.float()
