"""What supervised training in bf16 computes with on a CPU: torch's products, and what the exact kernels do faster.

Owns nothing but the choice. Nobody has to get the same bits as such a training, so products may be torch's, which are
several times as fast in bf16 as exact ones in fp32. Attention, norms and rotations are the other way round: torch's
attention takes a third longer than the exact kernel, and pads; the others take several passes (`docs/results.md`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from etude.kernels.exact import EXACT
from etude.kernels.interface import Segments
from etude.kernels.torch_kernels import TorchKernels


class HostKernels(TorchKernels):
    """On a CPU only."""

    def rms_norm(self, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        return EXACT.rms_norm(x, weight_D, eps)

    def rotate(self, x_NHC: Tensor, cos_NC: Tensor, sin_NC: Tensor) -> Tensor:
        return EXACT.rotate(x_NHC, cos_NC, sin_NC)

    def segments(self, lengths: Sequence[int], device: torch.device) -> Segments:
        return EXACT.segments(lengths, device)


ON_HOST = HostKernels()
