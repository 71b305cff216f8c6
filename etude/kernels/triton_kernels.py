"""The kernels in Triton: forwards of one order each, so that a row's bits do not depend on the batch, on a GPU.

Owns `TritonKernels`. What a model multiplies, norms and attends with are `triton_invariant`'s kernels; what is done to
each element by itself is torch's. A gradient is that of torch's operation at the same place, computed once more in the
backward: it is summed over all tokens anyway, and nobody compares its bits with a sampler's. Imported only where Triton
is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from etude.kernels import triton_grouped_gemm, triton_invariant
from etude.kernels.devices import put
from etude.kernels.interface import Ints
from etude.kernels.padded import PaddedSegments
from etude.kernels.torch_kernels import TORCH, Choices, TorchKernels

Operation = Callable[..., Tensor]


class TritonKernels(TorchKernels):
    """On a GPU, or in Triton's interpreter."""

    name, on_host = "triton", False

    def linear(self, x_MK: Tensor, weight_NK: Tensor) -> Tensor:
        def forward(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
            return triton_invariant.linear(x_MK, weight_NK.to(x_MK.dtype))

        return _ByTorch.apply(forward, TORCH.linear, x_MK, weight_NK)

    def products(self, x_MBK: Tensor, weight_BKN: Tensor, owner: Tensor) -> Tensor:
        def forward(x_MBK: Tensor, weight_BKN: Tensor) -> Tensor:
            pairs = zip(x_MBK.unbind(1), weight_BKN.to(x_MBK.dtype).mT.unbind(0), strict=True)
            return torch.stack([triton_invariant.linear(x_MK, weight_NK) for x_MK, weight_NK in pairs], 1)

        def by_torch(x_MBK: Tensor, weight_BKN: Tensor) -> Tensor:
            return TORCH.products(x_MBK, weight_BKN, owner)

        return _ByTorch.apply(forward, by_torch, x_MBK, weight_BKN)

    def rms_norm(self, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        def forward(x: Tensor, weight_D: Tensor) -> Tensor:
            return triton_invariant.rms_norm(x.reshape(-1, x.shape[-1]), weight_D.to(x.dtype), eps).view(x.shape)

        def by_torch(x: Tensor, weight_D: Tensor) -> Tensor:
            return TORCH.rms_norm(x, weight_D, eps)

        return _ByTorch.apply(forward, by_torch, x, weight_D)

    def through_experts(self, x_SD: Tensor, chosen: Choices, gate_up_EDF: Tensor, down_EFD: Tensor) -> Tensor:
        def forward(x_SD: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor) -> Tensor:
            hidden_SF = triton_invariant.grouped_linear(x_SD, gate_up_EDF.to(x_SD.dtype), chosen.ends_E)
            return triton_invariant.grouped_linear(self.swiglu(hidden_SF), down_EFD.to(x_SD.dtype), chosen.ends_E)

        def by_torch(x_SD: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor) -> Tensor:
            return TORCH.through_experts(x_SD, chosen, gate_up_EDF, down_EFD)

        return _ByTorch.apply(forward, by_torch, x_SD, gate_up_EDF, down_EFD)

    def segments(self, lengths: Sequence[int], device: torch.device) -> InvariantSegments:
        return InvariantSegments(lengths, device)

    def cached(self, counts: Sequence[int], places: Sequence[Ints], device: torch.device) -> InvariantCached:
        return InvariantCached(counts, places, device)

    @property
    def block_scaled(self) -> ModuleType:
        return triton_grouped_gemm


class InvariantSegments:
    """Segments one behind the other, as they are."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.padded = PaddedSegments(lengths, device)
        self.longest = max(lengths)
        self.ends_S = put(torch.tensor(lengths).cumsum(0), device)

    def attend(self, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, scale: float) -> Tensor:
        def forward(q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor) -> Tensor:
            return _attention(q_NHC, k_NGC, v_NGV, self.ends_S, self.ends_S, scale, self.longest)

        def by_torch(q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor) -> Tensor:
            return self.padded.attend(q_NHC, k_NGC, v_NGV, scale)

        return _ByTorch.apply(forward, by_torch, q_NHC, k_NGC, v_NGV)


class InvariantCached:
    """Each sequence's keys one behind the other, as they come from the cache: a new token gets the bits that a trainer
    gives it.
    """

    def __init__(self, counts: Sequence[int], places: Sequence[Ints], device: torch.device) -> None:
        lengths = [len(each) for each in places]
        self.longest = max(lengths)
        self.query_ends_S, self.key_ends_S = (put(torch.tensor(each).cumsum(0), device) for each in (counts, lengths))
        self.place_M = put(np.concatenate(places), device)

    def attend(self, q_NHC: Tensor, keys_PGC: Tensor, values_PGV: Tensor, scale: float) -> Tensor:
        k_MGC, v_MGV = (x.index_select(0, self.place_M) for x in (keys_PGC, values_PGV))
        return _attention(q_NHC, k_MGC, v_MGV, self.query_ends_S, self.key_ends_S, scale, self.longest)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, query_ends: Tensor, key_ends: Tensor, scale: float, longest: int
) -> Tensor:
    width = v.shape[2]
    v = F.pad(v, (0, k.shape[2] - width))  # the kernel has values as wide as keys
    return triton_invariant.attention(q, k, v, query_ends, key_ends, scale, longest)[..., :width]


class _ByTorch(torch.autograd.Function):
    """The value of one operation with the gradient of another, which computes the same."""

    @staticmethod
    def forward(ctx: Any, forward: Operation, by_torch: Operation, *given: Tensor) -> Tensor:
        ctx.by_torch = by_torch
        ctx.save_for_backward(*given)
        return forward(*given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            given = [
                each.detach().requires_grad_(wanted) for each, wanted in zip(ctx.saved_tensors, needed, strict=True)
            ]
            again = ctx.by_torch(*given)
        found = iter(torch.autograd.grad(again, [each for each in given if each.requires_grad], grads))
        return None, None, *(next(found) if wanted else None for wanted in needed)


TRITON = TritonKernels()
