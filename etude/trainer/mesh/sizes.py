"""How long the axes of a mesh are, and what follows from it: which rank is where, and which rows it holds.

Owns `Sizes`. The grid's axes have torch's names, the last of them lie next to each other:

    replicate   ranks with the same shards: each works on pieces of its own, and their gradients are added
    fsdp        every parameter is cut by its first axis; each rank works on pieces of its own (FSDP2)
    ep          whole experts are dealt out by their numbers, and tokens travel to them; pieces of its own as well
    cp          the tokens of one piece are cut, and attention is by heads in between (Ulysses, arXiv 2309.14509)

A parameter is cut over all ranks of a replica, whatever axis they are on; a stack of experts first by `ep`, and what is
left over the others. No torch: a recipe is checked without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from etude.errors import ConfigError
from etude.models.config import ModelConfig
from etude.trainer.config import MeshAxis


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
