"""The kernels whose bits depend on nothing but a token and what it sees, on a CPU: trainer and sampler agree by them.

Owns nothing but the list: each operation is a kernel of its own module. A token alone, in a batch, prefilled or
recomputed in training gets the same bits (`kernels.rows` says how).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

import torch
from torch import Tensor

from etude.kernels import experts, grouped_gemm, pointwise, rows
from etude.kernels.interface import Ints, Kernels
from etude.kernels.packed_attention import packed_attention


class _Packed:
    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def attend(self, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, scale: float) -> Tensor:
        return packed_attention(q_NHC, k_NGC, v_NGV, self.lengths, scale)


class ExactKernels(Kernels):
    """On a CPU only."""

    name, on_host = "exact", True

    def linear(self, x_MK: Tensor, weight_NK: Tensor) -> Tensor:
        return rows.linear(x_MK, weight_NK)

    def products(self, x_MBK: Tensor, weight_BKN: Tensor, owner: Tensor) -> Tensor:
        return rows.products(x_MBK, weight_BKN, owner)

    def rms_norm(self, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        return pointwise.rms_norm(x, weight_D, eps)

    def rotate(self, x_NHC: Tensor, cos_NC: Tensor, sin_NC: Tensor) -> Tensor:
        return pointwise.rotate(x_NHC, cos_NC, sin_NC)

    def sigmoid(self, x: Tensor) -> Tensor:
        return pointwise.sigmoid(x)

    def swiglu(self, hidden_MF: Tensor) -> Tensor:
        return pointwise.swiglu(hidden_MF)

    def run_experts(
        self, x_ND: Tensor, experts_NK: Tensor, gates_NK: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor
    ) -> Tensor:
        return experts.run_experts(x_ND, experts_NK, gates_NK, gate_up_EDF, down_EFD)

    def segments(self, lengths: Sequence[int], device: torch.device) -> _Packed:
        return _Packed(lengths)

    def cached(self, counts: Sequence[int], places: Sequence[Ints], device: torch.device) -> NoReturn:
        raise NotImplementedError("an engine on a host attends over pages: kernels.paged_attention")

    def low_rank(self, left_BMR: Tensor, right_BRN: Tensor) -> Tensor:
        return rows.products(left_BMR.transpose(0, 1), right_BRN, right_BRN).transpose(0, 1)

    @property
    def block_scaled(self) -> ModuleType:
        return grouped_gemm


EXACT = ExactKernels()
