"""A version that holds adapters, turned into the weights that an engine serves.

A trainer of adapters (LoRA) publishes the matrices that it began with, which never change, and two factors of each:
only these cost a version anything. Owns what stands between such a version and an engine: `merged`, which puts the
factors into their matrices by the trainer's own function, and checks that the result has the trainer's bits. Whoever
serves sees plain weights. Never fetches, and never touches a decoder.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from etude.errors import WeightError
from etude.models.adapters import INPUTS, OUTPUTS, merge
from etude.weights.forms import Array
from etude.weights.manifest import Bits, hash_of, root_of_hashes

ROOT = "adapted.root"
"""The array of a version that holds the root of its adapted matrices, as 8 numbers of the form fp32."""


def merged_root(matrices: Iterable[tuple[str, Array]]) -> Array:
    """The root (`weights.manifest`) of adapted matrices, given in the order of their names, as it travels."""
    return root_array((name, bits.shape, hash_of(bits)) for name, bits in matrices)


def root_array(hashed: Iterable[tuple[str, tuple[int, ...], str]]) -> Array:
    """The same from their names, shapes and the hashes of their bits."""
    root = root_of_hashes((name, "bf16", shape, bits_hash) for name, shape, bits_hash in hashed)
    return np.frombuffer(bytes.fromhex(root), "<u4").astype(np.uint32)


def adapted_names(bits: Bits) -> list[str]:
    """The matrices that have adapters in a version, in order."""
    return sorted(name.removesuffix(INPUTS) for name in bits if name.endswith(INPUTS))


def merged(bits: Bits) -> Bits:
    """What an engine serves of a version: without adapters the arrays given, with them those that they make. Raises
    WeightError where a part of an adapter is missing or does not fit, or the result is not what the trainer had.
    """
    adapted = adapted_names(bits)
    if not adapted and ROOT not in bits:
        return bits
    of_adapters = {ROOT, *(name + end for name in adapted for end in (INPUTS, OUTPUTS))}
    served = {name: array for name, array in bits.items() if name not in of_adapters}
    served |= {name: _merged(name, bits) for name in adapted}
    root = merged_root((name, served[name]) for name in adapted)
    if ROOT not in bits or not np.array_equal(root, bits[ROOT]):
        raise WeightError(
            "the adapters of this version do not make the matrices that their trainer had, so nothing of it is served: "
            "let the trainer and this engine have the same release of Etude"
        )
    return served


def _merged(name: str, bits: Bits) -> Array:
    parts = [bits.get(key) for key in (name, name + INPUTS, name + OUTPUTS)]
    weight, inputs, outputs = (_tensor(name, part) for part in parts)
    return merge(weight, inputs, outputs).view(torch.uint16).numpy()


def _tensor(name: str, part: Array | None) -> torch.Tensor:
    if part is None or part.dtype != np.uint16 or part.ndim not in (2, 3):
        raise WeightError(f"{name}: a matrix with an adapter comes as three arrays of bf16; publish the version again")
    return torch.from_numpy(part).view(torch.bfloat16)
