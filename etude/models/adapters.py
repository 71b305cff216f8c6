"""Low-rank adapters (LoRA, arXiv 2106.09685) of a decoder's matrices: their names, their start, how they are merged.

Owns the one function that makes an adapted matrix, `merge`: trainer and engine call it, so that both multiply with the
same bits. A matrix W has two factors of rank r, called `W.lora_a`, which reads its inputs, and `W.lora_b`, which writes
its outputs. All three hold bf16 values, and what is served is

    bf16(W + SCALE * lora_b lora_a)         W [out, in], lora_a [r, in], lora_b [out, r]
    bf16(W + SCALE * lora_a lora_b)         a stack of experts: W [E, in, out], lora_a [E, in, r], lora_b [E, r, out]

computed in fp32: an element of the product is its r terms added in order, rounded after each (`Kernels.low_rank`),
then scaled, then added to W, each rounded once. So any machine and any device get the same bits. Never trains anything,
and knows nothing of versions.
"""

from __future__ import annotations

import zlib
from typing import Literal

import torch
from torch import Tensor

from etude.errors import WeightError
from etude.kernels.exact import EXACT
from etude.kernels.interface import Kernels

SCALE = 2.0
"""LoRA's alpha over its rank. It is no option: the learning rate moves the factors, and moves them by more."""
INPUTS, OUTPUTS = ".lora_a", ".lora_b"
Kind = Literal["embeddings", "head", "norms", "routers", "attention", "dense", "experts"]


def kind_of(name: str) -> Kind:
    """Which part of a decoder a parameter belongs to, by its name. Biases are of the matrix that they go with."""
    if name.startswith("embed."):
        return "embeddings"
    if name.startswith("head."):
        return "head"
    if "norm" in name:
        return "norms"
    if ".router." in name:
        return "routers"
    if ".attention." in name:
        return "attention"
    return "experts" if name.endswith((".mlp.gate_up", ".mlp.down")) else "dense"


def layer_of(name: str) -> int | None:
    """The block that a parameter belongs to, counted from 0; None for what is outside the blocks."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else None


def new_factors(name: str, weight: Tensor, rank: int) -> dict[str, Tensor]:
    """An adapter's two factors in fp32, by their names: nothing is added to the weight at first, as the outputs' factor
    is zero. The other's bits follow from the name alone, so that all ranks and each resumed run begin alike.
    """
    *stack, rows_, columns = weight.shape
    width = rows_ if stack else columns
    shape = (*stack, width, rank) if stack else (rank, width)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    inputs = (torch.rand(shape, generator=generator) * 2 - 1) * width**-0.5
    outputs = torch.zeros((*stack, rank, columns) if stack else (rows_, rank))
    return {name + INPUTS: inputs, name + OUTPUTS: outputs}


def ordered(weight: Tensor, inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The factors in the order in which their product has the weight's shape."""
    return (outputs, inputs) if weight.dim() == 2 else (inputs, outputs)


@torch.no_grad()
def merge(weight: Tensor, inputs: Tensor, outputs: Tensor, kernels: Kernels = EXACT) -> Tensor:
    """The adapted matrix in bf16, of a weight and factors that hold bf16 values. Raises WeightError where their
    shapes do not fit.
    """
    left, right = ordered(weight, inputs, outputs)
    if left.shape[:-1] != weight.shape[:-1] or right.shape != (*weight.shape[:-2], left.shape[-1], weight.shape[-1]):
        shapes = ", ".join(str(tuple(each.shape)) for each in (weight, inputs, outputs))
        raise WeightError(f"a matrix and the two factors of its adapter do not fit each other: {shapes}")
    left, right = (each[None] if weight.dim() == 2 else each for each in (left, right))
    added = kernels.low_rank(left.float(), right).reshape(weight.shape)
    return added.mul_(SCALE).add_(weight).bfloat16()  # three steps, each rounded: `alpha` of add_ might fuse two


@torch.no_grad()
def factor_gradients(weight: Tensor, gradient: Tensor, inputs: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """From the gradient of the adapted matrix to those of its factors, the inputs' first. Rounding counts as none."""
    left, right = ordered(weight, inputs, outputs)
    of_left, of_right = SCALE * gradient @ right.mT, SCALE * left.mT @ gradient
    return (of_right, of_left) if weight.dim() == 2 else (of_left, of_right)
