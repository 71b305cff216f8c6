"""How rows that are sorted by expert are cut into tiles, none of which belongs to two experts.

Owns `Groups`, the table a grouped kernel is launched over. It is computed on the device from where groups end, in
shapes that depend on the number of rows and groups alone, so nothing waits for the device to say how many tokens an
expert got. Rows stay where they are; `pad` shows them in the tiles' order, with zeros where a group's last tile is not
full, which is how scales and transposed operands are stored.

Shapes: M rows, E groups (experts), T tiles of `tile` rows: ceil(M / tile) + E, an upper bound; spare tiles are empty.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TILE = 128
"""Rows of a kernel's tile, and of an atom of scales (`scale_layout`): a tile's scales are whole atoms."""


class Groups(NamedTuple):
    """Tiles of consecutive rows of one expert. Tensors are int32."""

    tile_ends_E: Tensor
    """Where each group ends in the tiles."""
    expert_T: Tensor
    """Whose tile it is; E for a spare tile."""
    first_T: Tensor
    """The tile's first row."""
    stop_T: Tensor
    """One past the tile's last row; equal to the first for a spare tile."""
    tile: int

    @classmethod
    def of(cls, ends_E: Tensor, rows: int, tile: int = TILE) -> Groups:
        """Tiles of `rows` rows whose groups end at `ends_E` (torch._grouped_mm's `offs`), the last at `rows`."""
        experts = len(ends_E)
        ends = ends_E.int()
        starts = torch.cat((ends.new_zeros(1), ends[:-1]))
        tile_ends = ((ends - starts + tile - 1) // tile).cumsum(0, dtype=torch.int32)
        tiles = torch.arange(-(-rows // tile) + experts, dtype=torch.int32, device=ends.device)
        expert = torch.searchsorted(tile_ends, tiles, right=True).int()
        real = expert < experts
        owner = expert.clamp(max=experts - 1)
        tile_starts = torch.cat((tile_ends.new_zeros(1), tile_ends[:-1]))
        first = torch.where(real, starts[owner] + (tiles - tile_starts[owner]) * tile, 0).int()
        stop = torch.where(real, torch.minimum(first + tile, ends[owner]), 0).int()
        return cls(tile_ends, expert, first, stop, tile)

    @classmethod
    def uniform(cls, experts: int, rows: int, device: torch.device, tile: int = TILE) -> Groups:
        """Groups of `rows` rows each: the stacked matrices of a weight."""
        ends = torch.arange(1, experts + 1, dtype=torch.int32, device=device) * rows
        return cls.of(ends, experts * rows, tile)

    @property
    def slots(self) -> int:
        """Rows of the tiles' order, padding and spare tiles included."""
        return len(self.expert_T) * self.tile

    def slots_of(self, expert_M: Tensor, ends_E: Tensor) -> Tensor:
        """Where each row lies in the tiles' order [M]; `expert_M` says whose it is, in `Groups.of`'s order."""
        ends, tile_ends = ends_E.long(), self.tile_ends_E.long()
        skipped_E = tile_ends.roll(1) * self.tile - ends.roll(1)  # slots before a group, less the rows before it
        skipped_E = torch.cat((skipped_E.new_zeros(1), skipped_E[1:]))
        return torch.arange(len(expert_M), device=ends.device) + skipped_E.index_select(0, expert_M)

    def pad(self, x_MK: Tensor) -> Tensor:
        """Rows in the tiles' order [slots, K], zeros where there is no row."""
        slots = (self.first_T[:, None] + torch.arange(self.tile, device=x_MK.device)).flatten()
        real = slots < self.stop_T.repeat_interleave(self.tile)
        padded = x_MK[torch.where(real, slots, 0)]
        return padded.masked_fill(~real[:, None], 0)
