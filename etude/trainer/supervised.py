"""Next-token training on documents: one step, shared by mid-training and by the fine-tuning control.

Owns the loss and nothing of schedules or data. Documents are packed end to end; none sees another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from etude.models.attention import PackedAttention
from etude.models.decoder import Decoder, Routing
from etude.trainer.documents import Document


def supervised_loss(
    decoder: Decoder, documents: Sequence[Document], observation_weight: float, balance: float
) -> tuple[Tensor, float]:
    """Weighted mean cross-entropy of the next token, plus load balancing; and the mean over sampled tokens alone.

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
    weights, said = weights[predicts + 1], sampled[predicts + 1]
    loss = (losses * weights).sum() / weights.sum()
    return loss + balance * load_balance(output.routing), float(losses.detach()[said].mean()) if said.any() else 0.0


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
