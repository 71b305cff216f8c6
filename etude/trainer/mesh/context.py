"""The tokens of one piece on several ranks (context parallelism), with attention by heads in between.

Owns `Ulysses` (arXiv 2309.14509): every rank has an equal stretch of the packed axis, whatever segments lie in it. For
attention each rank gets all tokens of some heads, so that segments are whole and packing is as ever; then they go back.
A key that all heads share, as in latent attention, goes to all. Log-probabilities of sampled tokens are made where
their hidden states are, and then gathered: a loss sees all of a segment, and is the same on all ranks. Its gradient is
taken apart again, so that adding up what all ranks have is right. Never cuts a parameter.

Shapes: N tokens of a piece, filled up to P stretches of n; R of S sampled tokens are predicted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd

from etude.kernels.choice import Placement
from etude.models.attention import Attention, PackedAttention
from etude.models.config import ModelConfig
from etude.trainer.activations import recomputes_blocks
from etude.trainer.losses import Figure
from etude.trainer.pieces import Whole


class Alike(Whole):
    """`pieces.Whole` for ranks that work on pieces of different lengths, and exchange what is in them all the same."""

    def __init__(self, most_tokens: int) -> None:
        """`most_tokens`: of a piece, for what all ranks must decide alike."""
        self.most_tokens = most_tokens

    def recomputes(self, model: ModelConfig, tokens: int) -> bool:
        return recomputes_blocks(model, self.most_tokens)


class Ulysses(Alike):
    """For a piece that is cut over the ranks of a group."""

    def __init__(self, group: Any, most_tokens: int) -> None:
        super().__init__(most_tokens)
        self.group = group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def _stretch(self, tokens: int) -> int:
        return -(-tokens // self.ranks)

    def own(self, array_N: np.ndarray, fill: Any = 0) -> np.ndarray:
        each = self._stretch(len(array_N))
        part = array_N[self.rank * each : (self.rank + 1) * each]
        missing = np.full((each - len(part), *array_N.shape[1:]), fill, array_N.dtype)
        return np.concatenate([part, missing])

    def attention(self, lengths: Sequence[int], placement: Placement) -> Attention:
        tokens = sum(lengths)
        spare = self._stretch(tokens) * self.ranks - tokens
        return _ByHeads(self, PackedAttention([*lengths, *([spare] if spare else [])], placement))

    def own_rows(self, row_S: np.ndarray, tokens: int) -> tuple[slice, int]:
        each = self._stretch(tokens)
        edges = np.searchsorted(row_S, [self.rank * each, (self.rank + 1) * each])
        return slice(*edges.tolist()), self.rank * each

    def join(self, values_R: Tensor, row_S: np.ndarray, tokens: int) -> Tensor:
        edges = np.searchsorted(row_S, self._stretch(tokens) * np.arange(self.ranks + 1))
        return _Joined.apply(values_R, np.diff(edges).tolist(), self)

    def real(self, tokens: int) -> slice:
        each = self._stretch(tokens)
        return slice(0, max(0, min(each, tokens - self.rank * each)))

    def total(self, counts: dict[str, Figure]) -> dict[str, Figure]:
        if not counts:
            return {}
        device = next(each.device for each in counts.values() if isinstance(each, Tensor))
        values = torch.stack([torch.as_tensor(each, dtype=torch.float64, device=device) for each in counts.values()])
        dist.all_reduce(values, group=self.group)
        return dict(zip(counts, values.unbind(), strict=True))

    def recomputes(self, model: ModelConfig, tokens: int) -> bool:
        return recomputes_blocks(model, self._stretch(self.most_tokens))


class _ByHeads:
    """`models.attention.Attention` over all tokens for the heads of one rank."""

    def __init__(self, context: Ulysses, inner: Attention) -> None:
        self.group, self.ranks, self.inner = context.group, context.ranks, inner

    def attend(self, layer: int, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, scale: float) -> Tensor:
        if k_NGC.shape[1] == 1:
            both = _Gathered.apply(torch.cat((k_NGC, v_NGV), dim=-1), self.group, self.ranks)
            k, v = both.split((k_NGC.shape[2], v_NGV.shape[2]), dim=-1)
        else:
            k, v = self._to_heads(k_NGC), self._to_heads(v_NGV)
        return self._to_tokens(self.inner.attend(layer, self._to_heads(q_NHC), k, v, scale))

    def _to_heads(self, x_nHC: Tensor) -> Tensor:
        """All tokens of this rank's share of the heads: [N, H / P, C]."""
        return self._exchanged(x_nHC.unflatten(1, (self.ranks, -1)).transpose(0, 1).flatten(0, 1))

    def _to_tokens(self, x_NhC: Tensor) -> Tensor:
        """All heads of this rank's tokens: [n, H, C]."""
        back = self._exchanged(x_NhC).unflatten(0, (self.ranks, -1))
        return back.transpose(0, 1).flatten(1, 2)

    def _exchanged(self, x: Tensor) -> Tensor:
        each = [len(x) // self.ranks] * self.ranks
        return all_to_all_single_autograd(x.contiguous(), each, each, self.group)


class _Gathered(torch.autograd.Function):
    """All ranks' tokens; each rank's gradient is the sum of what all ranks make of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, ranks: int) -> Tensor:
        ctx.group, ctx.count = group, len(x)
        out = x.new_empty((ranks * len(x), *x.shape[1:]))
        dist.all_gather_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        own = grads[0].new_empty((ctx.count, *grads[0].shape[1:]))
        dist.reduce_scatter_single(own, grads[0].contiguous(), group=ctx.group)
        return own, None, None


class _Joined(torch.autograd.Function):
    """All ranks' values in order. What follows is the same on all ranks: a gradient is one rank's, and not a sum."""

    @staticmethod
    def forward(ctx: Any, values_R: Tensor, counts: list[int], context: Ulysses) -> Tensor:
        ctx.edges = sum(counts[: context.rank]), sum(counts[: context.rank + 1])
        most = max(counts)
        padded = torch.cat((values_R, values_R.new_zeros(most - len(values_R))))
        all_PR = values_R.new_empty(context.ranks * most)
        dist.all_gather_single(all_PR, padded, group=context.group)
        return torch.cat([part[:count] for part, count in zip(all_PR.split(most), counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0][slice(*ctx.edges)].contiguous(), None, None
