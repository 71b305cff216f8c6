"""The ranks of a mesh within a step, as one of them sees them.

Owns `Mesh`: which rank works on which piece, how their figures meet, and what a trainer is given in place of what it
would hold alone. Pieces are worked through in rounds, one for each rank of `data`; one that has none left works on
another's once more, for nothing, because every rank takes part in every exchange. Gradients are added where they are
cut (FSDP2), in an order that depends on the mesh: the bits of weights do, too. Figures of all pieces are gathered on
all ranks, in shapes that the packing tells, so that what a step decides is decided alike. Talks to: layout, sharding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from etude.models.decoder import Decoder
from etude.records import Batch
from etude.trainer.config import TrainerConfig
from etude.trainer.mesh.context import Alike, Ulysses
from etude.trainer.mesh.layout import Layout
from etude.trainer.mesh.sharding import Sharded
from etude.trainer.mesh.trained import ShardedTrained
from etude.trainer.pieces import WHOLE, Whole


class Result(Protocol):
    """What is known of a piece once it is worked on."""

    def flat(self) -> Tensor: ...

    def lengths(self, piece: Batch) -> Sequence[int]: ...

    def like(self, flat: Tensor, piece: Batch) -> Self: ...


R = TypeVar("R", bound=Result)


class Mesh:
    """All ranks make the same calls."""

    def __init__(self, layout: Layout, sharded: Sharded, config: TrainerConfig) -> None:
        self.layout, self.sharded = layout, sharded
        self.rank, self.size = layout.rank, layout.sizes.world
        self.context: Whole = WHOLE
        if layout.sizes.cp > 1:
            self.context = Ulysses(layout.group("cp"), config.piece_tokens)
        elif layout.sizes.ep > 1:
            self.context = Alike(config.piece_tokens)

    @property
    def lesson_share(self) -> float:
        """All ranks learn the same lessons, and what they learn is added up."""
        return 1 / self.size

    def trained(self, decoder: Decoder, config: TrainerConfig) -> ShardedTrained:
        assert decoder is self.sharded.policy
        return ShardedTrained(self.sharded, config)

    def run_pieces(
        self, pieces: Sequence[Batch], work: Callable[[Batch, float], R], parameters: Sequence[Tensor]
    ) -> list[R]:
        """What `work` gives for every piece, on all ranks; a weight of 0 adds no gradient."""
        del parameters  # FSDP adds their gradients up
        done: list[R] = []
        data, mine = self.layout.sizes.data, dist.get_rank(self.layout.group("data"))
        for first in range(0, len(pieces), data):
            now = pieces[first : first + data]
            result = work(now[min(mine, len(now) - 1)], float(mine < len(now)))
            done += [result.like(flat, piece) for flat, piece in zip(self._all(result, now), now, strict=False)]
        return done

    def _all(self, mine: Result, now: Sequence[Batch]) -> Sequence[Tensor]:
        """What all ranks of `data` have, flat, each filled up to the longest."""
        flat = mine.flat()
        width = max(sum(mine.lengths(piece)) for piece in now)
        padded = torch.cat((flat, flat.new_zeros(width - len(flat))))
        found = padded.new_empty(self.layout.sizes.data * width)
        dist.all_gather_single(found, padded, group=self.layout.group("data"))
        return found.split(width)
