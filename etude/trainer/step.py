"""The trainer: one scored batch in, one new version out.

Owns the optimizer and the version; the fp32 masters, and the policy rounded from them to bf16 values, are `trained`'s.
One optimizer step a batch. Never samples and never waits: the controller brings batches, the weights room carries
versions away. A step asks for everything first, where the policy is, and reads what it has found last (`figures`):
between the two it looks at no value, and what it brings to a device it does not wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from etude.errors import EtudeError
from etude.kernels.devices import put
from etude.models.decoder import Decoder
from etude.plugins import find
from etude.records import Batch, Floats, Version
from etude.trainer.clipping import Clipped, GradientClip, still_learning
from etude.trainer.config import TrainerConfig
from etude.trainer.distil import distil_hints
from etude.trainer.feedback import HintExample
from etude.trainer.figures import TokenFigures, metrics_of, read, read_all, seen_tokens, used_of
from etude.trainer.losses import BehaviourData, Figure, LossTerms, largest, reshared_tokens, shares_of, trimmed_mean
from etude.trainer.marks import NOTHING_SEEN, SeenTokens
from etude.trainer.packing import split
from etude.trainer.pieces import WHOLE, Piece, on_policy, segments_between
from etude.trainer.replay import require_routes
from etude.trainer.sampler_parity import SamplerParityCheck
from etude.trainer.saving import copied
from etude.trainer.trained import Trained
from etude.weights.manifest import Bits

if TYPE_CHECKING:
    from etude.trainer.mesh.together import Mesh
    from etude.trainer.ranks import Ranks

PARITY_VERSIONS = 6
"""How many versions the parity check keeps, at 2 bytes a parameter or less: more than samples may be old by default."""
TRIMMED = 0.001
"""The share of a batch's tokens, those with the largest k3, that `divergence_target` does not look at: k3 grows like
exp(d), so that of 10,000 tokens a single one at d = 10 would make the mean 2.2 and a step 2,000 times shorter. Not
more: in the first steps of recipes/quickstart.toml the largest 1% of the tokens held 70 to 90% of k3, these held 10 to
30%."""


class PieceResult(NamedTuple):
    """What a piece's forward and backward told."""

    sums: dict[str, Figure]
    mismatch: Figure
    drift: Figure
    drift_M: Tensor
    k3_S: Tensor
    tokens: TokenFigures

    def flat(self) -> Tensor:
        """All of it in a row, fp64, in an order that is the same for all pieces of a batch."""
        sums = [self.sums[name] for name in sorted(self.sums)]
        scalars = [torch.as_tensor(each, dtype=torch.float64) for each in (*sums, self.mismatch, self.drift)]
        device = self.k3_S.device
        columns = (self.drift_M, self.k3_S, *self.tokens)
        return torch.cat([torch.stack([each.to(device) for each in scalars]), *(each.double() for each in columns)])

    def lengths(self, piece: Batch) -> list[int]:
        """Of the parts of another piece's `flat`."""
        tokens = int(piece.loss_mask.sum())
        return [len(self.sums) + 2, segments_between(piece), *[tokens] * (1 + len(self.tokens))]

    def like(self, flat: Tensor, piece: Batch) -> PieceResult:
        """That of another piece, from its `flat`, which may be longer."""
        lengths = self.lengths(piece)
        scalars, drift_M, k3_S, logps_S, entropies_S, mask_S = flat[: sum(lengths)].split(lengths)
        *sums, mismatch, drift = scalars.unbind()
        tokens = TokenFigures(logps_S.float(), entropies_S.float(), mask_S.to(torch.uint8))
        figures = dict(zip(sorted(self.sums), sums, strict=True))
        return PieceResult(figures, mismatch, drift, drift_M.float(), k3_S.float(), tokens)


class _Asked(NamedTuple):
    """What a step has asked the device for, and not read yet."""

    results: list[PieceResult]
    distilled: dict[str, Figure]
    parity_P: Tensor
    """|log-probability - the sampler's| of the tokens that the parity check has selected."""
    divergence: Tensor
    lr_scale: Figure
    gradient: Clipped


