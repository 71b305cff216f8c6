"""The policy loss.

Owns the formula and its switches, nothing of models or optimizers. Per sampled token t, with w = exp(logp - behaviour
logp):

    loss = - sum over kept t of stop_grad(min(w_t, c)) * A_t * logp_t / normaliser

- *Truncated importance sampling* (c = 2): corrects for the sampler's other weights and numerics, against its own
  log-probabilities.
- *Divergence mask* (DPPO, arXiv 2602.04879): a token is dropped when the policy has already moved by more than `trust`
  in
  probability the way its advantage pushes. A ratio clip would cut rare tokens first; this does not.
- *Constant normaliser* (Dr. GRPO, arXiv 2503.20783): a fixed token budget, so that length is neither favoured nor
  punished.

Golden numbers for every switch in tests/trainer/test_losses.py. Shapes: S sampled tokens.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from etude.trainer.config import LossConfig


class LossTerms(NamedTuple):
    """The sum to differentiate, already normalised, and what to log (sums over tokens, so that pieces add up)."""

    loss: Tensor
    sums: dict[str, float]
    max_abs_dlogp: float


def policy_loss(
    logps_S: Tensor,
    entropies_S: Tensor,
    behaviour_S: Tensor,
    advantages_S: Tensor,
    config: LossConfig,
    batch_tokens: int,
) -> LossTerms:
    """`batch_tokens` is the whole batch's count of sampled tokens, of which this may be a piece."""
    delta_S = (logps_S - behaviour_S).detach()
    weights_S = delta_S.exp()
    moved_S = logps_S.detach().exp() - behaviour_S.exp()
    dropped_S = (moved_S * advantages_S.sign()) > config.trust
    kept_S = ~dropped_S
    terms_S = weights_S.clamp(max=config.importance_cap) * advantages_S * logps_S * kept_S
    normaliser = config.token_budget if config.normaliser == "constant" else batch_tokens
    loss = -terms_S.sum() / normaliser
    if config.damping:
        loss = loss + config.damping * 0.5 * (logps_S - behaviour_S).square().sum() / normaliser
    if config.entropy_bonus:
        loss = loss - config.entropy_bonus * entropies_S.sum() / normaliser
    sums = {
        "tokens": float(len(logps_S)),
        "masked_up": float((dropped_S & (advantages_S > 0)).sum()),
        "masked_down": float((dropped_S & (advantages_S < 0)).sum()),
        "capped": float((weights_S > config.importance_cap).sum()),
        "weight": float(weights_S.sum()),
        "weight_squared": float(weights_S.square().sum()),
        "k1": float(-delta_S.sum()),
        "k3": float((weights_S - 1 - delta_S).sum()),
        "abs_dlogp": float(delta_S.abs().sum()),
        "over_ln2": float((delta_S.abs() > math.log(2)).sum()),
        "entropy": float(entropies_S.detach().sum()),
    }
    return LossTerms(loss, sums, float(delta_S.abs().max()) if len(delta_S) else 0.0)
