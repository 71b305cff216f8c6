"""The trainer: one scored batch in, one new version out.

Owns the optimizer and the version; the fp32 masters, and the policy rounded from them to bf16 values, are `trained`'s.
One optimizer step a batch. Never samples and never waits: the controller brings batches, the weights room carries
versions away.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from etude.errors import EtudeError
from etude.models.attention import PackedAttention
from etude.models.decoder import Decoder, DecoderOutput
from etude.plugins import find
from etude.records import Batch, Version
from etude.trainer.activations import recomputes_blocks, sampled_logprobs
from etude.trainer.clipping import Clipped, GradientClip
from etude.trainer.config import TrainerConfig
from etude.trainer.distil import distil_hints
from etude.trainer.feedback import HintExample
from etude.trainer.losses import BehaviourData, LossTerms, reshared_tokens, shares_of, trimmed_mean
from etude.trainer.optimizers import build_optimizer
from etude.trainer.packing import segment_lengths, split
from etude.trainer.replay import replay_counts, replayed_routes, require_routes
from etude.trainer.sampler_parity import SamplerParityCheck
from etude.trainer.trained import Trained
from etude.weights.manifest import Bits

if TYPE_CHECKING:
    from etude.trainer.ranks import Ranks

PARITY_VERSIONS = 6
"""How many versions the parity check keeps, at 2 bytes a parameter or less: more than samples may be old by default."""
TRIMMED = 0.001
"""The share of a batch's tokens, those with the largest k3, that `divergence_target` does not look at: k3 grows like
exp(d), so that of 10,000 tokens a single one at d = 10 would make the mean 2.2 and a step 2,000 times shorter. Not
more: in the first steps of recipes/quickstart.toml the largest 1% of the tokens held 70 to 90% of k3, these held 10 to
30%."""
MAX_SKIPPED = 3
"""Steps in a row that may be skipped for a gradient that is not finite: one is bad luck, three are no luck."""


@dataclass(frozen=True)
class _PieceResult:
    """What a piece's forward and backward told."""

    sums: dict[str, float]
    mismatch: float
    drift: float
    drift_M: Tensor
    k3_S: Tensor


