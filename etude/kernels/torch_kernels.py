"""The kernels in plain torch operations, which run on any device, and on none wait for it.

Owns `TorchKernels` and the two layouts that keep shapes free of values. *Segments* of similar length lie in one padded
batch, so that attention is torch's own, a call for each power of two; the lengths are the host's. *Experts* get their
tokens in tiles of one size, as many as there can be at most (`kernels.groups`), so that nobody asks how many tokens an
expert got: a torch product of groups would ask (in fp32 on a GPU), or loop over experts. Bits are the device's own: a
row's may depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from etude.kernels import grouped_gemm
from etude.kernels.groups import Groups
from etude.kernels.interface import Kernels

SMALLEST_TILE = 16
"""Rows of an expert's tile where tokens are few."""


class TorchKernels(Kernels):
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

    def segments(self, lengths: Sequence[int], device: torch.device) -> PaddedSegments:
        return PaddedSegments(lengths, device)

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


class PaddedSegments:
    """Segments in padded batches, one for each power of two of their lengths: less than half of a batch is padding.
    What is padded lies behind a segment's tokens, where none of them looks.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        sizes = np.asarray(lengths, np.int64)
        starts = np.cumsum(sizes) - sizes
        kinds = np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)
        where_N, self.batches, rows = np.zeros(int(sizes.sum()), np.int64), [], 0
        for kind in sorted(set(kinds.tolist())):
            its, longest = np.flatnonzero(kinds == kind), int(sizes[kinds == kind].max())
            inside = np.arange(longest)[None]
            token_SL = starts[its, None] + np.minimum(inside, sizes[its, None] - 1)
            row_SL = rows + np.arange(token_SL.size).reshape(token_SL.shape)
            real_SL = inside < sizes[its, None]
            where_N[token_SL[real_SL]] = row_SL[real_SL]
            rows += token_SL.size
            self.batches.append((torch.from_numpy(token_SL.reshape(-1)).to(device), longest))
        self.where_N = torch.from_numpy(where_N).to(device)

    def attend(self, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, scale: float) -> Tensor:
        width = v_NGV.shape[2]
        v_NGV = F.pad(v_NGV, (0, q_NHC.shape[2] - width))  # torch's fast kernels want values as wide as keys
        outputs = []
        for token, longest in self.batches:
            q, k, v = (
                x.index_select(0, token).unflatten(0, (-1, longest)).transpose(1, 2) for x in (q_NHC, k_NGC, v_NGV)
            )
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self.where_N)[..., :width]


TORCH = TorchKernels()
