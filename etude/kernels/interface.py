"""What a decoder computes with, whatever computes it: the operations, as one interface.

Owns `Kernels`, which `exact`, `torch_kernels` and `triton_kernels` implement, and how the tokens of a packed axis see
each other: `Segments` for a trainer, `Cached` for an engine. Whoever multiplies or attends calls the kernels that its
decoder was given; none of them looks at where a tensor lies (`kernels.choice` does, once). Operations but those of
`exact` never read a value back to the host: shapes follow from shapes alone, so that a device is never waited for.

Shapes: M or N rows, B matrices side by side, K inputs, H heads, G key heads, C and V channels, E experts, D and F
widths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]
Name = Literal["exact", "torch", "triton"]


class Segments(Protocol):
    """Causal attention inside the segments of one packed axis; what it needs of their lengths is made once."""

    def attend(self, q_NHC: Tensor, k_NGC: Tensor, v_NGV: Tensor, scale: float) -> Tensor:
        """softmax(scale * q k) v of each token over its segment up to itself: [N, H, V]."""
        ...


class Cached(Protocol):
    """Causal attention of new tokens over the cache of their sequences, which has them already."""

    def attend(self, q_NHC: Tensor, keys_PGC: Tensor, values_PGV: Tensor, scale: float) -> Tensor:
        """[N, H, V]: each sequence's queries are its last tokens; the cache has P places."""
        ...


class Kernels(ABC):
    """The operations of a decoder. They have gradients where one is asked for; weights are parameters."""

    name: ClassVar[Name]
    on_host: ClassVar[bool]
    """Whether values lie in the host's memory, so that a look at one is no wait for a device."""

    @abstractmethod
    def linear(self, x_MK: Tensor, weight_NK: Tensor) -> Tensor:
        """x @ weight.T in the dtype of x."""

    @abstractmethod
    def products(self, x_MBK: Tensor, weight_BKN: Tensor, owner: Tensor) -> Tensor:
        """out[m, b] = x[m, b] @ weight[b]; the weights are a view of the parameter `owner`."""

    @abstractmethod
    def rms_norm(self, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x²) + eps) * weight, over the last dimension."""

    @abstractmethod
    def rotate(self, x_NHC: Tensor, cos_NC: Tensor, sin_NC: Tensor) -> Tensor:
        """Turn each pair of channels (c, c + C/2) of a token's heads by its angle; the tables are C/2 wide."""

    @abstractmethod
    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x)), of rows, in fp32."""

    @abstractmethod
    def swiglu(self, hidden_MF: Tensor) -> Tensor:
        """silu(gate) * up, of rows gate | up."""

    @abstractmethod
    def run_experts(
        self, x_ND: Tensor, experts_NK: Tensor, gates_NK: Tensor, gate_up_EDF: Tensor, down_EFD: Tensor
    ) -> Tensor:
        """Each token's experts' SwiGLU of it, weighted by the gates."""

    @abstractmethod
    def segments(self, lengths: Sequence[int], device: torch.device) -> Segments:
        """Segments of these lengths, in order, on a packed axis."""

    @abstractmethod
    def cached(self, counts: Sequence[int], places: Sequence[Ints], device: torch.device) -> Cached:
        """So many new tokens of each sequence, whose tokens, the new ones too, lie in these places of the cache."""

    @abstractmethod
    def low_rank(self, left_BMR: Tensor, right_BRN: Tensor) -> Tensor:
        """left @ right of factors that hold bf16 values, in fp32: of each element its R terms, added in order, each
        sum rounded once. So it has the same bits by any kernels on any device.
        """

    @property
    @abstractmethod
    def block_scaled(self) -> ModuleType:
        """The module of the three products on block-scaled operands (`grouped_gemm` is the reference)."""
