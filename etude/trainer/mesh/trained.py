"""What is trained of a policy that is cut over a mesh: `trained.Trained`, of this rank's rows.

Owns the rows of the masters, which are plain tensors; of adapters the factor that goes with a matrix's rows is cut like
them, the other is on all ranks, and its gradient their sum. Of experts each rank has whole matrices, and so whole
adapters. A version's arrays are gathered one at a time, each to the rank that publishes it. Never holds more than that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Tensor, nn

from etude.engine.adapted import ROOT, root_array
from etude.errors import CheckpointError
from etude.models.adapters import INPUTS, OUTPUTS, new_factors
from etude.models.checkpoint import save_checkpoint, shapes_of
from etude.models.decoder import Decoder
from etude.models.peft import save_adapter
from etude.trainer.config import OptimizerConfig, TrainerConfig
from etude.trainer.mesh.checkpoints import moments_of, read_shards, write_shards
from etude.trainer.mesh.described import Shards
from etude.trainer.mesh.gathering import Part, gather, parts_of
from etude.trainer.mesh.muon import ShardedOrthogonaliser
from etude.trainer.mesh.sharding import Sharded, here, of_experts
from etude.trainer.mesh.sizes import Rows
from etude.trainer.optimizers import OptimizerSet, build_optimizer
from etude.trainer.trained import Trained
from etude.weights.manifest import Bits, hash_of


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
        self._gathered = False
        self.owned: Sequence[frozenset[str]] = ()

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
        total = torch.zeros((), dtype=torch.float64, device=self.policy.placement.device)
        for each in own:
            total += torch.linalg.vector_norm(each, dtype=torch.float64).square()
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

    def renewed(self) -> None:
        self.sharded.renewed()

    def round(self) -> None:
        super().round()
        self.renewed()

    def frozen_copy(self) -> Decoder:
        return self.sharded.copy().policy.requires_grad_(False)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def spread(self, name: str, local: Tensor) -> Tensor:
        """Something that goes with what is trained, as a part of its whole."""
        if self.replicated(name):
            return local
        stack = of_experts(name.removesuffix(INPUTS).removesuffix(OUTPUTS))
        return self.sharded.layout.spread(local, self.shapes[name], stack)

    def saved(self, optimizer: OptimizerSet) -> dict[str, Any]:
        """Of this rank's rows."""
        masters = {name: master.detach() for name, master in self.trained.items()}
        return {"rows": {"masters": masters, "moments": moments_of(self, optimizer)}}

    def written(self, state: dict[str, Any], shards: Path | None) -> dict[str, Any]:
        assert shards is not None, "whoever saves a mesh says where its shards go"
        rest = {key: each for key, each in state.items() if key != "rows"}
        return rest | {"shards": {"name": shards.name, "hashes": write_shards(shards, self, **state["rows"])}}

    def take(self, state: Mapping[str, Any], optimizer: OptimizerSet, directory: Path | None) -> None:
        if "shards" not in state or directory is None:
            raise CheckpointError(
                "the checkpoint was saved by ranks that held all weights each: resume with trainer.ranks as a number"
            )
        read_shards(Shards(directory, state["shards"]), self, optimizer)
        optimizer.rest()
        self.round()

    # --- what is published --------------------------------------------------------------------------------------------

    def _rows(self, name: str, rank: int) -> Rows:
        """What a rank has of something that is published; of what all have, the first has it."""
        if self.replicated(name):
            return Rows(0, self.shapes[name][0] if rank == 0 else 0)
        return self.sharded.rows(name.removesuffix(INPUTS).removesuffix(OUTPUTS), rank)

    def sizes(self) -> dict[str, int]:
        sizes = {name: 2 * torch.Size(shape).numel() for name, shape in (self.sharded.shapes | self.shapes).items()}
        return sizes | ({ROOT: 32} if self.ranks else {})

    def export(self, into: Bits | None = None, only: Collection[str] | None = None) -> Bits:
        """This rank's arrays of a version, those that it `owns`. All ranks make the same call."""
        owned, former = self.owned[self.sharded.layout.rank], into or {}
        assert only == owned
        if not self._gathered:
            self._constant = self._whole({name: self._frozen(name) for name in self._frozen_names()}, {})
            self._gathered = True
        moving = {name: self.sharded.local[name] for name in self.whole} | self._rounded
        bits = self._whole(moving, former) | self._constant
        if self.ranks:
            root = self._root()
            bits |= {ROOT: root} if ROOT in owned else {}
        return bits

    def owns(self, ranks: Sequence[frozenset[str]]) -> None:
        """Say which arrays of a version each rank publishes."""
        self.owned = ranks

    def _frozen_names(self) -> list[str]:
        return sorted(self.sharded.shapes.keys() - self.whole)

    def _frozen(self, name: str) -> Tensor:
        return self._base[name] if name in self._base else self.sharded.local[name]

    def _whole(self, tensors: Mapping[str, Tensor], into: Bits) -> Bits:
        """Arrays of these tensors, each where it is published."""
        owner = {name: rank for rank, names in enumerate(self.owned) for name in names}
        found: Bits = {}
        for name in sorted(tensors):
            array = self._gather(name, tensors[name].detach(), owner[name], into.get(name))
            if array is not None:
                found[name] = array
        return found

    def _gather(self, name: str, local: Tensor, to: int, into: np.ndarray | None = None) -> np.ndarray | None:
        """The bits of a whole tensor, of which each rank has its rows; None on other ranks."""
        layout, shape, place = self.sharded.layout, (self.sharded.shapes | self.shapes)[name], None
        if layout.rank == to:
            into = np.empty(shape, np.uint16) if into is None else into
            place = torch.from_numpy(into).view(torch.bfloat16)
        gather(layout, local.to(torch.bfloat16), partial(self._rows, name), Rows(0, shape[0]), place, to)
        return into if layout.rank == to else None

    def _root(self) -> np.ndarray:
        """Of the adapted matrices, each hashed by one rank."""
        hashes: dict[str, str] = {}
        for at, name in enumerate(sorted(self.ranks)):
            bits = self._gather(name, self.sharded.local[name], at % self.sharded.layout.sizes.world)
            if bits is not None:
                hashes[name] = hash_of(bits)
        told: list[Any] = [None] * self.sharded.layout.sizes.world
        dist.all_gather_object(told, hashes)
        known = {name: each for table in told for name, each in table.items()}
        return root_array((name, self.sharded.shapes[name], known[name]) for name in sorted(known))

    def save_model(self, directory: Path, tokenizer: Tokenizer | None, like: Path) -> None:
        """Rank 0 writes, and is sent a tensor when it writes that."""
        if self.sharded.layout.rank == 0:
            save_checkpoint(self.policy, directory, tokenizer, like=like, tensor_of=self._published)
        else:
            for name in shapes_of(self.policy.config):
                self._published(name)

    @cached_property
    def _parts(self) -> dict[str, Part]:
        return parts_of(self.policy.config)

    def _published(self, published: str) -> Tensor:
        """A tensor by its published name, on rank 0."""
        part, layout = self._parts[published], self.sharded.layout
        if part.name not in self.sharded.shapes:
            return dict(self.policy.named_buffers())[part.name]
        rows = torch.empty((part.rows.length, *self.sharded.shapes[part.name][1:]), dtype=torch.bfloat16)
        local = self.sharded.local[part.name].to(torch.bfloat16)
        gather(layout, local, partial(self.sharded.rows, part.name), part.rows, rows, 0)
        return part.of(rows)

    def save_adapter(self, directory: Path, base: Path) -> None:
        found = {name: self._gather(name, factor.detach(), 0) for name, factor in sorted(self._rounded.items())}
        whole = {name: torch.from_numpy(bits).view(torch.bfloat16) for name, bits in found.items() if bits is not None}
        if whole:
            save_adapter(directory, whole, base, bool(self.policy.config.moe_layers))

    def _new_factors(self, name: str, weight: Tensor, rank: int) -> dict[str, Tensor]:
        whole = new_factors(name, torch.empty(self.sharded.shapes[name], device="meta"), rank)
        rows = slice(*self.sharded.rows(name))
        return {key: each if self.replicated(key) else each[rows].clone() for key, each in whole.items()}

    def _count(self, moved: Tensor) -> Tensor:
        anywhere = moved.int()
        dist.all_reduce(anywhere, dist.ReduceOp.MAX, self._group)
        return anywhere.sum()
