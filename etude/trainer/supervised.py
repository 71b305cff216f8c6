"""Next-token training on documents: one step, shared by mid-training and by the fine-tuning control.

Owns the losses and nothing of schedules or data. Documents are packed end to end; none sees another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from etude.models.attention import PackedAttention
from etude.models.decoder import Decoder, Routing
from etude.trainer.documents import Document


class SupervisedLosses(NamedTuple):
    """Of one step."""

    total: Tensor
    """What gradients are of."""
    next_token: float
    """Of the next token: the mean over those that a model should say, 0 where there are none."""
    further: float
    """Of the token after the next: the weighted mean, 0 where it is not trained."""


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
    lengths = [len(document.token_ids) for document in documents]
    ids = torch.from_numpy(np.concatenate([document.token_ids for document in documents])).long()
    sampled = torch.from_numpy(np.concatenate([document.sampled for document in documents]))
    positions = torch.cat([torch.arange(length) for length in lengths])
    output = decoder(ids, positions, PackedAttention(lengths))
    weights = torch.where(sampled, 1.0, observation_weight) * (positions > 0)
    predicts = (weights[1:] > 0).nonzero().squeeze(1)
    losses = F.cross_entropy(decoder.logits(output.hidden_ND[predicts]), ids[predicts + 1], reduction="none")
    own, targets = weights[predicts + 1], sampled[predicts + 1]
    total = (losses * own).sum() / own.sum() + balance * load_balance(output.routing)
    next_token = float(losses.detach()[targets].mean()) if targets.any() else 0.0
    if not further_weight:
        return SupervisedLosses(total, next_token, 0.0)
    hidden_ND, routed = decoder.look_further(ids.roll(-1), output.hidden_ND, positions, PackedAttention(lengths))
    predicts = ((weights[2:] > 0) & (positions[2:] > 1)).nonzero().squeeze(1)  # all three are of one document
    losses = F.cross_entropy(decoder.further_logits(hidden_ND[predicts]), ids[predicts + 2], reduction="none")
    own = weights[predicts + 2]
    further = (losses * own).sum() / own.sum().clamp(min=1e-6)
    if routed is not None:
        total = total + balance * load_balance(Routing(routed.experts_NK[:, None], routed.scores_NE[:, None]))
    return SupervisedLosses(total + further_weight * further, next_token, float(further.detach()))


def load_balance(routing: Routing) -> Tensor:
    """Switch Transformer's auxiliary loss (arXiv 2101.03961), mean over layers: 1 when every expert gets its share, or
    0 for a model that has no routers.
    """
    _, layers, experts = routing.scores_NLE.shape
    if not layers:
        return routing.scores_NLE.sum()
    probability_LE = (routing.scores_NLE / routing.scores_NLE.sum(-1, keepdim=True)).mean(0)
    share_LE = F.one_hot(routing.experts_NLK, experts).float().mean(dim=(0, 2))
    return experts * (probability_LE * share_LE).sum(-1).mean()
