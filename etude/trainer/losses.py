"""The policy loss.

Owns the formula and its switches, nothing of models or optimizers. Per sampled token t, with w = exp(logp - behaviour
logp):

    loss = - sum over kept t of stop_grad(clamp(w_t, f, c)) * A_t * logp_t * share_t

- *Truncated importance sampling* (c = 2, f = 0): corrects for the sampler's other weights and numerics, against its own
  log-probabilities. CISPO is the same formula: its weights are clipped too, and its gradients are not.
- *Masks* (`MASKS`) decide which t are kept. By default a token is dropped when the policy has already moved by more
  than `band` in probability the way its advantage pushes (DPPO, arXiv 2602.04879): a ratio clip would cut rare tokens
  first. `ratio` is PPO's clip, `band` IcePop's (arXiv 2510.18855). Default bands: `tv` 0.2, `kl` 0.05 nats, `ratio`
  [0.8, 1.28], `band` [0.5, 5].
- *The sequence gate* drops a segment as a whole, when its geometric-mean weight has left a band ([0.99, 1.01]).
- *Shares* (`shares_of`): by default one over a constant (Dr. GRPO, arXiv 2503.20783), so that length is neither
  favoured nor punished.
- *KL* to a frozen reference (k2 and k3 with the same truncated weight) and an entropy bonus, both off by default.

Another formula is found by name (`etude.losses`): it has the arguments of `policy_loss`, and ends with
`with_diagnostics`. Golden numbers for every switch in tests/trainer/test_losses.py. Shapes: S sampled tokens of a
piece, M segments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from etude.records import Batch, Floats
from etude.trainer.config import LossConfig, MaskName
from etude.trainer.marks import GATED, MASKED_DOWN, MASKED_UP

Figure = Tensor | float
"""A number of a step, perhaps not known to the host yet."""


class BehaviourData(NamedTuple):
    """What is known of a piece's sampled tokens apart from the policy that is trained."""

    behaviour_S: Tensor
    """Log-probabilities by whatever sampled them."""
    advantages_S: Tensor
    shares_S: Tensor
    """What one token weighs in the batch's loss."""
    segments_S: Tensor
    """Which segment each is of, counted from 0 within the piece."""
    reference_S: Tensor | None = None
    """Log-probabilities by the frozen reference, where there is one."""
    segments: int | None = None
    """How many segments there are; None: as many as the largest number says, which is looked up."""

    @property
    def segment_count(self) -> int:
        return int(self.segments_S.max()) + 1 if self.segments is None else self.segments


class LossTerms(NamedTuple):
    """The sum to differentiate, already normalised, and what to log (sums over tokens, so that pieces add up): scalars
    that stay where they were computed, so that no step waits for them."""

    loss: Tensor
    sums: dict[str, Figure]
    max_abs_dlogp: Tensor
    drift_M: Tensor
    """Mean logp - behaviour logp of each segment: what the gate looks at."""
    k3_S: Tensor
    """Of each token: whose mean estimates the policy's divergence from the sampler."""
    mask_S: Tensor | None = None
    """Why each token was trained on or not (`archive.records.MASKS`); None from a formula that trains on all."""


class PolicyRatios(NamedTuple):
    """The policy beside the sampler at each token, without gradients."""

    logps_S: Tensor
    behaviour_S: Tensor
    weights_S: Tensor
    signs_S: Tensor
    """Of the advantages."""


def policy_loss(logps_S: Tensor, entropies_S: Tensor, sampled: BehaviourData, config: LossConfig) -> LossTerms:
    """The loss of a piece of a batch; the losses of all pieces add up to the batch's."""
    delta_S = (logps_S - sampled.behaviour_S).detach()
    drift_M = segment_means(delta_S, sampled)
    weights_S = delta_S.exp() if config.weight == "token" else drift_M.exp()[sampled.segments_S]
    gated_M = _gated_segments(drift_M, config)
    shares_S = sampled.shares_S * ~gated_M[sampled.segments_S]
    advantages_S = sampled.advantages_S - _reward_penalty(logps_S, sampled, config)
    ratios = PolicyRatios(logps_S.detach(), sampled.behaviour_S, weights_S, advantages_S.sign())
    dropped_S = MASKS[config.mask](ratios, config)
    clamped_S = weights_S.clamp(config.importance_floor, config.importance_cap)
    loss = -(clamped_S * advantages_S * logps_S * ~dropped_S * shares_S).sum()
    loss = loss + _regularisers(logps_S, entropies_S, sampled, clamped_S, shares_S, config)
    sums = _acted(ratios, dropped_S, entropies_S, sampled, shares_S, config)
    sums["gated"] = gated_M.sum()
    if sampled.reference_S is not None:
        sums["reference_k1"] = (ratios.logps_S - sampled.reference_S).sum()
    terms = with_diagnostics(loss, logps_S, entropies_S, sampled, sums)
    return terms._replace(mask_S=_mask(dropped_S, ratios.signs_S, gated_M[sampled.segments_S]))


