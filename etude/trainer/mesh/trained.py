"""What is trained of a policy that is cut over a mesh: `trained.Trained`, of this rank's rows.

Owns the rows of the masters, which are plain tensors; of adapters the factor that goes with a matrix's rows is cut like
them, the other is on all ranks, and its gradient their sum. Of experts each rank has whole matrices, and so whole
adapters. Never gathers a parameter but to publish it (`mesh.publishing`).
"""

from __future__ import annotations


from functools import cached_property


import torch
import torch.distributed as dist
from torch import Tensor, nn

from etude.models.adapters import INPUTS, new_factors
from etude.models.decoder import Decoder
from etude.trainer.config import OptimizerConfig, TrainerConfig
from etude.trainer.mesh.muon import ShardedOrthogonaliser
from etude.trainer.mesh.sharding import Sharded, here, of_experts
from etude.trainer.optimizers import OptimizerSet, build_optimizer
from etude.trainer.trained import Trained


class ShardedTrained(Trained):
    """All ranks make the same calls."""

    def __init__(self, sharded: Sharded, config: TrainerConfig) -> None:
        self.sharded, self._group = sharded, sharded.layout.group("shard")
        named = self._choose(sharded.policy, config)
        self._masters = {name: nn.Parameter(sharded.local[name].clone()) for name in named if name in self.whole}
        for local in sharded.local.values():
            local.copy_(local.to(torch.bfloat16))
        self._adapt(named)
        sharded.renewed()

    def here(self, tensor: Tensor) -> Tensor:
        return here(tensor)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return self._masters | self.factors

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all that is trained, whole."""
        found = {name: self.sharded.shapes[name] for name in self._masters}
        for name, rank in self.ranks.items():
            weight = torch.empty(self.sharded.shapes[name], device="meta")
            found |= {key: tuple(each.shape) for key, each in new_factors(name, weight, rank).items()}
        return found

    def replicated(self, name: str) -> bool:
        """Whether all ranks of a replica have the same of something that is trained, and all of it."""
        return name.endswith(INPUTS) and not of_experts(name.removesuffix(INPUTS))

    @property
    def frozen_weights(self) -> int:
        held = {*self.whole, *self.ranks}
        return sum(torch.Size(shape).numel() for name, shape in self.sharded.shapes.items() if name not in held)

    def optimizer(self, config: OptimizerConfig) -> OptimizerSet:
        cut = {
            id(each): self.shapes[name]
            for name, each in self.trained.items()
            if len(self.shapes[name]) == 2 and not self.replicated(name)
        }
        orthogonaliser = ShardedOrthogonaliser(cut, self.sharded.layout)
        return build_optimizer(self.trained.items(), config, self.policy.placement, orthogonaliser)

    @torch.no_grad()
    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Each element counts once; what all ranks have, on the first of them."""
        first = dist.get_rank(self._group) == 0
        counted = {id(each.grad) for name, each in self.trained.items() if first or not self.replicated(name)}
        own = [each for each in gradients if id(each) in counted]
        total = torch.stack([each.double().square().sum() for each in own]).sum() if own else torch.zeros(()).double()
        total = total.to(self.policy.placement.device)
        dist.all_reduce(total, group=self._group)
        return total.sqrt()

    @torch.no_grad()
    def take_gradients(self) -> list[nn.Parameter]:
        trained = self.trained
        for (name, master), leaf in zip(trained.items(), self.leaves.values(), strict=True):
            gradient, leaf.grad = leaf.grad, None
            master.grad = None if gradient is None else here(gradient)
            if master.grad is not None and self.replicated(name):
                dist.all_reduce(master.grad, group=self._group)
        return list(trained.values())

    def round(self) -> None:
        super().round()
        self.sharded.renewed()

    def frozen_copy(self) -> Decoder:
        return self.sharded.copy().policy.requires_grad_(False)

    def _new_factors(self, name: str, weight: Tensor, rank: int) -> dict[str, Tensor]:
        whole = new_factors(name, torch.empty(self.sharded.shapes[name], device="meta"), rank)
        rows = slice(*self.sharded.rows(name))
        return {key: each if self.replicated(key) else each[rows].clone() for key, each in whole.items()}

    def _count(self, moved: Tensor) -> Tensor:
        anywhere = moved.int()
        dist.all_reduce(anywhere, dist.ReduceOp.MAX, self._group)
        return anywhere.sum()
