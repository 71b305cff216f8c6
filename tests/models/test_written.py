"""Weights written tensor by tensor, into the very files that the safetensors library makes of whole models."""

import json
import weakref

import pytest
import torch
from safetensors.torch import save_file

from etude.models.files import INDEX, WEIGHTS
from etude.models.published import KEPT_FP32
from etude.models.shards import write_weights

SHAPES = {"b": (3, 5), f"layer{KEPT_FP32}": (7,), "ä": (1,), "a": (2, 2, 2), "none": (0, 4)}


def tensor_of(name):
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(len(name)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16, torch.float64])
def test_a_file_is_the_librarys_byte_for_byte(dtype, tmp_path):
    write_weights(tmp_path, SHAPES, tensor_of, dtype)
    kept = {name: tensor_of(name).to(torch.float32 if name.endswith(KEPT_FP32) else dtype) for name in SHAPES}
    save_file(kept, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / WEIGHTS).read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("shard_bytes", [1 << 30, 40])
def test_one_tensor_is_in_memory_and_they_are_asked_for_in_order(shard_bytes, tmp_path):
    given = []

    def one(name):
        assert all(before() is None for _, before in given[:-1])
        tensor = tensor_of(name)
        given.append((name, weakref.ref(tensor)))
        return tensor

    write_weights(tmp_path, SHAPES, one, torch.bfloat16, shard_bytes)
    assert [name for name, _ in given] == list(SHAPES)
    if shard_bytes == 40:
        assert len(set(json.loads((tmp_path / INDEX).read_text())["weight_map"].values())) > 1
