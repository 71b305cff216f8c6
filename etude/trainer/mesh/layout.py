"""Which rank holds and does what: the ranks of a trainer as a grid, and the groups that they talk in.

Owns `Layout`: the grid of `mesh.sizes` as meshes of processes. Parameters, stacks of experts and pieces each see the
ranks in another order, so there is a mesh for each. Never touches a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo
from torch.distributed.tensor import DTensor, Shard

from etude.errors import ConfigError
from etude.trainer.config import MESH_AXES, MeshAxis
from etude.trainer.mesh.sizes import Rows, Sizes


class Layout:
    """The grid as one of its ranks sees it. All make it at once, in a process group of as many ranks."""

    def __init__(self, axes: Mapping[MeshAxis, int], device: str = "cpu") -> None:
        self.sizes = Sizes.of(axes)
        self.rank = dist.get_rank()
        if dist.get_world_size() != self.sizes.world:
            shape = ", ".join(f"{axis} = {size}" for axis, size in zip(MESH_AXES, self.sizes, strict=True))
            raise ConfigError(f"trainer.ranks: {shape} are {self.sizes.world} ranks, not {dist.get_world_size()}")
        self.place = self.sizes.place(self.rank)
        grid = torch.arange(self.sizes.world).reshape(tuple(self.sizes))
        self.whole = _mesh(device, grid.flatten(1), ("replicate", "shard"))
        """Of parameters: a replica's ranks in a row."""
        self.experts = _mesh(device, grid.transpose(2, 3).flatten(1, 2), ("replicate", "shard", "ep"))
        """Of stacks of experts."""
        self.work = _mesh(device, grid.flatten(0, 2), ("data", "cp"))
        """Of pieces."""
        self.beside = dist.new_group()
        """Of all ranks, for what they exchange beside a step."""
        own = grid[self.place.replicate].transpose(0, 1).flatten(1)
        self._numbered = DeviceMesh(device, own, mesh_dim_names=("ep", "shard"), _init_backend=False)

    def group(self, axis: str) -> Any:
        """The process group of `shard` (a replica's ranks), `ep`, `data` or `cp` that this rank is in."""
        mesh = {"shard": self.whole, "ep": self.experts, "data": self.work, "cp": self.work}[axis]
        return mesh.get_group(axis)

    def rows(self, count: int, of_experts: bool, rank: int | None = None) -> Rows:
        return self.sizes.rows(count, self.rank if rank is None else rank, of_experts)

    def spread(self, local: Tensor, shape: tuple[int, ...], of_experts: bool) -> DTensor:
        """This rank's rows as a part of the whole tensor; exchanges nothing."""
        mesh = self._numbered if of_experts else self.whole["shard"]
        stride = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        cut = [Shard(0)] * mesh.ndim
        return DTensor.from_local(local, mesh, cut, run_check=False, shape=torch.Size(shape), stride=stride)

    def fsdp_mesh(self, of_experts: bool) -> DeviceMesh:
        """What `fully_shard` cuts a parameter over."""
        mesh = self.experts if of_experts else self.whole
        return mesh["shard"] if self.sizes.replicate == 1 else mesh["replicate", "shard"]

    def mesh_info(self, of_experts: bool) -> FSDPMeshInfo:
        mesh = self.fsdp_mesh(of_experts)
        return FSDPMeshInfo(mesh, 0) if mesh.ndim == 1 else HSDPMeshInfo(mesh, 1, 0)


def _mesh(device: str, grid: Tensor, names: tuple[str, ...]) -> DeviceMesh:
    return DeviceMesh(device, grid, mesh_dim_names=names)