def with_diagnostics(
    loss: Tensor,
    logps_S: Tensor,
    entropies_S: Tensor,
    sampled: BehaviourData,
    sums: Mapping[str, Figure] = MappingProxyType({}),
) -> LossTerms:
    """What every formula hands back: its loss, how far the policy stands from the sampler, and what it has counted."""
    delta_S = (logps_S - sampled.behaviour_S).detach()
    weights_S, drift_M = delta_S.exp(), segment_means(delta_S, sampled)
    k3_S = weights_S - 1 - delta_S
    metrics: dict[str, Figure] = {
        "tokens": float(len(delta_S)),
        "segments": float(len(drift_M)),
        "entropy": entropies_S.detach().sum(),
        "weight": weights_S.sum(),
        "weight_squared": weights_S.square().sum(),
        "k1": -delta_S.sum(),
        "k3": k3_S.sum(),
        "abs_dlogp": delta_S.abs().sum(),
        "over_ln2": (delta_S.abs() > math.log(2)).sum(),
    }
    return LossTerms(loss, metrics | dict(sums), largest(delta_S.abs()), drift_M, k3_S)


def largest(values: Tensor) -> Tensor:
    """0 of none."""
    return values.max() if len(values) else values.new_zeros(())


def segment_means(values_S: Tensor, sampled: BehaviourData) -> Tensor:
    """The mean of each segment's values [M]."""
    sums_M = values_S.new_zeros(sampled.segment_count)
    counts_M = sums_M.index_add(0, sampled.segments_S, torch.ones_like(values_S))
    return sums_M.index_add(0, sampled.segments_S, values_S) / counts_M


def trimmed_mean(values_S: Tensor, share: float) -> Tensor:
    """The mean of all values but the largest `share` of them, at least one; of a single value, that."""
    kept = max(1, len(values_S) - math.ceil(len(values_S) * share))
    return values_S.double().sort().values[:kept].mean()


def shares_of(batch: Batch, config: LossConfig) -> Floats:
    """What a token of each of the batch's M segments weighs in its loss."""
    tokens_M = np.bincount(batch.segment_ids, weights=batch.loss_mask, minlength=len(batch.trajectory_of))
    groups_M = batch.group_of[batch.trajectory_of]
    match config.normaliser:
        case "constant":
            shares_M = np.full(len(tokens_M), 1 / config.token_budget)
        case "trajectory":
            shares_M = _equal_shares(tokens_M, batch.trajectory_of)
        case "prompt":
            shares_M = _equal_shares(tokens_M, groups_M)
    return shares_M.astype(np.float32)


def reshared_tokens(batch: Batch, shares_M: Floats, config: LossConfig) -> int:
    """How many tokens weigh other than they would by the constant normaliser."""
    constant = np.float32(1 / config.token_budget)
    return int((shares_M[batch.segment_ids[batch.loss_mask]] != constant).sum())


def _equal_shares(tokens_M: np.ndarray, owners_M: np.ndarray) -> np.ndarray:
    """Shares by which every owner weighs the same, and its tokens alike."""
    owned = np.bincount(owners_M, weights=tokens_M)
    return 1 / (owned[owners_M] * (owned > 0).sum())


def _gated_segments(drift_M: Tensor, config: LossConfig) -> Tensor:
    """The segments that the gate rejects."""
    if config.gate is None:
        return torch.zeros_like(drift_M, dtype=torch.bool)
    return (drift_M < math.log(config.gate.low)) | (drift_M > math.log(config.gate.high))


def _reward_penalty(logps_S: Tensor, sampled: BehaviourData, config: LossConfig) -> Tensor:
    """k1 is a price on what the token earned, so that weights and masks hold for it as well."""
    if config.kl is None or config.kl.estimator != "k1":
        return torch.zeros_like(sampled.advantages_S)
    assert sampled.reference_S is not None, "the trainer keeps a reference where the config has a KL"
    return config.kl.weight * (logps_S.detach() - sampled.reference_S)


