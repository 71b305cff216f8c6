"""A decoder's weights in the form that its engine serves: bf16 bits, and low-precision experts as codes and scales.

Owns the names and the way there and back, for the trainer that publishes and the engine that follows. Where experts
multiply in a block-scaled format, nobody who samples needs more of them than the codes of the forward's operands: a
third of the bytes change, and far fewer of them (`weights.forms`). A matrix NAME travels as

    NAME.codes    e4m3 [E, N, K] for MXFP8, e2m1x2 [E, N, K / 2] for NVFP4
    NAME.scales   e8m0 [E, N, K / 32], or e4m3 [E, N, K / 16]
    NAME.outer    NVFP4 only: fp32 [E, N, 1]

Codes are put in as they are, and not made anew from the values they stand for: where a block's largest value was
rounded down to half of its scale's reach, that would choose the next smaller scale. Never touches files or the network.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from etude.errors import WeightError
from etude.kernels import mxfp8, nvfp4
from etude.kernels.grouped_gemm import Codes
from etude.kernels.low_precision import ExpertLinear
from etude.models.decoder import Decoder
from etude.models.experts import MixtureOfExperts
from etude.models.state import export_bits, load_bits
from etude.weights.forms import Array, FormName, tagged
from etude.weights.manifest import Bits

_FORMS: dict[str, dict[str, FormName]] = {
    "mxfp8": {"codes": "e4m3", "scales": "e8m0"},
    "nvfp4": {"codes": "e2m1x2", "scales": "e4m3", "outer": "fp32"},
}


@torch.no_grad()
def export_served(decoder: Decoder, into: Bits | None = None, only: Collection[str] | None = None) -> Bits:
    """A copy of what an engine needs to serve these weights, or of `only` some of the arrays, in those of an earlier
    one if given. Raises WeightError for a value that bf16 cannot represent.
    """
    low = {name: (weight, product) for name, weight, product in _low_precision(decoder)}
    plain = {name for name, _ in decoder.named_parameters() if name not in low and (only is None or name in only)}
    former = None if into is None else {name: into[name] for name in plain}
    bits: Bits = dict(export_bits(decoder, former, plain))
    for name, (weight, product) in low.items():
        for part, array in _parts(product, product.codes(weight)).items():
            key = f"{name}.{part}"
            if only is not None and key not in only:
                continue
            bits[key] = array.copy() if into is None else into[key]
            if into is not None:
                np.copyto(bits[key], array)
    return bits


def served_names(decoder: Decoder) -> dict[str, tuple[str, ...]]:
    """Each parameter's name, and those of the arrays that it travels in."""
    low = {
        name: tuple(f"{name}.{part}" for part in _FORMS[product.recipe]) for name, _, product in _low_precision(decoder)
    }
    return {name: low.get(name, (name,)) for name, _ in decoder.named_parameters()}


@torch.no_grad()
def load_served(decoder: Decoder, bits: Mapping[str, np.ndarray]) -> None:
    """Overwrite every parameter in place, with codes where they travelled. Raises WeightError, before changing any, if
    these are another model's or another format's.
    """
    low = [entry for entry in _low_precision(decoder) if f"{entry[0]}.codes" in bits]
    made = {name: _codes(name, weight, product, bits) for name, weight, product in low}
    keys = {f"{name}.{part}" for name, _, product in low for part in _FORMS[product.recipe]}
    strange = sorted(key for key in bits if key not in keys and key.endswith((".codes", ".scales", ".outer")))
    if strange:
        raise WeightError(
            f"{strange[0]} holds codes, and this engine multiplies with none: give it the expert_format of its trainer"
        )
    load_bits(
        decoder,
        {key: array for key, array in bits.items() if key not in keys},
        [name for name, _ in decoder.named_parameters() if name not in made],
    )
    for name, weight, product in low:
        weight.copy_(_values(made[name]).transpose(1, 2))
        product.hold(weight, type(made[name])(*(part.to(weight.device) for part in made[name])))


def _low_precision(decoder: Decoder) -> Iterator[tuple[str, Tensor, ExpertLinear]]:
    """Name, weight [E, K, N] and product of every matrix that is multiplied in codes."""
    for name, module in decoder.named_modules():
        if isinstance(module, MixtureOfExperts) and isinstance(module.product, ExpertLinear):
            for key in ("gate_up", "down"):
                yield f"{name}.{key}", getattr(module, key), module.product


def _parts(product: ExpertLinear, codes: Codes) -> dict[str, Array]:
    """The arrays that codes travel in, which share memory with them."""
    found: dict[str, Array] = {}
    for part, form in _FORMS[product.recipe].items():
        values = getattr(codes, part).contiguous().cpu().numpy()
        found[part] = values.view(np.uint32) if form == "fp32" else tagged(form, values)
    return found


def _codes(name: str, weight: Tensor, product: ExpertLinear, bits: Mapping[str, np.ndarray]) -> Codes:
    """Codes from what travelled. Raises WeightError unless they are of this weight's shape and format."""
    expected, tensors = _parts(product, product.codes(weight)), []
    for part, like in expected.items():
        array = bits.get(f"{name}.{part}")
        if array is None or array.dtype != like.dtype or array.shape != like.shape:
            had = "is missing" if array is None else f"is {array.dtype} {array.shape}"
            raise WeightError(
                f"{name}.{part} {had}, and the engine's {product.recipe} needs {like.dtype} {like.shape}: give it the "
                "expert_format of its trainer"
            )
        plain = np.ascontiguousarray(array).view(np.float32 if like.dtype == np.uint32 else np.uint8)
        tensors.append(torch.from_numpy(plain.copy()))
    return mxfp8.MXFP8(*tensors) if product.recipe == "mxfp8" else nvfp4.NVFP4(*tensors)


def _values(codes: Codes) -> Tensor:
    """What the codes stand for: fp32 [E, N, K]."""
    return mxfp8.dequantise(codes) if isinstance(codes, mxfp8.MXFP8) else nvfp4.dequantise(codes)
