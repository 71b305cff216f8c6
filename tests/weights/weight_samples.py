"""Small weights that move like a policy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.weights.manifest import Bits
from etude.weights.publisher import Publisher, PublisherConfig
from etude.weights.store import Store

SHAPES = {"embed": (64, 16), "layers.0.experts": (4, 16, 12), "layers.0.router": (7,), "norm": (33,), "scale": ()}


def make_bits(seed: int) -> Bits:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 1 << 16, shape, np.uint16) for name, shape in SHAPES.items()}


def move_bits(bits: Bits, seed: int, share: float = 0.05) -> Bits:
    """A copy with about `share` of the elements one step further, in any direction the patterns allow."""
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(
            array + np.where(rng.random(array.shape) < share, rng.choice([-1, 1], array.shape), 0), np.uint16
        )
        for name, array in bits.items()
    }


def publisher_on(store: Store, **settings: Any) -> Publisher:
    """Made with these settings, whether they are of its config or its own."""
    config = {key: settings.pop(key) for key in list(settings) if key in PublisherConfig.model_fields}
    return Publisher(store, PublisherConfig(**config), **settings)


def make_chain(length: int, seed: int = 0) -> list[Bits]:
    """The bits of `length` versions, each moved from the one before."""
    versions = [make_bits(seed)]
    for step in range(1, length):
        versions.append(move_bits(versions[-1], 1000 * seed + step))
    return versions


def same(a: Bits, b: Bits) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
