"""Rows of one tensor, from all ranks that have some to the one that wants them.

Owns `gather`, and `Parts`: which rows of which parameter a published tensor is. A rank sends what it has of what is
wanted, as bytes and straight into its place, so that nobody has more than that one tensor beside what it holds. Knows
nothing of versions or files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from etude.models.config import ModelConfig
from etude.models.decoder import Decoder
from etude.models.published import published_tensors, shared_tensors
from etude.trainer.mesh.layout import Layout
from etude.trainer.mesh.sizes import Rows


def gather(
    layout: Layout, local: Tensor, rows_of: Callable[[int], Rows], wanted: Rows, into: Tensor | None, to: int
) -> None:
    """Fill `into`, the wanted rows on the host of rank `to`. `local` is what this rank has, the rows `rows_of` its own
    number. All ranks make the same call; of replicas the first one sends.
    """
    for sender in range(layout.sizes.shards):
        has = rows_of(sender)
        begin, end = max(has.start, wanted.start), min(has.stop, wanted.stop)
        if begin >= end or layout.rank not in (sender, to):
            continue
        mine = local[begin - has.start : end - has.start].contiguous() if layout.rank == sender else None
        if layout.rank == to:
            assert into is not None
            place = into[begin - wanted.start : end - wanted.start]
            if mine is None:
                coming = torch.empty(place.shape, dtype=place.dtype, device=local.device)
                dist.recv(_bytes(coming), sender)
                mine = coming
            place.copy_(mine)
        elif mine is not None:
            dist.send(_bytes(mine), to)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


class Part(NamedTuple):
    """Where a published tensor is: a view of these rows of a parameter or a buffer."""

    name: str
    rows: Rows
    view: Tensor
    """Of the whole parameter, without values."""

    def of(self, rows: Tensor) -> Tensor:
        """The published tensor, in its rows."""
        offset = self.view.storage_offset() - self.rows.start * rows.stride(0)
        return rows.as_strided(self.view.shape, self.view.stride(), offset)


def parts_of(config: ModelConfig) -> dict[str, Part]:
    """Of all published tensors, by their names; makes no model."""
    with torch.device("meta"):
        decoder = Decoder(config)
    held = {name: each.data for name, each in (*decoder.named_parameters(), *decoder.named_buffers())}
    whose = {each.untyped_storage()._cdata: name for name, each in held.items()}
    found: dict[str, Part] = {}
    for published, view in published_tensors(decoder).items():
        name = whose[view.untyped_storage()._cdata]
        first = view.storage_offset() // held[name].stride(0)
        count = 1 if held[name].dim() == 3 else len(view)  # of an expert's matrix it is one
        found[published] = Part(name, Rows(first, first + count), view)
    return found | {copy: found[name] for copy, name in shared_tensors(decoder).items()}
