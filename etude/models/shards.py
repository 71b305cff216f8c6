"""Weights on their way into files of the published layout, one shard at a time.

Owns which tensor goes into which file, the index of several, and the dtype that each is stored in. Asks for a tensor
only when its file is written, so that a model which is converted is never whole in memory. Knows no family and reads
nothing (`models.checkpoint`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from etude.models.files import INDEX, WEIGHTS
from etude.models.published import KEPT_FP32

SHARD_BYTES = 5_000_000_000
Shapes = Mapping[str, Sequence[int]]
"""Published name → shape."""


def write_weights(
    directory: Path,
    shapes: Shapes,
    tensor_of: Callable[[str], Tensor],
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """More than `shard_bytes` become several files with an index."""
    shards = list(_shards(shapes, dtype, shard_bytes))
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        stored = {name: tensor_of(name).to(stored_dtype(name, dtype)).contiguous().clone() for name in names}
        save_file(stored, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": stored_bytes(shapes, dtype)}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def stored_bytes(shapes: Shapes, dtype: torch.dtype) -> int:
    """What so many tensors take on a disk."""
    return sum(math.prod(shape) * stored_dtype(name, dtype).itemsize for name, shape in shapes.items())


def stored_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """A checkpoint's own, but for what is fp32 in all of them."""
    return torch.float32 if name.endswith(KEPT_FP32) else dtype


def _shards(shapes: Shapes, dtype: torch.dtype, limit: int) -> Iterator[list[str]]:
    """Names in order, as many a shard as fit; a larger tensor is a shard of its own."""
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        bytes_ = math.prod(shape) * stored_dtype(name, dtype).itemsize
        if names and size + bytes_ > limit:
            yield names
            names, size = [], 0
        names.append(name)
        size += bytes_
    yield names
