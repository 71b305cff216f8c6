"""Linear layers whose three products run on block-scaled operands: the recipes, and autograd around the kernels.

Owns the choice of format for each pass, and the module others use: `ExpertLinear` for stacked experts (what
`Decoder.set_expert_product` takes). `grouped_gemm` computes, or `triton_grouped_gemm` where a decoder's kernels are
Triton's (`Kernels.block_scaled`).

Two recipes, named after the forward:

    "mxfp8"   forward MXFP8, gradients MXFP8
    "nvfp4"   forward NVFP4 with an outer scale per token, gradients MXFP8

The forward must be what the sampler computes, so it takes the format that is served; the backward runs in the trainer
alone and takes the more accurate one (Composer 2, arXiv 2603.24477). Weights and activations reach a layer in fp32 or
bf16 and each product quantises them along its own contraction: a block cannot serve two directions. So gradients are
those of the unquantised operands (straight through), and the trainer's masters are never rounded to a code. Since codes
are a function of the weights alone, any engine that holds a version's bf16 bits holds its codes; the forward's are kept
until the weight changes, so that an engine quantises a version once.

Not quantised: the router (its choices must not depend on a code), norms, attention, embeddings.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from etude.kernels import grouped_gemm
from etude.kernels.grouped_gemm import Codes, Format


class ExpertLinear:
    """Y[m] = X[m] W[e] for rows sorted by expert, in a recipe. Counts the rows it has multiplied."""

    def __init__(self, recipe: Format, kernels: ModuleType = grouped_gemm) -> None:
        self.recipe: Format = recipe
        self._kernels = kernels.__name__  # a module itself can be neither copied nor pickled, as a decoder is
        self.rows = 0
        self._held: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # weight → its version and codes

    def __call__(self, rows_MK: Tensor, weight_EKN: Tensor, counts_E: Tensor) -> Tensor:
        """rows [M, K], weights [E, K, N], how many rows each expert has: [M, N] of the rows' dtype.

        K and N must be multiples of 32 (ConfigError): each is the contraction of one pass.
        """
        self.rows += len(rows_MK)
        return _Product.apply(rows_MK, weight_EKN, counts_E.cumsum(0), self.codes(weight_EKN), self.kernels)

    @property
    def kernels(self) -> ModuleType:
        return sys.modules[self._kernels]

    def codes(self, weight_EKN: Tensor) -> Codes:
        """The forward's codes of a weight as it is now, quantised anew if torch has counted a change since."""
        changes, codes = self._held.get(weight_EKN, (None, None))
        if changes != weight_EKN._version:
            codes = self.kernels.weight_codes(weight_EKN.detach(), self.recipe)
            self._held[weight_EKN] = (weight_EKN._version, codes)
        return codes

    def hold(self, weight_EKN: Tensor, codes: Codes) -> None:
        """Multiply with these codes, which were made of the weight somewhere else, until it changes."""
        self._held[weight_EKN] = (weight_EKN._version, codes)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor, codes: Codes, kernels: ModuleType
    ) -> Tensor:
        ctx.save_for_backward(rows_MK, weight_EKN, ends_E)
        ctx.kernels = kernels
        return kernels.multiply(rows_MK, codes, ends_E).to(rows_MK.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_MN,), (rows_MK, weight_EKN, ends_E) = grads, ctx.saved_tensors
        data = weight = None
        if ctx.needs_input_grad[0]:
            data = ctx.kernels.data_gradient(grad_MN, weight_EKN, ends_E).to(rows_MK.dtype)
        if ctx.needs_input_grad[1]:
            weight = ctx.kernels.weight_gradient(rows_MK, grad_MN, ends_E).to(weight_EKN.dtype)
        return data, weight, None, None, None
