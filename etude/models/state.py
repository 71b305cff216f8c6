"""A decoder's weights as named arrays of bf16 bits: the form that is published, hashed and compared.

Owns the conversion both ways. A policy's weights are always exactly representable in bf16 (the trainer rounds its fp32
masters), so the bits are lossless whatever dtype the forward runs in. Buffers (a sigmoid router's selection bias) come
with the base checkpoint, never change and are no part of the bits. Never touches files or the network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch

from etude.errors import WeightError
from etude.models.decoder import Decoder

Bits = dict[str, np.ndarray]
"""Parameter name → uint16 array, each element the bits of one bf16 value."""


@torch.no_grad()
def export_bits(decoder: Decoder, into: Bits | None = None, only: Collection[str] | None = None) -> Bits:
    """A copy of every parameter, or of `only` some, as bf16 bits, in the arrays of an earlier one if given. Raises
    WeightError if a value is not representable, for then the copy would differ.
    """
    parameters = {name: parameter for name, parameter in decoder.named_parameters() if only is None or name in only}
    bits = into or {name: np.empty(parameter.shape, np.uint16) for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        bf16_bits(name, parameter, bits[name])
    return bits


@torch.no_grad()
def bf16_bits(name: str, values: torch.Tensor, into: np.ndarray | None = None) -> np.ndarray:
    """A copy of these values as bf16 bits, in an array if given. Raises WeightError, calling them `name`, if one is not
    representable.
    """
    rounded = values.detach().to(torch.bfloat16)
    if not torch.equal(rounded.to(values.dtype), values):
        raise WeightError(f"{name} holds values that bf16 cannot represent; round the policy's weights before export")
    bits = np.empty(values.shape, np.uint16) if into is None else into
    torch.from_numpy(bits).copy_(rounded.contiguous().view(torch.uint16))
    return bits


@torch.no_grad()
def load_bits(decoder: Decoder, bits: Mapping[str, np.ndarray], only: Collection[str] | None = None) -> None:
    """Overwrite every parameter, or `only` some, in place. Raises WeightError on a missing, unknown or misshapen name,
    or bits of another form, before changing any.
    """
    parameters = {name: parameter for name, parameter in decoder.named_parameters() if only is None or name in only}
    if parameters.keys() != bits.keys():
        raise WeightError(
            f"weights do not fit the model: names that differ are {sorted(parameters.keys() ^ bits.keys())}"
        )
    for name, parameter in parameters.items():
        if tuple(parameter.shape) != bits[name].shape:
            raise WeightError(f"{name}: shape {bits[name].shape} does not fit the model's {tuple(parameter.shape)}")
        if bits[name].dtype != np.uint16:
            raise WeightError(
                f"{name}: a decoder takes bits of bf16, and these are {bits[name].dtype}; follow its chain"
            )
    for name, parameter in parameters.items():
        parameter.copy_(torch.from_numpy(bits[name]).view(torch.bfloat16))


@torch.no_grad()
def round_to_bf16(decoder: Decoder) -> None:
    """Round every parameter, in place, to the nearest bf16 value."""
    for parameter in decoder.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))


@torch.no_grad()
def hold_in_bf16(decoder: Decoder) -> None:
    """Hold the blocks' matrices in bf16, rounding them: half of the memory for whoever is to serve published bits.
    They are multiplied as before, widened to fp32 and with fp32 sums, so no bit of a result changes. Not for what is
    trained: a gradient would be as coarse.
    """
    for name, parameter in decoder.named_parameters():
        if name.startswith("blocks.") and parameter.dim() > 1:
            parameter.requires_grad_(False).data = parameter.data.bfloat16()
