"""Distillation on a policy's own tokens: of a hinted policy into the unhinted one, and of a teacher into a student.

Owns the divergence, the pass that computes it, and the loss of a step's hints. Per token t, with p the distribution
that is taught there, held fixed, and q the one that learns, in a context of its own:

    hints           p is the very policy at this very step, in the context with a hint; so nothing is taught that it
                    could not say itself once told what was wrong.         loss = weight * sum over t of KL(p_t || q_t)
    a teacher       p is another model in the same context, that the student has sampled itself (`trainer.on_policy`).
                                                                          loss = mean over t of KL(q_t || p_t)

The first takes over all that p would say; the second, the reverse divergence, keeps the student to what the teacher
finds likely. Which message, and which hint, is `trainer.feedback`'s. Shapes: T tokens, V of vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from etude.kernels.devices import put
from etude.models.attention import PackedAttention
from etude.models.decoder import Decoder
from etude.records import Ints
from etude.trainer.activations import by_rows
from etude.trainer.feedback import HintExample
from etude.trainer.losses import Figure

Places = Sequence[np.ndarray]
"""For each context, which of its tokens are meant; never the first, which nothing predicts."""


def token_divergences(teacher_TV: Tensor, student_TV: Tensor, reverse: bool = False) -> Tensor:
    """KL(p || q) of each token, or in `reverse` KL(q || p), from log-probabilities; gradients flow into the student
    alone.
    """
    fixed_TV = teacher_TV.detach()
    if reverse:
        return (student_TV.exp() * (student_TV - fixed_TV)).sum(-1)
    return (fixed_TV.exp() * (fixed_TV - student_TV)).sum(-1)


def divergences(
    student: Decoder,
    teacher: Decoder,
    learning: tuple[Sequence[Ints], Places],
    taught: tuple[Sequence[Ints], Places],
    temperature: float,
    reverse: bool,
) -> Tensor:
    """[T], of the tokens that are meant, in order: as many where the teacher reads as where the student does."""
    with torch.no_grad():
        taught_TD = _states(teacher, *taught)
    learning_TD = _states(student, *learning)

    def divergence(taught_RD: Tensor, learning_RD: Tensor) -> tuple[Tensor]:
        with torch.no_grad():
            teacher_RV = torch.log_softmax(teacher.logits(taught_RD) / temperature, dim=-1)
        student_RV = torch.log_softmax(student.logits(learning_RD) / temperature, dim=-1)
        return (token_divergences(teacher_RV, student_RV, reverse),)

    return by_rows(student, divergence, taught_TD, learning_TD, whole_on_host=True)[0]


def distil_hints(
    policy: Decoder, hints: Sequence[HintExample], temperature: float, weight: float, share: float = 1.0
) -> dict[str, Figure]:
    """Add the hints' gradients to the policy's; returns what was taught, nothing for no hints. `weight` is a token's,
    in the policy's own measure: a mean over the few tokens of a step's hints made each weigh as tens of sampled ones,
    and a run collapsed (docs/science.md). `share` is what is to be added here, where several ranks add the same.
    """
    if not hints:
        return {}
    lengths = [hint.length for hint in hints]
    learning, taught = [hint.token_ids for hint in hints], [hint.hinted_ids for hint in hints]
    kl_T = divergences(
        policy, policy, (learning, _last(learning, lengths)), (taught, _last(taught, lengths)), temperature, False
    )
    loss = share * weight * kl_T.sum()
    loss.backward()
    return {"hints": float(len(hints)), "hint_tokens": float(sum(lengths)), "hint_kl": kl_T.detach().mean()}


def _last(contexts: Sequence[Ints], lengths: Sequence[int]) -> Places:
    return [np.arange(len(ids) - length, len(ids)) for ids, length in zip(contexts, lengths, strict=True)]


def _states(policy: Decoder, contexts: Sequence[Ints], places: Places) -> Tensor:
    """Hidden states [T, D] that the tokens are predicted from."""
    starts = np.cumsum([0, *(len(ids) for ids in contexts)])[:-1]
    predicting = np.concatenate([start + at - 1 for start, at in zip(starts, places, strict=True)])
    place = policy.placement
    positions = put(torch.cat([torch.arange(len(ids)) for ids in contexts]), place.device)
    ids = put(np.concatenate(contexts), place.device).long()
    output = policy(ids, positions, PackedAttention([len(each) for each in contexts], place))
    return output.hidden_ND.index_select(0, put(predicting, place.device))
