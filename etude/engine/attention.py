"""How tokens of one engine step attend: through the paged cache.

Owns the `Attention` of the engine: it writes the step's keys and values into their pages, then every token attends,
whether it is decoded or prefilled: on a host by the paged kernel, on a device by what its kernels have for a cache.
Built anew for each step, from what the host knows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from etude.engine.kv_cache import CachedSequence, PagedCache
from etude.kernels.paged_attention import PAGE, Array, paged_attention, write_pages
from etude.kernels.vectors import in_parallel


class PagedAttention:
    """Tokens come packed: the new ones of each sequence, in the order of `batch`."""

    def __init__(
        self, cache: PagedCache, batch: list[tuple[CachedSequence, int]], starts: list[int] | None = None
    ) -> None:
        """`batch` pairs a sequence with how many new tokens it has; their positions start at `computed`, unless
        `starts` says otherwise.
        """
        self.cache, place = cache, cache.placement
        firsts = starts or [sequence.computed for sequence, _ in batch]
        counts = [count for _, count in batch]
        positions = np.repeat(firsts, counts) + np.arange(sum(counts)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.rows = np.repeat(np.arange(len(batch)), counts)
        self.tables = np.zeros((len(batch), max(len(sequence.pages) for sequence, _ in batch)), np.int64)
        for row, (sequence, _) in enumerate(batch):
            self.tables[row, : len(sequence.pages)] = sequence.pages
        self.lengths = positions + 1
        alike = sorted(range(len(batch)), key=lambda row: batch[row][0].pages)
        self.order = np.argsort(np.argsort(alike)[self.rows], kind="stable")
        """The queries, those of sequences whose pages begin alike side by side: they read these pages together."""
        self.positions = torch.from_numpy(positions).to(place.device)
        self.page_of = self.tables[self.rows, positions // PAGE]
        self.offset_of = positions % PAGE
        if not place.kernels.on_host:
            ends = self.lengths[np.cumsum(counts) - 1]
            inside = [np.arange(end) for end in ends]
            places = [table[at // PAGE] * PAGE + at % PAGE for table, at in zip(self.tables, inside, strict=True)]
            self._cached = place.kernels.cached(counts, places, place.device)
            self._place_N = torch.from_numpy(self.page_of * PAGE + self.offset_of).to(place.device)

    def attend(self, layer: int, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, scale: float) -> Tensor:
        if not self.cache.placement.kernels.on_host:
            keys_PGC, values_PGV = self.cache.keys[layer], self.cache.values[layer]
            keys_PGC.index_copy_(0, self._place_N, k_NGC.float())
            values_PGV.index_copy_(0, self._place_N, v_NGV.float())
            return self._cached.attend(q_NHC.float(), keys_PGC, values_PGV, scale).to(q_NHC.dtype)
        out = torch.empty((*q_NHC.shape[:2], v_NGV.shape[2]))
        self.run(layer, *(x.float().contiguous().numpy() for x in (q_NHC, k_NGC, v_NGV)), scale, out.numpy())
        return out.to(q_NHC.dtype)

    def run(self, layer: int, queries: Array, new_keys: Array, new_values: Array, scale: float, out: Array) -> None:
        """The same on arrays."""
        keys, values = self.cache.keys[layer].numpy(), self.cache.values[layer].numpy()
        write_pages(new_keys, new_values, self.page_of, self.offset_of, keys, values)

        def some(part: slice) -> None:
            order = self.order[part]
            paged_attention(
                queries, keys, values, self.tables, order, self.rows[order], self.lengths[order], scale, out
            )

        in_parallel(len(queries), 1, some)
