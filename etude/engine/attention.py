"""How tokens of one engine step attend: through the paged cache.

Owns the `Attention` of the engine: it writes the step's keys and values into their pages, then every token attends by
the paged kernel, whether it is decoded or prefilled. Built anew for each step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from etude.engine.kv_cache import CachedSequence, PagedCache
from etude.kernels.paged_attention import PAGE, Array, paged_attention, write_pages


class PagedAttention:
    """Tokens come packed: the new ones of each sequence, in the order of `batch`."""

    def __init__(
        self, cache: PagedCache, batch: list[tuple[CachedSequence, int]], starts: list[int] | None = None
    ) -> None:
        """`batch` pairs a sequence with how many new tokens it has; their positions start at `computed`, unless
        `starts` says otherwise.
        """
        self.cache = cache
        firsts = starts or [sequence.computed for sequence, _ in batch]
        counts = [count for _, count in batch]
        positions = np.repeat(firsts, counts) + np.arange(sum(counts)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.rows = np.repeat(np.arange(len(batch)), counts)
        self.tables = np.zeros((len(batch), max(len(sequence.pages) for sequence, _ in batch)), np.int64)
        for row, (sequence, _) in enumerate(batch):
            self.tables[row, : len(sequence.pages)] = sequence.pages
        self.lengths = positions + 1
        self.positions = torch.from_numpy(positions)
        self.page_of = self.tables[self.rows, positions // PAGE]
        self.offset_of = positions % PAGE

    def attend(self, layer: int, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, scale: float) -> Tensor:
        out = torch.empty((*q_NHC.shape[:2], v_NGV.shape[2]))
        self.run(layer, *(x.float().contiguous().numpy() for x in (q_NHC, k_NGC, v_NGV)), scale, out.numpy())
        return out.to(q_NHC.dtype)

    def run(self, layer: int, queries: Array, new_keys: Array, new_values: Array, scale: float, out: Array) -> None:
        """The same on arrays."""
        keys, values = self.cache.keys[layer].numpy(), self.cache.values[layer].numpy()
        write_pages(new_keys, new_values, self.page_of, self.offset_of, keys, values)
        paged_attention(queries, keys, values, self.tables, self.rows, self.lengths, scale, out)
