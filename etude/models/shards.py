"""Weights on their way into files of the published layout, one tensor at a time.

Owns which tensor goes into which file, the index of several, the dtype that each is stored in, and the safetensors file
itself: the library that reads it writes only what is whole in memory. A tensor is asked for when it is written, in the
order of the shapes, and is gone before the next. Knows no family and reads nothing (`models.checkpoint`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from etude.durable import write_whole
from etude.models.files import INDEX, WEIGHTS
from etude.models.published import KEPT_FP32

SHARD_BYTES = 5_000_000_000
Shapes = Mapping[str, Sequence[int]]
"""Published name → shape."""
_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


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
        held = {name: shapes[name] for name in names}
        write_whole(directory / file, partial(_write_file, shapes=held, tensor_of=tensor_of, dtype=dtype))
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": stored_bytes(shapes, dtype)}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _write_file(out: BinaryIO, shapes: Shapes, tensor_of: Callable[[str], Tensor], dtype: torch.dtype) -> None:
    """Byte for byte as the safetensors library lays a file out: wide numbers first, so that all are aligned."""
    stored = {name: stored_dtype(name, dtype) for name in shapes}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(shapes, key=lambda name: (-stored[name].itemsize, name)):
        begin, end = end, end + math.prod(shapes[name]) * stored[name].itemsize
        header[name] = {"dtype": _TYPES[stored[name]], "shape": list(shapes[name]), "data_offsets": [begin, end]}
    said = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    said += b" " * (-len(said) % 8)
    out.write(len(said).to_bytes(8, "little") + said)
    for name, shape in shapes.items():
        out.seek(8 + len(said) + header[name]["data_offsets"][0])
        out.write(_bytes(tensor_of(name).detach().reshape(tuple(shape)).to("cpu", stored[name])))


def _bytes(tensor: Tensor) -> Any:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data


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
