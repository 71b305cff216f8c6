"""Muon's directions of matrices that are cut by their rows over a mesh.

Owns `ShardedOrthogonaliser`. A matrix is orthogonalised whole, and by one rank: matrices go together as many as a
replica has ranks, each rank is sent the rows of one of them, orthogonalises it, and sends rows of the direction back.
So a rank holds one whole matrix at a time, and no two do the same work. Stacks of experts are whole where they are, and
stay there. Momentum is cut like its parameter, and never travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from etude.trainer.mesh.layout import Layout
from etude.trainer.optimizers import Orthogonaliser, newton_schulz


class _Part(NamedTuple):
    """Rows of a matrix on their way."""

    rows: int
    columns: int

    @property
    def numbers(self) -> int:
        """One more says whether there is a gradient."""
        return self.rows * self.columns + 1


class ShardedOrthogonaliser(Orthogonaliser):
    """All ranks of a replica make the same calls."""

    def __init__(self, cut: Mapping[int, tuple[int, ...]], layout: Layout) -> None:
        """`cut`: the whole shapes of the matrices that are cut by rows, by the `id` of their parameters."""
        self.cut, self.layout, self.group = cut, layout, layout.group("shard")
        self.ranks = dist.get_process_group_ranks(self.group)
        self.rank = dist.get_rank(self.group)

    def batches(self, parameters: Sequence[nn.Parameter]) -> Iterable[Sequence[nn.Parameter]]:
        yield from ([each] for each in parameters if id(each) not in self.cut)
        cut, many = [each for each in parameters if id(each) in self.cut], len(self.ranks)
        yield from (cut[first : first + many] for first in range(0, len(cut), many))

    def shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        return self.cut.get(id(parameter), tuple(parameter.shape))

    def directions(
        self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor], means: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        if id(parameters[0]) not in self.cut:
            return super().directions(parameters, gradients, means)
        shapes = [self.shape(each) for each in parameters]
        mine = [self._part(shape, self.rank) for shape in shapes]
        of_all = [self._part(shapes[self.rank], at) for at in range(len(self.ranks))] if self.rank < len(shapes) else []
        said = [
            torch.cat((mean.flatten(), grad.any().to(mean)[None])) for mean, grad in zip(means, gradients, strict=True)
        ]
        back = self._exchanged(torch.cat(self._orthogonalised(torch.cat(said), mine, of_all)), of_all, mine)
        parts = back.split([each.numbers for each in mine])
        return [
            (part[-1:] > 0, part[:-1].view(each.rows, each.columns)) for part, each in zip(parts, mine, strict=True)
        ]

    def _part(self, shape: tuple[int, ...], at: int) -> _Part:
        return _Part(self.layout.rows(shape[0], False, self.ranks[at]).length, shape[1])

    def _orthogonalised(self, said: Tensor, mine: Sequence[_Part], of_all: Sequence[_Part]) -> list[Tensor]:
        """What goes back to all ranks of the matrix that this one is sent."""
        got = self._exchanged(said, mine, of_all)
        if not of_all:
            return [got]
        parts = got.split([each.numbers for each in of_all])
        whole = torch.cat([part[:-1] for part in parts]).view(-1, of_all[0].columns)
        found = torch.stack([part[-1] for part in parts]).amax()[None]
        rows = newton_schulz(whole).split([each.rows for each in of_all])
        return [torch.cat((some.flatten(), found)) for some in rows]

    def _exchanged(self, sent: Tensor, parts: Sequence[_Part], coming: Sequence[_Part]) -> Tensor:
        """Parts, one for each rank from the first on, for those that come from each."""
        out = [each.numbers for each in parts] + [0] * (len(self.ranks) - len(parts))
        into = [each.numbers for each in coming] + [0] * (len(self.ranks) - len(coming))
        got = sent.new_empty(sum(into))
        dist.all_to_all_single(got, sent, into, out, self.group)
        return got
