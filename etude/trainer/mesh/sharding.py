"""A decoder cut over a mesh: each rank holds rows of every parameter, and a block is whole only while it computes.

Owns `Sharded`: how FSDP2 is put on a decoder that was made without values, which rows a rank holds, and how they are
filled, so that nobody ever holds the whole model. Experts are cut by their numbers first; a module then has the stacks
of its rank (`mesh.experts`). What FSDP adds up is a sum and no mean: losses say what a token weighs. A buffer is on
every rank. Never trains.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import ShardPlacementResult
from torch.distributed.tensor import DTensor

from etude.kernels.choice import Placement
from etude.kernels.torch_kernels import TORCH
from etude.models.adapters import kind_of
from etude.models.checkpoint import opened
from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.experts import MixtureOfExperts
from etude.models.heap import give_back_large_arrays
from etude.trainer.mesh.experts import ExpertParallel
from etude.trainer.mesh.gathering import Part, parts_of
from etude.trainer.mesh.layout import Layout
from etude.trainer.mesh.sizes import Rows

Form = Literal["fp32", "bf16"]
"""What is gathered, and computed with."""


class Source(Protocol):
    """Where a decoder's values come from."""

    def __call__(self, name: str, rows: Rows) -> Tensor:
        """These rows of a parameter, or a buffer whole."""
        ...


def here(tensor: Tensor) -> Tensor:
    """What of a tensor this rank holds; writing to it writes to the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Sharded:
    """A decoder of which this rank holds a share. `policy` is called as ever, by all ranks at once."""

    def __init__(self, config: ModelConfig, layout: Layout, device: torch.device, form: Form) -> None:
        """Without values yet: see `fill`. Raises ConfigError for a shape that cannot be cut so."""
        layout.sizes.require(config)
        self.layout, self._made_with = layout, (config, layout, device, form)
        with torch.device("meta"):
            self.policy = Decoder(config)
            self.shapes = {name: tuple(each.shape) for name, each in self.policy.named_parameters()}
            """Of whole parameters."""
            give_back_large_arrays(self.policy)
            self._deal_out_experts()
        self.policy.place(Placement(TORCH, torch.device("meta")))
        if layout.sizes.ep > 1:
            for module in self.policy.modules():
                if isinstance(module, MixtureOfExperts):
                    module.kernels = ExpertParallel(layout.group("ep"))
        self._cut(form)
        self._allocate(device)
        self.local = {name: here(each.detach()) for name, each in self.policy.named_parameters()}
        """This rank's rows, by name: the very memory of the policy."""

    def _allocate(self, device: torch.device) -> None:
        self.policy.to_empty(device=device)

    def _deal_out_experts(self) -> None:
        ranks = self.layout.sizes.ep
        for module in self.policy.modules():
            if isinstance(module, MixtureOfExperts):
                for name in ("gate_up", "down"):
                    stack = getattr(module, name)
                    setattr(module, name, nn.Parameter(stack.new_empty((len(stack) // ranks, *stack.shape[1:]))))

    def _cut(self, form: Form) -> None:
        stacks: set[int] = set()
        by_number = None
        if self.layout.sizes.ep > 1:
            stacks = {id(each) for name, each in self.policy.named_parameters() if of_experts(name)}
            by_number = ShardPlacementResult(None, self.layout.mesh_info(of_experts=True))
        options: dict[str, Any] = {
            "mesh": self.layout.fsdp_mesh(of_experts=False),
            "shard_placement_fn": lambda parameter: by_number if id(parameter) in stacks else None,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=torch.bfloat16 if form == "bf16" else None,
                reduce_dtype=torch.float32,
                cast_forward_inputs=False,  # positions stay fp32, and embeddings have the dtype already
            ),
        }
        blocks = [*self.policy.blocks, *([self.policy.further.block] if self.policy.further is not None else [])]
        for module in (*blocks, self.policy):
            fully_shard(module, **options)
        for module in self.policy.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no other

    def rows(self, name: str, rank: int | None = None) -> Rows:
        """Which rows of a parameter a rank holds, this one unless another is named."""
        return self.layout.rows(self.shapes[name][0], of_experts(name), rank)

    @torch.no_grad()
    def fill(self, source: Source) -> Sharded:
        """Take this rank's rows; returns itself."""
        for name, local in self.local.items():
            local.copy_(source(name, self.rows(name)))
        for name, buffer in self.policy.named_buffers():
            buffer.copy_(source(name, Rows(0, len(buffer))))
        self.renewed()
        return self

    def renewed(self) -> None:
        """Rows have other values now: what was gathered of them before is stale."""
        for module in self.policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def copy(self) -> Sharded:
        """Another one of the same values."""
        buffers = dict(self.policy.named_buffers())
        return type(self)(*self._made_with).fill(
            lambda name, rows: buffers[name] if name in buffers else self.local[name]
        )


def of_experts(name: str) -> bool:
    """Whether a parameter is a stack of experts."""
    return kind_of(name) == "experts"


def from_decoder(decoder: Decoder) -> Source:
    """A decoder that is whole."""
    held = decoder.state_dict()
    return lambda name, rows: held[name][slice(*rows)]


@contextmanager
def from_checkpoint(directory: Path) -> Generator[Source]:
    """A published checkpoint's files, of which no more is read than is asked for, a tensor at a time."""
    with opened(directory) as (config, read):
        of: dict[str, list[tuple[str, Part]]] = {}
        for published, part in parts_of(config).items():
            of.setdefault(part.name, []).append((published, part))
        with torch.device("meta"):
            shapes = {name: each.shape for name, each in Decoder(config).state_dict().items()}

        def source(name: str, rows: Rows) -> Tensor:
            out = torch.empty((rows.length, *shapes[name][1:]))
            for published, part in of[name]:
                begin, end = max(rows.start, part.rows.start), min(rows.stop, part.rows.stop)
                if begin >= end:
                    continue
                if len(shapes[name]) == 3:  # an expert's, or half of it, turned
                    part._replace(rows=Rows(rows.start, rows.stop)).of(out).copy_(read(published))
                else:
                    first = part.rows.start
                    out[begin - rows.start : end - rows.start] = read(published)[begin - first : end - first]
            return out

        yield source
