"""Clipping of gradients that are far longer than those before them.

Owns `GradientClip`: the norms of the last steps, and the cut. Muon and AdamW divide a gradient's scale out, so that a
fixed limit would do nothing: what they do not divide out is one gradient beside the others, of which their momentum is
the mean. One spike fills it for tens of steps. Knows nothing of models, losses or optimizers.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

WINDOW = 16
"""Steps whose norms a new one is compared with: few enough to follow a run, and half of them can be spikes."""
FEWEST = 4
"""Fewer known norms than these have no median worth the name, and nothing is cut."""


class Clipped(NamedTuple):
    """What became of one step's gradient."""

    norm: float
    """As it was; not always finite."""
    acted: bool
    """Whether it was cut."""


class GradientClip:
    """Cuts a step's gradient to `multiple` times the median norm of the last steps."""

    def __init__(self, multiple: float) -> None:
        """`multiple` is above 1; inf cuts nothing."""
        self.multiple = multiple
        self._norms: deque[float] = deque(maxlen=WINDOW)

    @torch.no_grad()
    def cut(self, parameters: Iterable[nn.Parameter]) -> Clipped:
        """Scale all gradients, in place, where their common norm is too long. The norm is remembered as it was before,
        so that a lasting change of scale is soon the usual one; a norm of 0 or one that is not finite is neither cut
        nor remembered.
        """
        gradients = [each.grad for each in parameters if each.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if not (math.isfinite(norm) and norm > 0):
            return Clipped(norm, False)
        limit = self.multiple * statistics.median(self._norms) if len(self._norms) >= FEWEST else math.inf
        self._norms.append(norm)
        if norm <= limit:
            return Clipped(norm, False)
        for gradient in gradients:
            gradient.mul_(limit / norm)
        return Clipped(norm, True)

    def state_dict(self) -> list[float]:
        """What a resumed trainer goes on comparing with."""
        return list(self._norms)

    def load_state_dict(self, norms: Sequence[float]) -> None:
        self._norms = deque(norms, maxlen=WINDOW)
