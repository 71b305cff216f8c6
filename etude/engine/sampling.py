"""From logits to tokens.

Owns temperature sampling that depends on nothing but the row's logits and the request's seed: the same request gives
the same tokens alone and in any batch. Log-probabilities are of the distribution sampled from, in fp32.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for one token of one request (counter-based: no state to carry or to share)."""
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def sample_rows(logits_RV: Tensor, temperatures: list[float], uniforms: list[float]) -> tuple[list[int], list[float]]:
    """One token a row, by inverse transform; temperature 0 takes the most likely one.

    Returns tokens and their log-probabilities: of softmax(logits / temperature), or of softmax(logits) for a greedy
    row.
    """
    scale_R1 = torch.tensor([1.0 if t == 0 else 1.0 / t for t in temperatures])[:, None]
    logprobs_RV = torch.log_softmax(logits_RV * scale_R1, dim=-1)
    cumulative_RV = logprobs_RV.exp().cumsum(dim=-1)
    # scaled by the row's own total, so that rounding can never push the draw past the last token
    targets_R1 = torch.tensor(uniforms)[:, None] * cumulative_RV[:, -1:]
    drawn_R = torch.searchsorted(cumulative_RV, targets_R1, right=True).squeeze(1).clamp(max=logits_RV.shape[1] - 1)
    greedy_R = logprobs_RV.argmax(dim=-1)
    tokens_R = torch.where(torch.tensor([t == 0 for t in temperatures]), greedy_R, drawn_R)
    return tokens_R.tolist(), logprobs_RV.gather(1, tokens_R[:, None]).squeeze(1).tolist()
