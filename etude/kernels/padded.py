"""Attention of many sequences by torch's own, on any device: sequences of similar length in one padded batch.

Owns the two layouts, `PaddedSegments` for a trainer and `PaddedCached` for an engine. There is a batch for each power
of two, so that less than half of its rows are padding, and a call for each batch rather than each sequence. The lengths
are the host's, so the device is asked for none. What is padded repeats a sequence's last token, where nobody looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from etude.kernels.devices import put
from etude.kernels.interface import Ints


def batches_of(lengths: Ints) -> Iterator[Ints]:
    """The sequences of each power of two."""
    kinds = np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    for kind in np.unique(kinds):
        yield np.flatnonzero(kinds == kind)


class Padded(NamedTuple):
    """Rows of some sequences, padded to the longest."""

    row_BL: Ints
    real_BL: np.ndarray

    @classmethod
    def of(cls, starts_B: Ints, lengths_B: Ints) -> Padded:
        inside = np.arange(lengths_B.max())[None]
        row_BL = starts_B[:, None] + np.minimum(inside, lengths_B[:, None] - 1)
        return cls(row_BL, inside < lengths_B[:, None])


class _Return:
    """Where each row lies in all batches together."""

    def __init__(self, count: int) -> None:
        self.where_N, self._rows = np.zeros(count, np.int64), 0

    def add(self, padded: Padded) -> None:
        at_BL = self._rows + np.arange(padded.row_BL.size).reshape(padded.row_BL.shape)
        self.where_N[padded.row_BL[padded.real_BL]] = at_BL[padded.real_BL]
        self._rows += padded.row_BL.size


def _gathered(x: Tensor, rows: Tensor, length: int) -> Tensor:
    """[B, heads, L, C] of rows [B L] of x [N, heads, C]."""
    return x.index_select(0, rows).unflatten(0, (-1, length)).transpose(1, 2)


def _widened(values: Tensor, width: int) -> Tensor:
    """torch's fast kernels want values as wide as keys."""
    return F.pad(values, (0, width - values.shape[-1]))


class PaddedSegments:
    """`interface.Segments`"""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        sizes = np.asarray(lengths, np.int64)
        starts = np.cumsum(sizes) - sizes
        back, self.batches = _Return(int(sizes.sum())), []
        for its in batches_of(sizes):
            padded = Padded.of(starts[its], sizes[its])
            back.add(padded)
            rows = put(padded.row_BL.reshape(-1), device)
            self.batches.append((rows, padded.row_BL.shape[1]))
        self.where_N = put(back.where_N, device)

    def attend(self, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, scale: float) -> Tensor:
        v_NGC, outputs = _widened(v_NGV, k_NGC.shape[2]), []
        for rows, length in self.batches:
            q, k, v = (_gathered(x, rows, length) for x in (q_NHC, k_NGC, v_NGC))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self.where_N)[..., : v_NGV.shape[2]]


class _Batch(NamedTuple):
    """Queries of sequences, and the places of the keys that they see."""

    queries: Tensor
    keys: Tensor
    seen_B1QL: Tensor
    """Which key a query sees."""


class PaddedCached:
    """`interface.Cached`: batches by how many new tokens a sequence has."""

    def __init__(self, counts: Sequence[int], places: Sequence[Ints], device: torch.device) -> None:
        new, known = np.asarray(counts, np.int64), np.array([len(each) for each in places], np.int64)
        starts, place_M = np.cumsum(new) - new, np.concatenate(places)
        of_keys = np.cumsum(known) - known
        back, self.batches = _Return(int(new.sum())), []
        for its in batches_of(new):
            queries, keys = Padded.of(starts[its], new[its]), Padded.of(of_keys[its], known[its])
            back.add(queries)
            seen_BQ = queries.row_BL + (known - new - starts)[its, None] + 1
            seen_BQL = np.arange(keys.row_BL.shape[1])[None, None] < seen_BQ[:, :, None]
            given = queries.row_BL.reshape(-1), place_M[keys.row_BL.reshape(-1)], seen_BQL[:, None]
            self.batches.append(_Batch(*(put(each, device) for each in given)))
        self.where_N = put(back.where_N, device)

    def attend(self, q_NHC: Tensor, keys_PGC: Tensor, values_PGV: Tensor, scale: float) -> Tensor:
        outputs = []
        for queries, places, seen in self.batches:
            q = _gathered(q_NHC, queries, seen.shape[2])
            k, v = (_gathered(x, places, seen.shape[3]) for x in (keys_PGC, values_PGV))
            v = _widened(v, k.shape[3])
            out = F.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self.where_N)[..., : values_PGV.shape[2]]