def _acted(
    ratios: PolicyRatios,
    dropped_S: Tensor,
    entropies_S: Tensor,
    sampled: BehaviourData,
    shares_S: Tensor,
    config: LossConfig,
) -> dict[str, Figure]:
    """At how many tokens each switch has changed what is trained: none where it is off, and none of those that weigh
    nothing or that another switch has taken out.
    """
    trained_S, delta_S = shares_S > 0, ratios.logps_S - ratios.behaviour_S
    none_S = torch.zeros_like(trained_S)
    taught_S = trained_S & (ratios.signs_S != 0)
    pulled_S = none_S if sampled.reference_S is None else trained_S & (ratios.logps_S != sampled.reference_S)
    if config.kl is not None and config.kl.estimator == "k1":
        pulled_S = pulled_S & ~dropped_S
    weighted_S = (taught_S & ~dropped_S) | pulled_S
    acted = {
        "masked_up": dropped_S & taught_S & (ratios.signs_S > 0),
        "masked_down": dropped_S & taught_S & (ratios.signs_S < 0),
        "capped": weighted_S & (ratios.weights_S > config.importance_cap),
        "floored": weighted_S & (ratios.weights_S < config.importance_floor),
        "reweighted": weighted_S & (ratios.weights_S != delta_S.exp()),
        "broadened": trained_S & (entropies_S > 0) if config.entropy_bonus else none_S,
        "from_reference": pulled_S,
    }
    return {name: tokens_S.sum() for name, tokens_S in acted.items()}


def _mask(dropped_S: Tensor, signs_S: Tensor, gated_S: Tensor) -> Tensor:
    """Why each token is trained on or not; one without an advantage counts as trained."""
    mask_S = MASKED_UP * (dropped_S & (signs_S > 0)).to(torch.uint8)
    mask_S += MASKED_DOWN * (dropped_S & (signs_S < 0)).to(torch.uint8)
    return torch.where(gated_S, torch.full_like(mask_S, GATED), mask_S)


def _regularisers(
    logps_S: Tensor,
    entropies_S: Tensor,
    sampled: BehaviourData,
    clamped_S: Tensor,
    shares_S: Tensor,
    config: LossConfig,
) -> Tensor:
    """The terms beside the policy gradient. k2 and k3 are expectations under the policy and weigh the sampler's tokens
    like the policy gradient, so that k2 pulls as k1 does.
    """
    total = logps_S.new_zeros(())
    if config.entropy_bonus:
        total = total - config.entropy_bonus * (entropies_S * shares_S).sum()
    if config.kl is not None and config.kl.estimator != "k1":
        assert sampled.reference_S is not None, "the trainer keeps a reference where the config has a KL"
        log_ratios_S = logps_S - sampled.reference_S
        k3_S = torch.expm1(-log_ratios_S) + log_ratios_S
        terms_S = 0.5 * log_ratios_S.square() if config.kl.estimator == "k2" else k3_S
        total = total + config.kl.weight * (clamped_S * terms_S * shares_S).sum()
    return total


def _tv(ratios: PolicyRatios, config: LossConfig) -> Tensor:
    """Binary total variation: the probability has moved by more than `band` the way the advantage pushes."""
    return (ratios.logps_S.exp() - ratios.behaviour_S.exp()) * ratios.signs_S > config.limit


def _kl(ratios: PolicyRatios, config: LossConfig) -> Tensor:
    """Binary KL divergence of the policy from the sampler, of this token against all others, beyond `band`, where the
    probability has moved the way the advantage pushes.
    """
    probs_S, log_ratios_S = ratios.behaviour_S.exp(), ratios.logps_S - ratios.behaviour_S
    others_S, others_then_S = -torch.expm1(ratios.logps_S), -torch.expm1(ratios.behaviour_S)
    tiny = torch.finfo(torch.float32).tiny
    away_S = others_then_S * (others_then_S.clamp_min(tiny).log() - others_S.clamp_min(tiny).log())
    return (away_S - probs_S * log_ratios_S > config.limit) & (log_ratios_S * ratios.signs_S > 0)


def _ratio(ratios: PolicyRatios, config: LossConfig) -> Tensor:
    """PPO's clip: with an infinite cap its gradient is that of min(w A, clip(w) A)."""
    above_S, below_S = ratios.weights_S > config.highest, ratios.weights_S < config.lowest
    return (above_S & (ratios.signs_S > 0)) | (below_S & (ratios.signs_S < 0))


def _band(ratios: PolicyRatios, config: LossConfig) -> Tensor:
    """IcePop: outside the band whichever way the advantage pushes."""
    return (ratios.weights_S < config.lowest) | (ratios.weights_S > config.highest)


def _off(ratios: PolicyRatios, config: LossConfig) -> Tensor:
    return torch.zeros_like(ratios.weights_S, dtype=torch.bool)


MASKS: dict[MaskName, Callable[[PolicyRatios, LossConfig], Tensor]] = {
    "tv": _tv, "kl": _kl, "ratio": _ratio, "band": _band, "off": _off,
}  # fmt: skip
"""Which tokens are dropped."""
