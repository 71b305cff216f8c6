"""Experts on several ranks: each holds whole experts, and tokens travel to them and back (expert parallelism).

Owns `ExpertParallel`, the torch kernels whose experts are dealt out by number: which tokens go where follows from the
routes, replayed or chosen, that it is given. Rows are sorted by expert before they travel, so that those for one rank
lie together. How many come is known to the sender alone, and an exchange has to know: that is the one value of a
forward that the host reads, once a layer. Never routes, and never cuts a parameter (`mesh.sharding`).

Shapes: S choices of N tokens with K experts each, E experts in all, P ranks, G = E / P experts a rank, R rows received.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd

from etude.kernels.torch_kernels import Choices, TorchKernels


class ExpertParallel(TorchKernels):
    """`gate_up` and `down` of its calls are the stacks of this rank's experts."""

    def __init__(self, group: Any) -> None:
        self.group, self.ranks = group, dist.get_world_size(group)

    def run_experts(
        self, x_ND: Tensor, experts_NK: Tensor, gates_NK: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor
    ) -> Tensor:
        chosen = Choices.of(experts_NK, len(gate_up_EDF) * self.ranks)
        counts_PG = chosen.ends_E.diff(prepend=chosen.ends_E.new_zeros(1)).view(self.ranks, -1)
        coming_PG = torch.empty_like(counts_PG)
        dist.all_to_all_single(coming_PG, counts_PG, group=self.group)
        sent, got = self.rows_of_ranks(counts_PG, coming_PG, len(chosen.order_S))
        rows_RD = all_to_all_single_autograd(chosen.sorted(x_ND), got, sent, self.group)
        said_RD = self._by_own(rows_RD, coming_PG, sum(got), gate_up_EDF, down_EFD)
        said_SD = all_to_all_single_autograd(said_RD, sent, got, self.group)
        said_NKD = said_SD.index_select(0, chosen.place_S).unflatten(0, experts_NK.shape)
        return (said_NKD * gates_NK.to(x_ND.dtype)[..., None]).sum(1)

    def rows_of_ranks(self, counts_PG: Tensor, coming_PG: Tensor, rows: int) -> tuple[list[int], list[int]]:
        """How many of so many rows go to each rank, and how many come."""
        del rows
        sent, got = torch.stack((counts_PG.sum(1), coming_PG.sum(1))).tolist()
        return sent, got

    def _by_own(self, rows_RD: Tensor, coming_PG: Tensor, count: int, gate_up: Tensor, down: Tensor) -> Tensor:
        """What this rank's experts say of rows that came from all ranks, in the order in which they came."""
        number_PG = torch.arange(coming_PG.shape[1], device=rows_RD.device).expand_as(coming_PG)
        expert_R1 = number_PG.flatten().repeat_interleave(coming_PG.flatten(), output_size=count)[:, None]
        chosen = Choices.of(expert_R1, len(gate_up))
        said = self.through_experts(chosen.sorted(rows_RD), chosen, gate_up, down)
        return said.index_select(0, chosen.place_S)
