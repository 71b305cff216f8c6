"""Next-token training on documents: one step, shared by mid-training and by the fine-tuning control.

Owns the losses and nothing of schedules or data. Documents are packed end to end; none sees another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from etude.kernels.devices import put
from etude.models.attention import PackedAttention
from etude.models.decoder import Decoder, Routing
from etude.trainer import activations
from etude.trainer.documents import Document, taken_together


class SupervisedLosses(NamedTuple):
    """Of one step."""

    total: Tensor
    """What gradients are of."""
    next_token: Tensor
    """Of the next token: the mean over those that a model should say, 0 where there are none."""
    further: Tensor
    """Of the token after the next: the weighted mean, 0 where it is not trained."""
    by_source: dict[str, Tensor]
    """`next_token` of every source that has tokens to say."""


def supervised_loss(
    decoder: Decoder,
    documents: Sequence[Document],
    observation_weight: float,
    balance: float,
    further_weight: float = 0.0,
) -> SupervisedLosses:
    """Weighted mean cross-entropy of the next token, plus load balancing; with a `further_weight`, plus that times the
    same of the token after the next.

    Tokens a model should say weigh 1, those it only reads `observation_weight`; a document's first token weighs
    nothing.
    """
    packed = _packed(decoder, documents)
    ids, positions, sampled, positions_N, attention = packed[:5]
    weights = np.where(sampled, np.float32(1), np.float32(observation_weight)) * (positions > 0)
    output = decoder(ids, positions_N, attention, recompute=_recomputes(decoder, len(ids)))
    predicts = np.flatnonzero(weights[1:] > 0)
    losses = _cross_entropies(decoder, decoder.logits, output.hidden_ND, ids, predicts, 1)
    own, targets = put(weights[predicts + 1], ids.device), put(np.flatnonzero(sampled[predicts + 1]), ids.device)
    total = (losses * own).sum() / own.sum() + balance * load_balance(output.routing)
    said = losses.detach().index_select(0, targets)
    next_token = said.mean() if len(said) else said.sum()
    names = np.repeat([document.source for document in documents], packed.lengths)[predicts + 1][sampled[predicts + 1]]
    places = {str(name): np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
    by_source = {name: said.index_select(0, put(at, ids.device)).mean() for name, at in places.items()}
    if not further_weight:
        return SupervisedLosses(total, next_token, next_token.new_zeros(()), by_source)
    hidden_ND, routed = decoder.look_further(ids.roll(-1), output.hidden_ND, positions_N, attention)
    predicts = np.flatnonzero((weights[2:] > 0) & (positions[2:] > 1))  # all three are of one document
    losses = _cross_entropies(decoder, decoder.further_logits, hidden_ND, ids, predicts, 2)
    own = put(weights[predicts + 2], ids.device)
    further = (losses * own).sum() / own.sum().clamp(min=1e-6)
    if routed is not None:
        total = total + balance * load_balance(Routing(routed.experts_NK[:, None], routed.scores_NE[:, None]))
    return SupervisedLosses(total + further_weight * further, next_token, further.detach(), by_source)


def backward(
    decoder: Decoder,
    documents: Sequence[Document],
    observation_weight: float,
    balance: float,
    further_weight: float = 0.0,
) -> SupervisedLosses:
    """`supervised_loss`, and its gradients, added to the parameters'. Where the blocks would keep more than they may,
    documents go through one after the other, as many as fit: that is faster than to compute each block again. A model
    with routers is balanced over all its tokens, so it takes them at once.
    """
    pieces = [documents]
    most = sum(len(document.token_ids) for document in documents)
    if not (decoder.config.moe_layers or further_weight):
        while _recomputes(decoder, most):
            most //= 2
        pieces = taken_together(documents, most)
    if len(pieces) == 1:
        losses = supervised_loss(decoder, documents, observation_weight, balance, further_weight)
        losses.total.backward()
        return losses
    weights = [sum(_weight(each, observation_weight) for each in piece) for piece in pieces]
    weight_of_all = sum(weights)
    totals: list[Tensor] = []
    said: list[tuple[int, Tensor]] = []
    of_source: dict[str, list[tuple[int, Tensor]]] = {}
    for piece, weight in zip(pieces, weights, strict=True):
        if not weight:
            continue
        losses = supervised_loss(decoder, piece, observation_weight, balance)
        totals.append(losses.total * (weight / weight_of_all))
        totals[-1].backward()
        said.append((_count(piece), losses.next_token))
        for source, loss in losses.by_source.items():
            count = _count([each for each in piece if each.source == source])
            of_source.setdefault(source, []).append((count, loss))
    by_source = {name: _mean(each) for name, each in of_source.items()}
    return SupervisedLosses(torch.stack(totals).detach().sum(), _mean(said), losses.further, by_source)


def _weight(document: Document, observation_weight: float) -> float:
    learned = int(document.sampled[1:].sum())
    return learned + observation_weight * (len(document.sampled) - 1 - learned)


def _count(documents: Sequence[Document]) -> int:
    return sum(int(document.sampled[1:].sum()) for document in documents)


def _mean(parts: Sequence[tuple[int, Tensor]]) -> Tensor:
    summed = torch.stack([count * each for count, each in parts]).sum()
    return summed / max(1, sum(count for count, _ in parts))


def _recomputes(decoder: Decoder, tokens: int) -> bool:
    width = (decoder.computes_in or torch.float32).itemsize
    return activations.recomputes_blocks(
        decoder.config, tokens, _frozen_blocks(decoder), width, activations.ALONE_BYTES
    )


def _frozen_blocks(decoder: Decoder) -> int:
    """How many of the first keep nothing for a backward, as neither they nor what goes into them is trained."""
    trained = [any(each.requires_grad for each in part.parameters()) for part in (decoder.embed, *decoder.blocks)]
    return max(0, [*trained, True].index(True) - 1)


def nll(decoder: Decoder, documents: Sequence[Document], most_tokens: int) -> tuple[float, int]:
    """The negative log-likelihood of all tokens that a model should say but first ones, in nats, summed; and how many
    they are. So many tokens are computed at once.
    """
    total, count = 0.0, 0
    for batch in taken_together(documents, most_tokens):
        losses = token_nlls(decoder, batch)
        total, count = total + float(losses.double().sum()), count + len(losses)
    return total, count


@torch.no_grad()
def token_nlls(decoder: Decoder, documents: Sequence[Document]) -> Tensor:
    """Of each of these tokens, document after document, all computed at once. [said tokens]"""
    packed = _packed(decoder, documents)
    predicts = np.flatnonzero((packed.positions[1:] > 0) & packed.sampled[1:])
    output = decoder(packed.ids, packed.positions_N, packed.attention)
    return _cross_entropies(decoder, decoder.logits, output.hidden_ND, packed.ids, predicts, 1)


class _Packed(NamedTuple):
    """Documents end to end, N tokens: what is known on the host, and what a forward reads where the decoder is."""

    ids: Tensor
    positions: np.ndarray
    sampled: np.ndarray
    positions_N: Tensor
    attention: PackedAttention
    lengths: list[int]


def _packed(decoder: Decoder, documents: Sequence[Document]) -> _Packed:
    lengths = [len(document.token_ids) for document in documents]
    ids = put(np.concatenate([document.token_ids for document in documents]), decoder.placement.device).long()
    positions = np.concatenate([np.arange(length) for length in lengths])
    sampled = np.concatenate([document.sampled for document in documents])
    attention = PackedAttention(lengths, decoder.placement)
    return _Packed(ids, positions, sampled, put(positions, ids.device), attention, lengths)


def _cross_entropies(
    decoder: Decoder,
    logits: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    ids: Tensor,
    predicts: np.ndarray,
    ahead: int,
) -> Tensor:
    """Of the tokens so far ahead of some places."""

    def of(hidden_RD: Tensor, ids_R: Tensor) -> tuple[Tensor]:
        return (F.cross_entropy(logits(hidden_RD), ids_R, reduction="none"),)

    rows = hidden_ND.index_select(0, put(predicts, ids.device)), ids.index_select(0, put(predicts + ahead, ids.device))
    return activations.by_rows(decoder, of, *rows, whole_on_host=True)[0]


def load_balance(routing: Routing) -> Tensor:
    """Switch Transformer's auxiliary loss (arXiv 2101.03961), mean over layers: 1 when every expert gets its share, or
    0 for a model that has no routers.
    """
    _, layers, experts = routing.scores_NLE.shape
    if not layers:
        return routing.scores_NLE.sum()
    probability_LE = (routing.scores_NLE / routing.scores_NLE.sum(-1, keepdim=True)).mean(0)
    every_E = torch.arange(experts, device=routing.experts_NLK.device)
    share_LE = (routing.experts_NLK[..., None] == every_E).float().mean(dim=(0, 2))
    return experts * (probability_LE * share_LE).sum(-1).mean()
