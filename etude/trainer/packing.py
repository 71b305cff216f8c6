"""Packing: scored groups into one flat batch, and a batch into pieces that fit memory.

Owns the layout of `records.Batch`: segments end to end, every sampled token of every segment with its advantage and
age. What follows a segment's last sampled token teaches nothing and is cut. Summaries that are left out of the loss
stay where they are, so that a run with them and one without compute the same. No torch, no loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from etude.records import Batch, Bools, Floats, Group, Routes, Segment, Version
from etude.trainer.credit import summary_tokens


def build_batch(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[Floats] | Floats],
    version: Version,
    *,
    mask_summaries: bool = False,
) -> Batch:
    """`advantages[i][j]` belongs to trajectory j of group i: one value a segment, or one for all of them. `version` is
    the one about to be trained. Raises ValueError where nothing is left to train on.
    """
    rows: list[tuple[Segment, float, int]] = []
    group_of: list[int] = []
    for number, (group, values) in enumerate(zip(groups, advantages, strict=True)):
        for trajectory, value in zip(group.trajectories, values, strict=True):
            shares = np.broadcast_to(value, len(trajectory.segments))
            for segment, share in zip(trajectory.segments, shares, strict=True):
                if trained_tokens(segment, mask_summaries).any():
                    rows.append((_trimmed(segment), float(share), len(group_of)))
            group_of.append(number)
    if not rows:
        raise ValueError("nothing to train on: no trajectory of these groups has a sampled token")
    segments = [segment for segment, _, _ in rows]
    lengths = [len(segment.token_ids) for segment in segments]
    summaries = np.concatenate([summary_tokens(segment) for segment in segments])
    sampled = np.concatenate([segment.sampled for segment in segments])
    if mask_summaries:
        sampled = sampled & ~summaries
    routes, routed = _routes(segments)
    return Batch(
        token_ids=np.concatenate([segment.token_ids for segment in segments]),
        positions=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        segment_ids=np.repeat(np.arange(len(rows), dtype=np.int32), lengths),
        loss_mask=sampled,
        summary_mask=summaries,
        advantages=np.where(
            sampled, np.repeat(np.asarray([value for _, value, _ in rows], np.float32), lengths), np.float32(0)
        ),
        behaviour_logprobs=np.concatenate([segment.logprobs for segment in segments]) * sampled,
        ages=(version - np.concatenate([segment.versions for segment in segments])) * sampled,
        routed_experts=routes,
        routed_mask=routed,
        trajectory_of=np.asarray([trajectory for _, _, trajectory in rows], np.int32),
        group_of=np.asarray(group_of, np.int32),
        version=version,
    )


def trained_tokens(segment: Segment, mask_summaries: bool) -> Bools:
    """[T]: those that are in the loss."""
    return segment.sampled & ~summary_tokens(segment) if mask_summaries else segment.sampled


def _trimmed(segment: Segment) -> Segment:
    end = int(np.flatnonzero(segment.sampled)[-1]) + 1
    return replace(
        segment,
        token_ids=segment.token_ids[:end],
        sampled=segment.sampled[:end],
        logprobs=segment.logprobs[:end],
        versions=segment.versions[:end],
        routed_experts=segment.routed_experts[:end],
    )


def _routes(segments: Sequence[Segment]) -> tuple[Routes, np.ndarray]:
    """Routes of all positions, zeros where the sampler gave none, and a mask that says where."""
    given = [segment.routed_experts for segment in segments if len(segment.routed_experts)]
    shapes = {array.shape[1:] for array in given}
    if len(shapes) > 1:
        raise ValueError(f"segments have routes of different shapes: {sorted(shapes)}")
    total = sum(len(segment.token_ids) for segment in segments)
    mask = np.zeros(total, bool)
    if not shapes:
        return np.zeros((0, 0, 0), np.uint8), mask
    routes = np.zeros((total, *shapes.pop()), np.result_type(*given))
    start = 0
    for segment in segments:
        end = start + len(segment.routed_experts)
        routes[start:end], mask[start:end] = segment.routed_experts, True
        start += len(segment.token_ids)
    return routes, mask


def split(batch: Batch, max_tokens: int) -> Iterator[Batch]:
    """Whole segments, in order, at most `max_tokens` a piece (a longer segment is a piece of its own)."""
    lengths = np.bincount(batch.segment_ids)
    start = end = 0
    for length in lengths:
        if end > start and end + length - start > max_tokens:
            yield select_positions(batch, slice(start, end))
            start = end
        end += int(length)
    yield select_positions(batch, slice(start, end))


def select_positions(batch: Batch, positions: slice | np.ndarray) -> Batch:
    """A batch of these positions alone; where segments begin and end is the caller's to respect."""
    aligned = (
        "token_ids",
        "positions",
        "segment_ids",
        "loss_mask",
        "summary_mask",
        "advantages",
        "behaviour_logprobs",
        "ages",
        "routed_mask",
    )
    parts = {name: getattr(batch, name)[positions] for name in aligned}
    routes = batch.routed_experts
    return replace(batch, **parts, routed_experts=routes[positions] if len(routes) else routes)


def segment_lengths(batch: Batch) -> list[int]:
    """Tokens of each segment of a batch or of a piece of one."""
    return np.unique(batch.segment_ids, return_counts=True)[1].tolist()
