"""What a step has found, as figures: read from the device once, when all of it has been asked for.

Owns the way from a step's scalars and sums to the metrics that are logged, and the proof of what each switch has done.
Decides nothing, and never waits for a device but in `read`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from etude.records import Batch
from etude.trainer.losses import Figure
from etude.trainer.marks import SeenTokens
from etude.trainer.packing import segment_lengths


def read(figures: Iterable[Figure]) -> list[float]:
    """As numbers of the host, in their order; what is on a device comes over together."""
    given = list(figures)
    scalars = [each.detach().double() for each in given if isinstance(each, Tensor)]
    known = iter(torch.stack(scalars).tolist() if scalars else ())
    return [next(known) if isinstance(each, Tensor) else each for each in given]


def read_all(tables: Iterable[Mapping[str, Figure]]) -> list[dict[str, float]]:
    """The same of tables."""
    given = list(tables)
    known = iter(read(each for table in given for each in table.values()))
    return [{name: next(known) for name in table} for table in given]


class TokenFigures(NamedTuple):
    """Of the S tokens of a piece that are in the loss: why each was trained on or not, as `losses.LossTerms` says."""

    logps_S: Tensor
    entropies_S: Tensor
    mask_S: Tensor


def seen_tokens(pieces: Iterable[TokenFigures], batch: Batch) -> SeenTokens:
    """Of a whole batch, on the host."""
    logps_S, entropies_S, mask_S = (torch.cat(each).cpu() for each in zip(*pieces, strict=True))
    return SeenTokens(
        logps_S.float().numpy(), entropies_S.float().numpy(), mask_S.numpy(), batch.advantages[batch.loss_mask]
    )


def metrics_of(sums: Mapping[str, float], batch: Batch) -> dict[str, float]:
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


def used_of(sums: Mapping[str, float], distilled: Mapping[str, float]) -> dict[str, float]:
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
        "offloaded_bytes": sums["offloaded"],
        "hints": distilled.get("hints", 0.0),
        "hint_tokens": distilled.get("hint_tokens", 0.0),
    }
