"""Clipping of gradients that are far longer than those before them.

Owns `GradientClip`: the norms of the last steps, and the cut; and `still_learning`, which ends what learns no more.
Muon and AdamW divide a gradient's scale out, so that a fixed limit would do nothing: what they do not divide out is one
gradient beside the others, of which their momentum is the mean. One spike fills it for tens of steps. All of it happens
where the gradients lie: nobody waits to read a norm. Knows nothing of models, losses or optimizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from etude.errors import EtudeError
from etude.kernels.devices import put

WINDOW = 16
"""Steps whose norms a new one is compared with: few enough to follow a run, and half of them can be spikes."""
FEWEST = 4
"""Fewer known norms than these have no median worth the name, and nothing is cut."""


MAX_SKIPPED = 3
"""Steps in a row that may be skipped for a gradient that is not finite: one is bad luck, three are no luck."""


class Clipped(NamedTuple):
    """What became of one step's gradient: scalars, where the gradient is."""

    norm: Tensor
    """As it was; not always finite."""
    acted: Tensor
    """Whether it was cut."""

    @property
    def lost(self) -> Tensor:
        """Whether the gradient is not finite, and nothing can be learnt from it."""
        return ~self.norm.isfinite()


class GradientClip:
    """Cuts a step's gradient to `multiple` times the median norm of the last steps."""

    def __init__(self, multiple: float) -> None:
        """`multiple` is above 1; inf cuts nothing."""
        self.multiple = multiple
        self._norms_W = torch.full((WINDOW,), math.nan, dtype=torch.float64)
        """The newest last; NaN where none is known yet."""

    @torch.no_grad()
    def cut(
        self, parameters: Iterable[nn.Parameter], norm_of: Callable[[list[Tensor]], Tensor] = get_total_norm
    ) -> Clipped:
        """Scale all gradients, in place, where their common norm is too long; others may have to be asked for it. The
        norm is remembered as it was before, so that a lasting change of scale is soon the usual one; a norm of 0 or one
        that is not finite is neither cut nor remembered.
        """
        gradients = [each.grad for each in parameters if each.grad is not None]
        norm = norm_of(gradients).double()
        if self._norms_W.device != norm.device:
            self._norms_W = put(self._norms_W, norm.device)
        usual_W = self._norms_W
        limit = self.multiple * _median(usual_W)
        known = norm.isfinite() & (norm > 0)
        acted = known & (usual_W.isfinite().sum() >= FEWEST) & (norm > limit)
        share = torch.where(acted, limit / norm, 1.0).float()
        for gradient in gradients:
            gradient.mul_(share)
        self._norms_W = torch.where(known, torch.cat((usual_W[1:], norm[None])), usual_W)
        return Clipped(norm, acted)

    def state_dict(self) -> list[float]:
        """What a resumed trainer goes on comparing with."""
        return [norm for norm in self._norms_W.tolist() if not math.isnan(norm)]

    def load_state_dict(self, norms: Sequence[float]) -> None:
        kept = list(norms)[-WINDOW:]
        self._norms_W = torch.tensor([math.nan] * (WINDOW - len(kept)) + kept, dtype=torch.float64)


def _median(norms_W: Tensor) -> Tensor:
    """Of those that are known, of an even number the mean of the two in the middle."""
    ordered_W, count = norms_W.sort().values, norms_W.isfinite().sum()  # NaN is sorted behind all else
    middle = torch.stack(((count - 1).clamp(min=0) // 2, count // 2))
    return ordered_W.index_select(0, middle).mean()


def still_learning(norm: float, skipped: int) -> int:
    """How many steps in a row were skipped by now, with one of this norm. Raises EtudeError where they are too many."""
    if math.isfinite(norm):
        return 0
    if skipped + 1 >= MAX_SKIPPED:
        raise EtudeError(f"the gradient was not finite {skipped + 1} steps in a row; lower the learning rate")
    return skipped + 1
