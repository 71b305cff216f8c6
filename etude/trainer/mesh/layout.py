"""Which rank holds and does what: the ranks of a trainer as a grid, and the groups that they talk in.

Owns `Layout`. The grid's axes have torch's names, the last of them lie next to each other:

    replicate   ranks with the same shards: each works on pieces of its own, and their gradients are added
    fsdp        every parameter is cut by its first axis; each rank works on pieces of its own (FSDP2)
    ep          whole experts are dealt out by their numbers, and tokens travel to them; pieces of its own as well
    cp          the tokens of one piece are cut, and attention is by heads in between (Ulysses, arXiv 2309.14509)

A parameter is cut over all ranks of a replica, whatever axis they are on; a stack of experts first by `ep`, and what is
left over the others. So each rank holds rows `Layout.rows` of it, whatever it is. Never touches a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo
from torch.distributed.tensor import DTensor, Shard

from etude.errors import ConfigError
from etude.models.config import ModelConfig
from etude.trainer.config import MESH_AXES, MeshAxis


class Place(NamedTuple):
    """A rank's coordinates."""

    replicate: int
    fsdp: int
    ep: int
    cp: int


class Rows(NamedTuple):
    """Of a whole tensor's first axis, from `start` up to `stop`."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


class Sizes(NamedTuple):
    """How long the grid's axes are. Needs no process group."""

    replicate: int = 1
    fsdp: int = 1
    ep: int = 1
    cp: int = 1

    @classmethod
    def of(cls, axes: Mapping[MeshAxis, int]) -> Sizes:
        return cls(**axes)

    @property
    def world(self) -> int:
        return math.prod(self)

    @property
    def shards(self) -> int:
        """Ranks of a replica."""
        return self.fsdp * self.ep * self.cp

    @property
    def data(self) -> int:
        """Pieces that are worked on at once."""
        return self.replicate * self.fsdp * self.ep

    def place(self, rank: int) -> Place:
        found = []
        for size in reversed(self):
            rank, at = divmod(rank, size)
            found.append(at)
        return Place(*reversed(found))

    def rows(self, count: int, rank: int, of_experts: bool) -> Rows:
        """What a rank holds of `count` rows; of a stack of experts by their numbers. May be none."""
        at = self.place(rank)
        if not of_experts:
            return _chunk(count, self.shards, (at.fsdp * self.ep + at.ep) * self.cp + at.cp)
        each = count // self.ep
        own = _chunk(each, self.fsdp * self.cp, at.fsdp * self.cp + at.cp)
        return Rows(at.ep * each + own.start, at.ep * each + own.stop)

    def require(self, model: ModelConfig) -> None:
        """Raises ConfigError where a model of this shape cannot be laid out so."""
        if self.ep > 1 and not model.moe_layers:
            raise ConfigError(f"trainer.ranks: ep = {self.ep}, but the model has no experts; give fsdp those ranks")
        if model.moe_layers and model.experts % self.ep:
            raise ConfigError(
                f"trainer.ranks: ep = {self.ep} does not divide the model's {model.experts} experts; give ep a divisor "
                "of them and fsdp the rest"
            )
        keys = model.cached_key[0]
        if model.heads % self.cp or (keys > 1 and keys % self.cp):
            kinds = f"{model.heads} heads" + (f" and {keys} heads of keys" if keys > 1 else "")
            raise ConfigError(
                f"trainer.ranks: cp = {self.cp} does not divide the model's {kinds}, which context parallelism deals "
                "out; give cp a divisor of them and fsdp the rest"
            )


def _chunk(count: int, parts: int, at: int) -> Rows:
    """As torch cuts: all parts as large as the first, but for the last that have any."""
    size = -(-count // parts)
    return Rows(min(at * size, count), min((at + 1) * size, count))


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
