"""The kernels in plain torch operations, which run on any device and read no value from it.

Owns `TorchKernels` and the layout of choices that keeps shapes free of values: experts get their tokens in tiles of one
size, as many as there can be at most (`kernels.groups`), so that nobody asks how many tokens an expert got. A torch
product of groups would ask (in fp32 on a GPU), or loop over experts. How segments attend is `kernels.padded`'s. Bits
are the device's own: a row's may depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from etude.kernels import grouped_gemm
from etude.kernels.groups import Groups
from etude.kernels.interface import Cached, Ints, Kernels, Segments
from etude.kernels.padded import PaddedCached, PaddedSegments

SMALLEST_TILE = 16
"""Rows of an expert's tile where tokens are few."""


class TorchKernels(Kernels):
    """On any device."""

    name, on_host = "torch", False

    def linear(self, x_MK: Tensor, weight_NK: Tensor) -> Tensor:
        return F.linear(x_MK, weight_NK.to(x_MK.dtype))

    def products(self, x_MBK: Tensor, weight_BKN: Tensor, owner: Tensor) -> Tensor:
        return (x_MBK.transpose(0, 1) @ weight_BKN.to(x_MBK.dtype)).transpose(0, 1)

    def rms_norm(self, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight_D.to(x.dtype), eps)

    def rotate(self, x_NHC: Tensor, cos_NC: Tensor, sin_NC: Tensor) -> Tensor:
        first, second = x_NHC.chunk(2, dim=-1)
        cos, sin = cos_NC[:, None], sin_NC[:, None]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x_NHC.dtype)

    def sigmoid(self, x: Tensor) -> Tensor:
        return x.float().sigmoid()

    def swiglu(self, hidden_MF: Tensor) -> Tensor:
        gate, up = hidden_MF.chunk(2, dim=-1)
        return F.silu(gate) * up

    def run_experts(
        self, x_ND: Tensor, experts_NK: Tensor, gates_NK: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor
    ) -> Tensor:
        chosen = Choices.of(experts_NK, len(gate_up_EDF))
        said_SD = self.through_experts(chosen.sorted(x_ND), chosen, gate_up_EDF, down_EFD)
        said_NKD = said_SD.index_select(0, chosen.place_S).unflatten(0, experts_NK.shape)
        return (said_NKD * gates_NK.to(x_ND.dtype)[..., None]).sum(1)

    def through_experts(self, x_SD: Tensor, chosen: Choices, gate_up_EDF: Tensor, down_EFD: Tensor) -> Tensor:
        """What each expert says of its rows, which are sorted by expert."""
        count, experts = len(x_SD), len(gate_up_EDF)
        tile = max(SMALLEST_TILE, -(-count // experts))  # so there are at most twice as many tiles as experts
        groups = Groups.of(chosen.ends_E, count, tile)
        slot_S = groups.slots_of(chosen.expert_S, chosen.ends_E)
        owner_T = groups.expert_T.clamp(max=experts - 1).long()
        tiles_TLD = x_SD.new_zeros(groups.slots, x_SD.shape[1]).index_copy(0, slot_S, x_SD).unflatten(0, (-1, tile))
        hidden_TLF = self.swiglu(tiles_TLD @ gate_up_EDF.to(x_SD.dtype).index_select(0, owner_T))
        said_TLD = hidden_TLF @ down_EFD.to(x_SD.dtype).index_select(0, owner_T)
        return said_TLD.flatten(0, 1).index_select(0, slot_S)

    def segments(self, lengths: Sequence[int], device: torch.device) -> Segments:
        return PaddedSegments(lengths, device)

    def cached(self, counts: Sequence[int], places: Sequence[Ints], device: torch.device) -> Cached:
        return PaddedCached(counts, places, device)

    def low_rank(self, left_BMR: Tensor, right_BRN: Tensor) -> Tensor:
        # a product of two bf16 values is exact in fp32, so an addition rounds as a fused one would
        out_BMN = left_BMR.new_zeros(*left_BMR.shape[:2], right_BRN.shape[2])
        for left_BM, right_BN in zip(left_BMR.unbind(2), right_BRN.float().unbind(1), strict=True):
            out_BMN += left_BM[:, :, None] * right_BN[:, None]
        return out_BMN

    @property
    def block_scaled(self) -> ModuleType:
        return grouped_gemm


class Choices(NamedTuple):
    """The choices n * K + k of N tokens with K experts each, sorted by expert, stably; S of them."""

    top_k: int
    order_S: Tensor
    """The choice at each place."""
    place_S: Tensor
    """The place of each choice."""
    expert_S: Tensor
    """Whose place it is."""
    ends_E: Tensor
    """Where each expert's places end."""

    @classmethod
    def of(cls, experts_NK: Tensor, experts: int) -> Choices:
        flat_S = experts_NK.flatten()
        order_S = flat_S.argsort(stable=True)
        place_S = torch.empty_like(order_S).scatter(0, order_S, torch.arange(len(order_S), device=order_S.device))
        expert_S = flat_S.index_select(0, order_S)
        ends_E = torch.searchsorted(expert_S, torch.arange(experts, device=expert_S.device), right=True)
        return cls(experts_NK.shape[1], order_S, place_S, expert_S, ends_E)

    def sorted(self, x_ND: Tensor) -> Tensor:
        """The token of each place. First repeated, so that its gradient is a sum in one order."""
        repeated = x_ND[:, None].expand(-1, self.top_k, -1).flatten(0, 1)
        return repeated.index_select(0, self.order_S)


TORCH = TorchKernels()