class Trainer:
    """Holds a policy and improves it. `step` is the only thing that changes it."""

    def __init__(
        self, decoder: Decoder, config: TrainerConfig, temperature: float = 1.0, ranks: Ranks | None = None
    ) -> None:
        """`temperature` is the sampler's: log-probabilities are compared at the temperature they were sampled at. With
        `ranks`, the work on a batch's pieces is shared among them.
        """
        self.replays = config.replays(decoder.config)
        torch.set_num_threads(config.threads)
        self.config, self.temperature, self.ranks = config, temperature, ranks
        self.trained = Trained(decoder, config)
        self.policy, self.masters = self.trained.policy, self.trained.masters
        self.loss: Callable[..., LossTerms] = find("losses", config.loss.formula)
        self.optimizer = build_optimizer(self.trained.trained.items(), config.optimizer)
        self.clip = GradientClip(config.gradient_clip)
        self.parity_check = SamplerParityCheck(config.parity_tokens, PARITY_VERSIONS)
        self.version = Version(0)
        self.skipped = self.alarms = 0
        self.reference = copy.deepcopy(decoder).requires_grad_(False) if config.loss.kl is not None else None
        self.parity_check.remember(self.version, self.policy)

    def step(self, batch: Batch, progress: float = 0.0, hints: Sequence[HintExample] = ()) -> dict[str, Any]:
        """Train on a batch, and on hints beside it; returns its metrics. The version moves on unless the step had to
        be skipped.

        `progress` is how much of the run's budget is spent, from 0 to 1; only the learning rate depends on it.
        `max_abs_dlogp` is the largest difference from the sampler by the weights that sampled: over tokens of sessions
        that the version trained on sampled alone, and over those the parity check recomputed with an older one (None
        without any). `max_abs_drift` is the largest of all by the weights trained: it holds what the policy has learnt.
        """
        if self.replays:
            require_routes(batch, self.policy.config)
        shares_M = torch.from_numpy(shares_of(batch, self.config.loss))
        sums: Counter[str] = Counter(reshared=reshared_tokens(batch, shares_M.numpy(), self.config.loss))
        mismatch = drift = 0.0
        drifts: list[Tensor] = []
        k3s: list[Tensor] = []
        pieces = [piece for piece in split(batch, self.config.piece_tokens) if piece.loss_mask.any()]
        for result in self._forward_backward(pieces, shares_M):
            sums.update(result.sums)
            mismatch, drift = max(mismatch, result.mismatch), max(drift, result.drift)
            drifts.append(result.drift_M)
            k3s.append(result.k3_S)
        sums["by_own_formula"] = sums["tokens"] if self.config.loss.formula != "policy" else 0
        feedback = self.config.credit.feedback
        distilled = distil_hints(self.policy, hints, self.temperature, feedback.weight) if feedback is not None else {}
        parity = self._parity_differences(batch)
        sums.update({"parity_tokens": len(parity), "parity_abs_dlogp": parity.sum().item()})
        mismatch = max(mismatch, float(parity.max(initial=0.0)))
        gate = self._gate(torch.cat(drifts).numpy(), sums["gated"] / sums["segments"])
        divergence = trimmed_mean(torch.cat(k3s).numpy(), TRIMMED)
        lr_scale = self._kl_lr_scale(divergence)
        gradient = self._optimize(lr_scale * self._lr_schedule(progress))
        compared = sums["matched_tokens"] + sums["parity_tokens"]
        differences = {"max_abs_dlogp": mismatch if compared else None, "max_abs_drift": drift}
        sums.update(clipped=int(gradient.acted), moved=self.trained.moved, frozen=self.trained.frozen_weights)
        update = {"grad_norm": gradient.norm, "version": self.version}
        update |= {"divergence": divergence, "rate_scale": lr_scale, "shortened": lr_scale < 1}
        return {**_metrics(sums, batch), **gate, **differences, **update, **distilled, "used": _used(sums, distilled)}

    def _forward_backward(self, pieces: list[Batch], shares_M: Tensor) -> Iterable[_PieceResult]:
        """Every piece's figures; its gradients are added to those of the pieces before it."""

        def work(piece: Batch) -> _PieceResult:
            terms, mismatch, replay = self._piece(piece, shares_M)
            terms.loss.backward()
            sums = {**terms.sums, **replay, "loss": terms.loss.item()}
            return _PieceResult(sums, mismatch, terms.max_abs_dlogp, terms.drift_M, terms.k3_S)

        if self.ranks is None:
            return map(work, pieces)
        return self.ranks.run_pieces(pieces, work, list(self.trained.leaves.values()))

    def _piece(self, piece: Batch, shares_M: Tensor) -> tuple[LossTerms, float, dict[str, float]]:
        replay = replayed_routes(piece) if self.replays else None
        output, logps, entropies = self._forward(self.policy, piece, replay)
        behaviour = torch.from_numpy(piece.behaviour_logprobs[piece.loss_mask])
        segments = torch.from_numpy(piece.segment_ids[piece.loss_mask]).long()
        sampled = BehaviourData(
            behaviour,
            torch.from_numpy(piece.advantages[piece.loss_mask]),
            shares_M[segments],
            segments - segments[0],
            self._reference_logps(piece),
        )
        terms = self.loss(logps, entropies, sampled, self.config.loss)
        matched = (logps.detach() - behaviour).abs()[torch.from_numpy(_on_policy(piece))]
        terms.sums.update(matched_tokens=float(len(matched)), matched_abs_dlogp=float(matched.sum()))
        counts = {} if replay is None else replay_counts(replay, output.routing)
        return terms, float(matched.max()) if len(matched) else 0.0, counts

    def _forward(self, policy: Decoder, piece: Batch, replay: Tensor | None) -> tuple[DecoderOutput, Tensor, Tensor]:
        """The forward's output, and of the S sampled tokens their log-probabilities [S] and entropies [S]."""
        token_ids = torch.from_numpy(piece.token_ids).long()
        mask, positions_N = PackedAttention(segment_lengths(piece)), torch.from_numpy(piece.positions)
        recompute = recomputes_blocks(policy.config, len(token_ids))
        output = policy(token_ids, positions_N, mask, replay, self.config.replay_margin, recompute)
        sampled = torch.from_numpy(np.flatnonzero(piece.loss_mask))
        hidden, trains = output.hidden_ND[sampled - 1], self.config.loss.trains_entropy
        return output, *sampled_logprobs(policy, hidden, token_ids[sampled], self.temperature, trains)

    @torch.no_grad()
    def _reference_logps(self, piece: Batch) -> Tensor | None:
        """What the frozen reference says of the sampled tokens, by the experts that it would choose itself."""
        return None if self.reference is None else self._forward(self.reference, piece, None)[1]

    def _gate(self, drift_M: np.ndarray, rejected: float) -> dict[str, Any]:
        """What the sequence gate saw. Raises EtudeError once it has rejected too much for too long."""
        gate = self.config.loss.gate
        low, high = np.exp(np.quantile(drift_M, (0.01, 0.99)))
        seen = {"gate_p01": float(low), "gate_p99": float(high)}
        if gate is None:
            return seen
        alarm = rejected > gate.max_rejected
        self.alarms = self.alarms + 1 if alarm else 0
        if self.alarms >= gate.patience:
            raise EtudeError(
                f"the sequence gate rejected more than {gate.max_rejected:.0%} of the segments {self.alarms} steps in "
                f"a row, {rejected:.0%} now, whose middle 98% lie between {low:.4f} and {high:.4f}: widen "
                "trainer.loss.gate, or look for what drives trainer and sampler apart (mismatch_k3, max_abs_dlogp)"
            )
        return seen | {"gate_rejected_share": rejected, "gate_alarm": alarm}

    @torch.no_grad()
    def _parity_differences(self, batch: Batch) -> np.ndarray:
        """|log-probability - the sampler's| of the tokens that the check selects, by the weights that sampled them."""
        selected = self.parity_check.select(batch)
        if selected is None:
            return np.zeros(0, np.float32)
        piece, version = selected
        replay = replayed_routes(piece) if self.replays else None
        with self.parity_check.restored(version, self.policy):
            logps = self._forward(self.policy, piece, replay)[1]
        return np.abs(logps.numpy() - piece.behaviour_logprobs[piece.loss_mask])

    def _kl_lr_scale(self, divergence: float) -> float:
        """What the learning rate is multiplied by, for a policy far from its samples. Muon's steps are equally long
        whatever the gradient, so that nothing else would slow it.
        """
        target = self.config.divergence_target
        return 1.0 if target is None or divergence <= target else target / divergence

    def _lr_schedule(self, progress: float) -> float:
        warmup = min(1.0, (self.version + 1) / max(1, self.config.warmup_steps))
        return warmup * (1 - (1 - self.config.final_lr_share) * min(1.0, progress))

    def _optimize(self, scale: float) -> Clipped:
        """Gradients to the masters, one optimizer step, the policy rounded anew. Returns what the clip has seen."""
        gradient = self.clip.cut(self.trained.take_gradients())
        if not np.isfinite(gradient.norm):
            self.optimizer.zero_grad()
            self.skipped += 1
            if self.skipped >= MAX_SKIPPED:
                raise EtudeError(f"the gradient was not finite {self.skipped} steps in a row; lower the learning rate")
            return gradient
        self.skipped = 0
        self.optimizer.set_scale(scale)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.trained.round()
        self.version = Version(self.version + 1)
        self.parity_check.remember(self.version, self.policy)
        return gradient

    def export(self, into: Bits | None = None) -> Bits:
        """A copy of what the version holds, in the arrays of an earlier one if given."""
        return self.trained.export(into)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed trainer needs to go on as if it had never stopped."""
        return {
            "masters": self.trained.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "norms": self.clip.state_dict(),
            "version": int(self.version),
            "skipped": self.skipped,
            "alarms": self.alarms,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.trained.load_state_dict(state["masters"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.clip.load_state_dict(state["norms"])
        self.version, self.skipped, self.alarms = Version(state["version"]), state["skipped"], state["alarms"]
        self.parity_check.remember(self.version, self.policy)


def _on_policy(piece: Batch) -> np.ndarray:
    """Of the sampled tokens, those that the version trained on sampled, with a cache that no older one wrote."""
    ages, segments = piece.ages[piece.loss_mask], piece.segment_ids[piece.loss_mask]
    _, first, segment_of = np.unique(segments, return_index=True, return_inverse=True)
    return (ages == 0) & (ages[first][segment_of] == 0)


def _metrics(sums: Mapping[str, float], batch: Batch) -> dict[str, float]:
    """Sums over pieces as the figures that are logged."""
    tokens = sums["tokens"]
    return {
        "loss": sums["loss"],
        "trained_tokens": tokens,
        "batch_tokens": float(len(batch.token_ids)),
        "segments_trained": float(len(segment_lengths(batch))),
        "summary_tokens_trained": float((batch.summary_mask & batch.loss_mask).sum()),
        "summary_tokens_masked": float((batch.summary_mask & ~batch.loss_mask).sum()),
        "entropy": sums["entropy"] / tokens,
        "masked_share": (sums["masked_up"] + sums["masked_down"]) / tokens,
        "masked_up_share": sums["masked_up"] / tokens,
        "masked_down_share": sums["masked_down"] / tokens,
        "capped_share": sums["capped"] / tokens,
        "effective_sample_share": sums["weight"] ** 2 / (tokens * sums["weight_squared"]),
        "mismatch_k1": sums["k1"] / tokens,
        "mismatch_k3": sums["k3"] / tokens,
        "mean_abs_dlogp": sums["abs_dlogp"] / tokens,
        "over_ln2_share": sums["over_ln2"] / tokens,
        "reference_k1": sums["reference_k1"] / tokens,
        "matched_tokens": sums["matched_tokens"],
        "parity_tokens": sums["parity_tokens"],
        "parity_abs_dlogp": sums["parity_abs_dlogp"] / max(sums["parity_tokens"], 1.0),
        "matched_abs_dlogp": sums["matched_abs_dlogp"] / max(sums["matched_tokens"], 1.0),
        "routes_given": sums["routes_given"],
        "routes_coverage": sums["routes_given"] / max(sums["routes"], 1.0),
        "experts_replaced_share": sums["experts_replaced"] / max(sums["experts_given"], 1.0),
        "mean_age": float(batch.ages[batch.loss_mask].mean()),
        "max_age": float(batch.ages[batch.loss_mask].max()),
    }


def _used(sums: Mapping[str, float], distilled: Mapping[str, float]) -> dict[str, float]:
    """On how many tokens or segments each switch has acted: what `TrainerConfig.features` are proved by."""
    return {
        "formula_tokens": sums["by_own_formula"],
        "segment_weighted_tokens": sums["reweighted"],
        "capped_tokens": sums["capped"],
        "floored_tokens": sums["floored"],
        "masked_tokens": sums["masked_up"] + sums["masked_down"],
        "gated_segments": sums["gated"],
        "reference_tokens": sums["from_reference"],
        "entropy_tokens": sums["broadened"],
        "reshared_tokens": sums["reshared"],
        "clipped_steps": sums["clipped"],
        "adapters_moved": sums["moved"],
        "frozen_weights": sums["frozen"],
        "hints": distilled.get("hints", 0.0),
        "hint_tokens": distilled.get("hint_tokens", 0.0),
    }
