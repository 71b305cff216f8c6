"""From logits to tokens.

Owns the distribution that is sampled from (temperature, then min-p and top-k, then top-p on what they leave) and the
draw, which depends on nothing but the row's logits and the request's seed: the same request gives the same tokens alone
and in any batch. Log-probabilities are of the distribution sampled from, in fp32; those of what was cut are -inf.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from etude.harness.sampler import PromptTokenScore
from etude.kernels.draws import draw_rows

GREEDY_BELOW = 1e-5
"""A temperature below this takes the most likely token, as 0 does: dividing by it would only overflow."""


class Truncation(NamedTuple):
    """What is left out of a distribution; by default nothing."""

    top_k: int = 0
    """Keep this many of the most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the fewest most likely tokens that have this much probability together."""
    min_p: float = 0.0
    """Keep tokens at least this probable as a share of the most likely one's probability."""


NO_TRUNCATION = Truncation()


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for one token of one request (counter-based: no state to carry or to share)."""
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def distribution(logits_RV: Tensor, temperatures: Sequence[float], cuts: Sequence[Truncation] = ()) -> Tensor:
    """Log-probabilities [R, V] of what each row is sampled from: softmax(logits / temperature), cut and scaled again.

    A greedy row's are of softmax(logits), uncut. `cuts` has one entry a row, or none at all.
    """
    scales = [1.0 if t < GREEDY_BELOW else t for t in temperatures]
    if any(scale != 1.0 for scale in scales):
        logits_RV = logits_RV / _column(scales, logits_RV)  # divided, as the trainer does: the same bits
    logprobs_RV = torch.log_softmax(logits_RV, dim=-1)
    cut = [row for row, each in enumerate(cuts) if each != NO_TRUNCATION and temperatures[row] >= GREEDY_BELOW]
    if cut:
        logprobs_RV[cut] = _truncated(logprobs_RV[cut], [cuts[row] for row in cut])
    return logprobs_RV


def _truncated(logprobs_RV: Tensor, cuts: Sequence[Truncation]) -> Tensor:
    sorted_RV, order_RV = logprobs_RV.sort(dim=-1, descending=True, stable=True)
    rank_1V = torch.arange(logprobs_RV.shape[1], device=logprobs_RV.device)[None]
    most_R1 = _column([min(cut.top_k or logprobs_RV.shape[1], logprobs_RV.shape[1]) for cut in cuts], logprobs_RV)
    least_R1 = sorted_RV[:, :1] + _column([cut.min_p for cut in cuts], logprobs_RV).log()
    sorted_RV = _only(sorted_RV, (rank_1V < most_R1) & (sorted_RV >= least_R1))
    p_RV = sorted_RV.exp()
    before_RV = p_RV.cumsum(dim=-1) - p_RV
    top_p_R1 = _column([cut.top_p for cut in cuts], logprobs_RV)
    sorted_RV = _only(sorted_RV, (before_RV < top_p_R1) | (rank_1V == 0) | (top_p_R1 == 1.0))
    return torch.empty_like(sorted_RV).scatter_(1, order_RV, sorted_RV)


def _only(logprobs_RV: Tensor, kept_RV: Tensor) -> Tensor:
    return torch.log_softmax(logprobs_RV.masked_fill(~kept_RV, -torch.inf), dim=-1)


def _column(numbers: Sequence[float], beside: Tensor) -> Tensor:
    return torch.tensor(numbers, device=beside.device)[:, None]


def draw(
    logprobs_RV: Tensor, temperatures: Sequence[float], uniforms: Sequence[float], on_host: bool = True
) -> list[int]:
    """One token a row, by inverse transform; a greedy row's most likely one. On a device they alone come over."""
    if not on_host:
        greedy_R = torch.tensor([temperature < GREEDY_BELOW for temperature in temperatures], device=logprobs_RV.device)
        cumulative_RV = logprobs_RV.exp().double().cumsum(-1)
        total_R1 = cumulative_RV[:, -1:]
        target_R1 = (_column(uniforms, logprobs_RV).double() * total_R1).minimum(total_R1.nextafter(total_R1 * 0))
        drawn_R = torch.searchsorted(cumulative_RV, target_R1, right=True).squeeze(1)
        return torch.where(greedy_R, logprobs_RV.argmax(-1), drawn_R).tolist()
    greedy = np.array([temperature < GREEDY_BELOW for temperature in temperatures])
    probabilities_RV = logprobs_RV if greedy.all() else logprobs_RV.exp()
    tokens = np.empty(len(greedy), np.int64)
    draw_rows(logprobs_RV.numpy(), probabilities_RV.numpy(), greedy, np.array(uniforms, np.float32), tokens)
    return tokens.tolist()


def chosen_of(logprobs_RV: Tensor, tokens: Sequence[int]) -> list[float]:
    """The log-probability of each row's token."""
    return logprobs_RV.gather(1, _column(tokens, logprobs_RV)).squeeze(1).tolist()


def top_logprobs(logprobs_V: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` most likely tokens and their log-probabilities, best first; fewer where fewer can be sampled."""
    top = logprobs_V.topk(min(count, logprobs_V.shape[0]))
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return tuple((token, logprob) for token, logprob in pairs if logprob != -torch.inf)


def support(logprobs_V: Tensor) -> tuple[int, ...]:
    """The tokens that can be drawn, in order; () if all can."""
    kept = torch.isfinite(logprobs_V).nonzero().squeeze(1)
    return () if len(kept) == len(logprobs_V) else tuple(kept.tolist())


def forbid(logits_RV: Tensor, allowed: Mapping[int, Tensor]) -> Tensor:
    """Logits of rows in which nothing but `allowed` (row → bool [V]) can be drawn."""
    rows = list(allowed)
    forbidden_AV = ~torch.stack(list(allowed.values())).to(logits_RV.device)
    logits_RV[rows] = logits_RV[rows].masked_fill(forbidden_AV, -torch.inf)
    return logits_RV


def score(logits_RV: Tensor, tokens: Sequence[int], count: int) -> list[PromptTokenScore]:
    """What each row says of its token, and its `count` most likely ones."""
    logprobs_RV = torch.log_softmax(logits_RV, dim=-1)
    own_R1 = logprobs_RV.gather(1, _column(tokens, logprobs_RV))
    ranks = ((logprobs_RV > own_R1).sum(dim=-1) + 1).tolist()
    tops = [top_logprobs(row, count) if count else () for row in logprobs_RV]
    return [PromptTokenScore(*each) for each in zip(tokens, own_R1.squeeze(1).tolist(), ranks, tops, strict=True)]
