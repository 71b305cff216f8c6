"""How tokens of one engine step attend: through the paged cache.

Owns the `Attention` of the engine: it writes the step's keys and values into their pages, then attends, single queries
with the paged kernel and prefill chunks with torch, chunk by chunk. Built anew for each step.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from etude.engine.kv_cache import PagedCache, Sequence
from etude.kernels.decode_attention import PAGE, decode_attention


class PagedAttention:
    """Tokens come packed: first one token of each of `singles`, then each chunk's new tokens."""

    def __init__(self, cache: PagedCache, singles: list[Sequence], chunks: list[tuple[Sequence, int]]) -> None:
        """`chunks` pairs a sequence with how many new tokens it has; positions start at `computed` in both."""
        self.cache = cache
        self.singles = len(singles)
        self.chunks = chunks
        positions = [s.computed for s in singles]
        pages = [s.pages[s.computed // PAGE] for s in singles]
        for sequence, count in chunks:
            new = range(sequence.computed, sequence.computed + count)
            positions += new
            pages += [sequence.pages[position // PAGE] for position in new]
        self.positions = torch.tensor(positions)
        self.page_of = torch.tensor(pages)
        self.offset_of = self.positions % PAGE
        self.lengths = np.asarray([s.computed + 1 for s in singles], np.int64)
        self.tables = np.zeros((len(singles), max((len(s.pages) for s in singles), default=1)), np.int64)
        for row, sequence in enumerate(singles):
            self.tables[row, : len(sequence.pages)] = sequence.pages

    def attend(self, layer: int, q_NHC: Tensor, k_NGC: Tensor, v_NGC: Tensor, scale: float) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys[self.page_of, self.offset_of] = k_NGC
        if v_NGC is not k_NGC:
            values[self.page_of, self.offset_of] = v_NGC
        out = torch.empty_like(q_NHC)
        if self.singles:
            queries = q_NHC[: self.singles].contiguous().numpy()
            decode_attention(
                queries,
                keys.numpy(),
                values.numpy(),
                self.tables,
                self.lengths,
                scale,
                out[: self.singles].numpy(),
            )
        start = self.singles
        for sequence, count in self.chunks:
            out[start : start + count] = self._chunk(keys, values, sequence, q_NHC[start : start + count], scale)
            start += count
        return out

    def _chunk(self, keys: Tensor, values: Tensor, sequence: Sequence, q_TNC: Tensor, scale: float) -> Tensor:
        """Causal attention of a chunk's queries over everything its sequence has so far."""
        past, count = sequence.computed, q_TNC.shape[0]
        length = past + count
        table = torch.tensor(sequence.pages[: (length + PAGE - 1) // PAGE])
        k = keys[table].flatten(0, 1)[:length].transpose(0, 1)
        v = values[table].flatten(0, 1)[:length].transpose(0, 1)
        mask = None if past == 0 else torch.ones(count, length, dtype=torch.bool).tril(past)
        out = F.scaled_dot_product_attention(
            q_TNC.transpose(0, 1)[None],
            k[None],
            v[None],
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)
