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
from etude.trainer.feedback import HintExample


def distillation_loss(teacher_TV: Tensor, student_TV: Tensor, weight: float) -> Tensor:
    """From log-probabilities; gradients flow into the student alone."""
    fixed_TV = teacher_TV.detach()
    return weight * (fixed_TV.exp() * (fixed_TV - student_TV)).sum(-1).mean()


def distil_hints(policy: Decoder, hints: Sequence[HintExample], temperature: float, weight: float) -> dict[str, float]:
    """Add the hints' gradients to the policy's; returns what was taught, nothing for no hints."""
    if not hints:
        return {}
    lengths = [hint.length for hint in hints]
    with torch.no_grad():
        teacher_TV = _message_logprobs(policy, [hint.hinted_ids for hint in hints], lengths, temperature)
    loss = distillation_loss(
        teacher_TV, _message_logprobs(policy, [hint.token_ids for hint in hints], lengths, temperature), weight
    )
    loss.backward()
    return {
        "hints": float(len(hints)),
        "hint_tokens": float(sum(lengths)),
        "hint_kl": float(loss.detach()) / weight,
    }


def _message_logprobs(policy: Decoder, contexts: Sequence[Ints], lengths: Sequence[int], temperature: float) -> Tensor:
    """Log-probabilities [T, V] of the last tokens of each context, whatever they are: of all that could stand there."""
    ends = np.cumsum([len(ids) for ids in contexts])
    predicting = np.concatenate(
        [np.arange(end - length - 1, end - 1) for end, length in zip(ends, lengths, strict=True)]
    )
    positions = torch.cat([torch.arange(len(ids)) for ids in contexts])
    ids = torch.from_numpy(np.concatenate(contexts)).long()
    output = policy(ids, positions, PackedAttention([len(each) for each in contexts]))
    return torch.log_softmax(policy.logits(output.hidden_ND[torch.from_numpy(predicting)]) / temperature, dim=-1)
