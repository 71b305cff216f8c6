"""What a step has made of each token that was sampled, for whoever looks at a trajectory later (`etude.archive`).

Owns `SeenTokens`, which the step fills, and `marks_of`, which deals them out to trajectories. Computes nothing that the
step had not: it would cost a forward. No torch. S tokens of the whole batch are in its loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from etude.archive.records import MASKS, Marks
from etude.records import Floats, Group, Trajectory
from etude.trainer.packing import trained_tokens

MASKED_UP, MASKED_DOWN, GATED = (MASKS.index(name) for name in ("masked_up", "masked_down", "gated"))
_LEFT_OUT = MASKS.index("left_out")


class SeenTokens(NamedTuple):
    """By the weights that were trained, before the step."""

    logps_S: Floats
    entropies_S: Floats
    mask_S: npt.NDArray[np.uint8]
    """Places in `archive.records.MASKS`."""
    advantages_S: Floats


_NO_FLOATS = np.zeros(0, np.float32)
NOTHING_SEEN = SeenTokens(_NO_FLOATS, _NO_FLOATS, np.zeros(0, np.uint8), _NO_FLOATS)


def marks_of(groups: Sequence[Group], seen: SeenTokens, mask_summaries: bool) -> list[Marks]:
    """Of every trajectory of these groups, whose batch (`packing.build_batch`) was stepped on."""
    found, at = [], 0
    for trajectory in (member for group in groups for member in group.trajectories):
        where = _trained(trajectory, mask_summaries)
        here = slice(at, at := at + int(where.sum()))
        columns = (_spread(each[here], where) for each in (seen.advantages_S, seen.logps_S, seen.entropies_S))
        mask = np.full(len(where), _LEFT_OUT, np.uint8)
        mask[where] = seen.mask_S[here]
        found.append(Marks(trajectory.id, *columns, mask))
    if at != len(seen.mask_S):
        raise ValueError(f"the batch has {len(seen.mask_S)} tokens in its loss, its trajectories {at}")
    return found


def _trained(trajectory: Trajectory, mask_summaries: bool) -> np.ndarray:
    """Of its sampled tokens, those in the loss."""
    parts = [trained_tokens(segment, mask_summaries)[segment.sampled] for segment in trajectory.segments]
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def _spread(values: Floats, where: np.ndarray) -> Floats:
    column = np.full(len(where), np.nan, np.float32)
    column[where] = values
    return column
