"""Distillation of a hinted policy into the unhinted one, on the tokens of one message each.

Owns the loss and one pass over a step's hints. Per token t of a message that has a hint, with p the policy's
distribution there in the hinted context, held fixed, and q its distribution in the context as it was:

    loss = weight * mean over t of KL(p_t || q_t)

p is the policy that is being trained, at this very step; so nothing is taught that it could not say itself once told
what was wrong. Which message, and which hint, is `trainer.feedback`'s. Shapes: T tokens of messages, V of vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from etude.models.attention import PackedAttention
from etude.models.decoder import Decoder
from etude.records import Ints
from etude.trainer.activations import by_rows
from etude.trainer.feedback import HintExample
from etude.trainer.losses import Figure


def token_divergences(teacher_TV: Tensor, student_TV: Tensor) -> Tensor:
    """KL(p || q) of each token, from log-probabilities; gradients flow into the student alone."""
    fixed_TV = teacher_TV.detach()
    return (fixed_TV.exp() * (fixed_TV - student_TV)).sum(-1)


def distil_hints(policy: Decoder, hints: Sequence[HintExample], temperature: float, weight: float) -> dict[str, Figure]:
    """Add the hints' gradients to the policy's; returns what was taught, nothing for no hints."""
    if not hints:
        return {}
    lengths = [hint.length for hint in hints]
    with torch.no_grad():
        taught_TD = _message_states(policy, [hint.hinted_ids for hint in hints], lengths)
    learning_TD = _message_states(policy, [hint.token_ids for hint in hints], lengths)

    def divergence(taught_RD: Tensor, learning_RD: Tensor) -> tuple[Tensor]:
        with torch.no_grad():
            teacher_RV = torch.log_softmax(policy.logits(taught_RD) / temperature, dim=-1)
        student_RV = torch.log_softmax(policy.logits(learning_RD) / temperature, dim=-1)
        return (token_divergences(teacher_RV, student_RV),)

    (kl_T,) = by_rows(policy, divergence, taught_TD, learning_TD, whole_on_host=True)
    loss = weight * kl_T.mean()
    loss.backward()
    return {"hints": float(len(hints)), "hint_tokens": float(sum(lengths)), "hint_kl": kl_T.detach().mean()}


def _message_states(policy: Decoder, contexts: Sequence[Ints], lengths: Sequence[int]) -> Tensor:
    """Hidden states [T, D] that the last tokens of each context are predicted from."""
    ends = np.cumsum([len(ids) for ids in contexts])
    predicting = np.concatenate(
        [np.arange(end - length - 1, end - 1) for end, length in zip(ends, lengths, strict=True)]
    )
    place = policy.placement
    positions = torch.cat([torch.arange(len(ids)) for ids in contexts]).to(place.device)
    ids = torch.from_numpy(np.concatenate(contexts)).to(place.device).long()
    output = policy(ids, positions, PackedAttention([len(each) for each in contexts], place))
    return output.hidden_ND.index_select(0, torch.from_numpy(predicting).to(place.device))