class Trainer:
    """Holds a policy and improves it. `step` is the only thing that changes it."""

    def __init__(
        self, decoder: Decoder, config: TrainerConfig, temperature: float = 1.0, ranks: Ranks | Mesh | None = None
    ) -> None:
        """`temperature` is the sampler's: log-probabilities are compared at the temperature they were sampled at. With
        `ranks`, the work on a batch's pieces is shared among them; those of a mesh share the decoder too, which is one
        that they have cut.
        """
        self.replays = config.replays(decoder.config)
        torch.set_num_threads(config.threads)
        self.config, self.temperature, self.ranks = config, temperature, ranks
        self.trained = Trained(decoder, config) if ranks is None else ranks.trained(decoder, config)
        self.context = WHOLE if ranks is None else ranks.context
        self.policy = self.trained.policy
        self.loss: Callable[..., LossTerms] = find("losses", config.loss.formula)
        self.placement = decoder.placement
        self.optimizer = self.trained.optimizer(config.optimizer)
        self.clip = GradientClip(config.gradient_clip)
        self.parity_check = SamplerParityCheck(config.parity_tokens, PARITY_VERSIONS, self.trained.here)
        self.version = Version(0)
        self.skipped = self.alarms = 0
        self.seen: SeenTokens = NOTHING_SEEN
        """What the last step has found of the tokens in its loss."""
        self.reference = self.trained.frozen_copy() if config.loss.kl is not None else None
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
        shares_M = shares_of(batch, self.config.loss)
        asked = self.ask(batch, shares_M, progress, hints)
        return self._read(asked, batch, shares_M)

    def ask(self, batch: Batch, shares_M: Floats, progress: float = 0.0, hints: Sequence[HintExample] = ()) -> _Asked:
        """The whole step, but that nobody knows of it yet: gradients, the optimizer's step, the policy rounded anew.
        Reads nothing back but with kernels of the host.
        """
        shares = put(shares_M, self.placement.device)
        pieces = [piece for piece in split(batch, self.config.piece_tokens) if piece.loss_mask.any()]
        results = list(self.forward_backward(pieces, shares))
        feedback = self.config.credit.feedback
        distilled: dict[str, Figure] = {}
        if feedback is not None:
            share = 1.0 if self.ranks is None else self.ranks.lesson_share
            weight = feedback.weight / self.config.loss.token_budget
            distilled = distil_hints(self.policy, hints, self.temperature, weight, share)
        parity_P = self._parity_differences(batch)
        divergence = trimmed_mean(torch.cat([result.k3_S for result in results]), TRIMMED)
        lr_scale = self._kl_lr_scale(divergence)
        gradient = self.optimize(lr_scale * self._lr_schedule(progress))
        return _Asked(results, distilled, parity_P, divergence, lr_scale, gradient)

    def _read(self, asked: _Asked, batch: Batch, shares_M: Floats) -> dict[str, Any]:
        """What the step has found. Raises EtudeError where that ends the run; the version moves on where it learnt."""
        results, parity_P = asked.results, asked.parity_P
        sums: Counter[str] = Counter(reshared=reshared_tokens(batch, shares_M, self.config.loss))
        for each in read_all(result.sums for result in results):
            sums.update(each)
        sums["by_own_formula"] = sums["tokens"] if self.config.loss.formula != "policy" else 0
        mismatches = read((*(result.mismatch for result in results), largest(parity_P)))
        drifts = read(result.drift for result in results)
        found = [parity_P.sum(), asked.divergence, asked.lr_scale, *asked.gradient, self.trained.moved]
        parity, divergence, lr_scale, norm, clipped, moved = read(found)
        (distilled,) = read_all([asked.distilled])
        sums.update({"parity_tokens": len(parity_P), "parity_abs_dlogp": parity})
        self.seen = seen_tokens((result.tokens for result in results), batch)
        drift_M = torch.cat([result.drift_M for result in results]).cpu().numpy()
        gate = self._gate(drift_M, sums["gated"] / sums["segments"])
        compared = sums["matched_tokens"] + sums["parity_tokens"]
        differences = {"max_abs_dlogp": max(mismatches) if compared else None, "max_abs_drift": max(drifts)}
        self._learnt(norm)
        sums.update(clipped=int(clipped), moved=int(moved), frozen=self.trained.frozen_weights)
        sums["offloaded"] = self.optimizer.offloaded_bytes
        update = {"grad_norm": norm, "version": self.version}
        update |= {"divergence": divergence, "rate_scale": lr_scale, "shortened": lr_scale < 1}
        used = used_of(sums, distilled)
        return {**metrics_of(sums, batch), **gate, **differences, **update, **distilled, "used": used}

    def forward_backward(self, pieces: list[Batch], shares_M: Tensor) -> Iterable[PieceResult]:
        """Every piece's figures; its gradients are added to those of the pieces before it."""

        def work(batch: Batch, weight: float = 1.0) -> PieceResult:
            terms, mismatch, replay, tokens = self._piece(batch, shares_M)
            (terms.loss if weight == 1 else weight * terms.loss).backward()
            sums = {**terms.sums, **replay, "loss": terms.loss.detach()}
            return PieceResult(sums, mismatch, terms.max_abs_dlogp, terms.drift_M, terms.k3_S, tokens)

        if self.ranks is None:
            return map(work, pieces)
        return self.ranks.run_pieces(pieces, work, list(self.trained.leaves.values()))

    def _piece(self, batch: Batch, shares_M: Tensor) -> tuple[LossTerms, Tensor, dict[str, Figure], TokenFigures]:
        piece = Piece.of(batch, self.placement, self.replays, self.context)
        output, logps, entropies = piece.run(self.policy, self.config, self.temperature)
        sampled = BehaviourData(
            piece.behaviour_S,
            piece.advantages_S,
            shares_M.index_select(0, piece.segments_S + piece.first),
            piece.segments_S,
            self._reference_logps(piece),
            piece.segments,
        )
        terms = self.loss(logps, entropies, sampled, self.config.loss)
        where = put(on_policy(batch), self.placement.device)
        matched = (logps.detach() - piece.behaviour_S).abs().index_select(0, where)
        terms.sums.update(matched_tokens=float(len(matched)), matched_abs_dlogp=matched.sum())
        mask_S = torch.zeros_like(logps, dtype=torch.uint8) if terms.mask_S is None else terms.mask_S
        tokens = TokenFigures(logps.detach(), entropies.detach(), mask_S)
        return terms, largest(matched), piece.replay_counts(output.routing), tokens

    @torch.no_grad()
    def _reference_logps(self, piece: Piece) -> Tensor | None:
        """What the frozen reference says of the sampled tokens, by the experts that it would choose itself."""
        reference = self.reference
        return None if reference is None else piece.run(reference, self.config, self.temperature, replay=False)[1]

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
    def _parity_differences(self, batch: Batch) -> Tensor:
        """|log-probability - the sampler's| of the tokens that the check selects, by the weights that sampled them."""
        selected = self.parity_check.select(batch)
        if selected is None:
            return torch.zeros(0, device=self.placement.device)
        piece = Piece.of(selected[0], self.placement, self.replays, self.context)
        with self.parity_check.restored(selected[1], self.policy):
            logps_P = piece.run(self.policy, self.config, self.temperature)[1]
            self.trained.renewed()
        return (logps_P - piece.behaviour_S).abs()

    def _kl_lr_scale(self, divergence: Tensor) -> Figure:
        """What the learning rate is multiplied by, for a policy far from its samples. Muon's steps are equally long
        whatever the gradient, so that nothing else would slow it. By 0 where nobody knows how far.
        """
        target = self.config.divergence_target
        if target is None:
            return 1.0
        return torch.where(divergence <= target, 1.0, (target / divergence).nan_to_num(nan=0.0))

    def _lr_schedule(self, progress: float) -> float:
        warmup = min(1.0, (self.version + 1) / max(1, self.config.warmup_steps))
        return warmup * (1 - (1 - self.config.final_lr_share) * min(1.0, progress))

    def optimize(self, scale: Figure) -> Clipped:
        """Gradients to the masters, one optimizer step unless they are lost, the policy rounded anew."""
        gradient = self.clip.cut(self.trained.take_gradients(), self.trained.norm)
        self.optimizer.set_scale(scale)
        self.optimizer.step(gradient.lost)
        self.optimizer.zero_grad()
        self.trained.round()
        return gradient

    def _learnt(self, norm: float) -> None:
        """Move the version on, unless the step was skipped. Raises EtudeError where too many were."""
        self.skipped = still_learning(norm, self.skipped)
        if self.skipped:
            return
        self.version = Version(self.version + 1)
        self.parity_check.remember(self.version, self.policy)

    def export(self, into: Bits | None = None) -> Bits:
        """A copy of what the version holds, in the arrays of an earlier one if given."""
        return self.trained.export(into)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed trainer needs to go on as if it had never stopped: of a mesh, this rank's part."""
        return {
            **self.trained.saved(self.optimizer),
            "norms": self.clip.state_dict(),
            "version": int(self.version),
            "skipped": self.skipped,
            "alarms": self.alarms,
        }

    def copied(self, shards: Path | None) -> dict[str, Any]:
        """A copy of that. `shards` is where the ranks of a mesh will write theirs (`trainer.saving`)."""
        del shards
        return copied(self.state_dict())

    def load_state_dict(self, state: Mapping[str, Any], directory: Path | None = None) -> None:
        """`directory` is where its checkpoint lies."""
        self.trained.take(state, self.optimizer, directory)
        self.clip.load_state_dict(state["norms"])
        self.version, self.skipped, self.alarms = Version(state["version"]), state["skipped"], state["alarms"]
        self.parity_check.remember(self.version, self.policy)

    def save_model(self, directory: Path, tokenizer: Tokenizer | None, like: Path) -> None:
        """Write the policy as a published checkpoint, trained from the one at `like`, and adapters beside it."""
        self.trained.save_model(directory, tokenizer, like)
        self.trained.save_adapter(directory.with_name("adapter"), like.resolve())
