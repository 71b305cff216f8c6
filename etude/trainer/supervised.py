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
    refused: Tensor
    """The mean probability of calls that are not to be made, 0 where there are none."""


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
    nothing. A call that should not be made adds its unlikelihood, −log(1 − p) of the whole call (arXiv 1908.04319), and
    to the mean as many tokens as it has: so what it costs is bounded by how likely it is, and one that the model would
    not make again costs nothing.
    """
    packed = _packed(decoder, documents)
    ids, positions, sampled, refused, positions_N, attention = packed[:6]
    learned = np.where(sampled, np.float32(1), np.float32(observation_weight))
    weights = np.where(refused > 0, np.float32(0), learned) * (positions > 0)
    output = decoder(ids, positions_N, attention, recompute=_recomputes(decoder, len(ids)))
    predicts = np.flatnonzero((weights[1:] > 0) | (refused[1:] > 0))
    losses = _cross_entropies(decoder, decoder.logits, output.hidden_ND, ids, predicts, 1)
    own, targets = put(weights[predicts + 1], ids.device), put(np.flatnonzero(sampled[predicts + 1]), ids.device)
    cost, likely = _unlikelihood(losses, refused[predicts + 1])
    count = own.sum() + int(np.count_nonzero(refused[predicts + 1]))
    total = ((losses * own).sum() + cost) / count + balance * load_balance(output.routing)
    said = losses.detach().index_select(0, targets)
    next_token = said.mean() if len(said) else said.sum()
    names = np.repeat([document.source for document in documents], packed.lengths)[predicts + 1][sampled[predicts + 1]]
    places = {str(name): np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
    by_source = {name: said.index_select(0, put(at, ids.device)).mean() for name, at in places.items()}
    if not further_weight:
        return SupervisedLosses(total, next_token, next_token.new_zeros(()), by_source, likely)
    hidden_ND, routed = decoder.look_further(ids.roll(-1), output.hidden_ND, positions_N, attention)
    predicts = np.flatnonzero((weights[2:] > 0) & (positions[2:] > 1))  # all three are of one document
    losses = _cross_entropies(decoder, decoder.further_logits, hidden_ND, ids, predicts, 2)
    own = put(weights[predicts + 2], ids.device)
    further = (losses * own).sum() / own.sum().clamp(min=1e-6)
    if routed is not None:
        total = total + balance * load_balance(Routing(routed.experts_NK[:, None], routed.scores_NE[:, None]))
    return SupervisedLosses(total + further_weight * further, next_token, further.detach(), by_source, likely)


def _unlikelihood(losses: Tensor, calls: np.ndarray) -> tuple[Tensor, Tensor]:
    """What calls cost that should not be made, summed up, and their mean probability. `calls` says which call each
    token is of whose loss is given, 0 for none."""
    if not calls.any():
        return losses.new_zeros(()), losses.new_zeros(())
    names, of_call = np.unique(calls[calls > 0], return_inverse=True)
    at, of_call = put(np.flatnonzero(calls), losses.device), put(of_call, losses.device)
    nll_C = losses.new_zeros(len(names)).index_add(0, of_call, losses.index_select(0, at))
    others_C = -torch.expm1(-nll_C)  # 1 - p
    return -others_C.clamp(min=1e-6).log().sum(), (-nll_C.detach()).exp().mean()


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
    refused: list[tuple[int, Tensor]] = []
    of_source: dict[str, list[tuple[int, Tensor]]] = {}
    for piece, weight in zip(pieces, weights, strict=True):
        if not weight:
            continue
        losses = supervised_loss(decoder, piece, observation_weight, balance)
        totals.append(losses.total * (weight / weight_of_all))
        totals[-1].backward()
        said.append((_count(piece), losses.next_token))
        refused.append((sum(map(refused_calls, piece)), losses.refused))
        for source, loss in losses.by_source.items():
            count = _count([each for each in piece if each.source == source])
            of_source.setdefault(source, []).append((count, loss))
    by_source = {name: _mean(each) for name, each in of_source.items()}
    total = torch.stack(totals).detach().sum()
    return SupervisedLosses(total, _mean(said), losses.further, by_source, _mean(refused))


def _weight(document: Document, observation_weight: float) -> float:
    """Of its tokens in the mean."""
    counted = int(document.sampled[1:].sum())
    if document.refused is not None:
        counted += int(np.count_nonzero(document.refused[1:]))
    return counted + observation_weight * (len(document.sampled) - 1 - counted)


def refused_calls(document: Document) -> int:
    """How many calls a model should learn from it not to make."""
    return 0 if document.refused is None else len(np.unique(document.refused[document.refused > 0]))


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
    refused: np.ndarray
    """Which call that should not be made, 0 for none; those of each document have numbers of their own."""
    positions_N: Tensor
    attention: PackedAttention
    lengths: list[int]


def _packed(decoder: Decoder, documents: Sequence[Document]) -> _Packed:
    lengths = [len(document.token_ids) for document in documents]
    ids = put(np.concatenate([document.token_ids for document in documents]), decoder.placement.device).long()
    positions = np.concatenate([np.arange(length) for length in lengths])
    sampled = np.concatenate([document.sampled for document in documents])
    refused, before = [], 0
    for document in documents:
        marks = np.zeros(len(document.token_ids), np.int32) if document.refused is None else document.refused
        refused.append(np.where(marks > 0, marks + before, 0))
        before += int(marks.max(initial=0))
    attention = PackedAttention(lengths, decoder.placement)
    positions_N = put(positions, ids.device)
    return _Packed(ids, positions, sampled, np.concatenate(refused), positions_N, attention, lengths)


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
