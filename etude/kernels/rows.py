"""Matrix products whose rows do not depend on how many rows there are.

Owns dense products on CPU, with their gradient, and the weights laid out for them. A library chooses its routine by
shape and each adds up in another order, so that a token decoded alone would get other bits than the same token
prefilled. Here an element is the sum over k in fp32, one fused multiply-add each, TERMS of them in order and then the
sums of those in order (`kernels.vectors`), rounded once to the dtype of its input.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from etude.kernels.vectors import LANES, ROWS, TERMS, VECTORS, in_parallel, kernel, load, multiply, part, store

Array = npt.NDArray[np.float32]
Panels = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""Weights [B, panels, K, PANEL], as floats or, where nothing is lost by it, as the bits of bf16."""
PANEL = LANES * VECTORS
"""Columns that lie together in packed weights."""
DEPTH = 4 * TERMS
"""Rows of a panel that are widened at once: they stay in a near cache, and are whole TERMS, so they change no bit."""
BLOCK = 16 * ROWS
"""Rows that go through a panel before its next part does."""
FEW = 4 * ROWS
"""Rows up to which a panel is widened anew for each tile."""


@kernel
def panels_product(x: Array, w: Panels, out: Array) -> None:
    """out[m, b] = x[m, b] @ w[b]: x [M, B, K], w [B, panels, K, PANEL], out [M, B, N], all contiguous."""
    count, batch, depth = x.shape
    width = out.shape[2]
    aside = np.empty((BLOCK + DEPTH) * PANEL, np.float32)
    for start in range(0, count, BLOCK):
        for b in range(batch):
            times_panels(
                x, (start * batch + b) * depth, batch * depth, min(BLOCK, count - start), w, b, depth, aside,
                out, (start * batch + b) * width, batch * width, width,
            )  # fmt: skip


@part
def times_panels(x, x_at, x_row, rows, panels, b, depth, aside, out, out_at, out_row, width):
    """out = x @ the b-th weights, of rows <= BLOCK; `aside` holds the panel's part at work where many tiles share it,
    and a last panel's result, whose columns need not be whole vectors.
    """
    for p in range(panels.shape[1]):
        columns = min(PANEL, width - p * PANEL)
        vectors = (columns + LANES - 1) // LANES
        direct = rows <= FEW or columns % LANES > 0
        together = depth if direct else DEPTH
        for k in range(0, depth, together):
            some, at = min(together, depth - k), ((b * panels.shape[1] + p) * depth + k) * PANEL
            if not direct:
                for i in range(0, some * PANEL, LANES):
                    store(load(panels, at + i), aside, i)
            for r in range(0, rows, ROWS):
                tall, from_x = min(ROWS, rows - r), x_at + r * x_row + k
                if columns % LANES:
                    to = (DEPTH + r) * PANEL
                    multiply(x, from_x, x_row, 1, panels, at, PANEL, aside, to, PANEL, some, tall, vectors, k > 0, 0)
                elif direct:
                    to = out_at + r * out_row + p * PANEL
                    multiply(x, from_x, x_row, 1, panels, at, PANEL, out, to, out_row, some, tall, vectors, k > 0, 0)
                else:
                    to = out_at + r * out_row + p * PANEL
                    multiply(x, from_x, x_row, 1, aside, 0, PANEL, out, to, out_row, some, tall, vectors, k > 0, 0)
        if columns % LANES:
            flat = out.reshape(-1)
            for r in range(rows):
                for c in range(columns):
                    flat[out_at + r * out_row + p * PANEL + c] = aside[(DEPTH + r) * PANEL + c]


# --- weights ---------------------------------------------------------------------------------------------------------

_packed: dict[int, tuple[weakref.ref[Tensor], int, dict[Any, Panels]]] = {}
"""id of a parameter → itself, its version when it was packed, and panels of views of it"""


def packed(weight_BKN: Tensor, owner: Tensor) -> Panels:
    """A view of the parameter `owner` as panels, zeros beyond N.

    Kept as long as the parameter lives and is not written to. Torch counts writes; those through `.data` or numpy it
    does not see.
    """
    found = _packed.get(id(owner))
    if found is None or found[0]() is not owner or found[1] != owner._version:
        number = id(owner)
        found = _packed[number] = (weakref.ref(owner, lambda _: _packed.pop(number, None)), owner._version, {})
    key = (weight_BKN.data_ptr(), weight_BKN.shape, weight_BKN.stride())
    panels = found[2].get(key)
    if panels is None:
        panels = found[2][key] = _pack(weight_BKN.detach())
    return panels


def _pack(weight_BKN: Tensor) -> Panels:
    rounded = weight_BKN.bfloat16()
    kept = rounded if torch.equal(rounded.to(weight_BKN.dtype), weight_BKN) else weight_BKN.float()
    filled_BKN = F.pad(kept, (0, -weight_BKN.shape[2] % PANEL))
    panels = filled_BKN.unflatten(2, (-1, PANEL)).transpose(1, 2).contiguous()
    return (panels.view(torch.uint16) if panels.dtype == torch.bfloat16 else panels).numpy()


# --- products --------------------------------------------------------------------------------------------------------


def linear(x_MK: Tensor, weight_NK: Tensor) -> Tensor:
    """x @ weight.T in the dtype of x, each row of it whatever the others are; `weight` is a parameter."""
    return products(x_MK[:, None], weight_NK.mT[None], weight_NK)[:, 0]


def products(x_MBK: Tensor, weight_BKN: Tensor, owner: Tensor) -> Tensor:
    """out[m, b] = x[m, b] @ weight[b] in the dtype of x; the weights are a view of the parameter `owner`."""
    if torch.is_grad_enabled():
        return _Products.apply(x_MBK, weight_BKN, owner)
    return _products(x_MBK, weight_BKN, owner)


def _products(x_MBK: Tensor, weight_BKN: Tensor, owner: Tensor) -> Tensor:
    out_MBN = torch.empty((*x_MBK.shape[:2], weight_BKN.shape[2]))
    x, out, panels = x_MBK.float().contiguous().numpy(), out_MBN.numpy(), packed(weight_BKN, owner)
    in_parallel(len(x), BLOCK, lambda rows: panels_product(x[rows], panels, out[rows]))
    return out_MBN.to(x_MBK.dtype)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MBK: Tensor, weight_BKN: Tensor, owner: Tensor) -> Tensor:
        ctx.save_for_backward(x_MBK, weight_BKN)
        return _products(x_MBK, weight_BKN, owner)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_MBK, weight_BKN = ctx.saved_tensors
        x_BMK, grad_BMN = x_MBK.transpose(0, 1), grads[0].transpose(0, 1)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = (grad_BMN @ weight_BKN.to(grad_BMN.dtype).mT).transpose(0, 1)
        if ctx.needs_input_grad[1]:
            dw = (x_BMK.mT @ grad_BMN).to(weight_BKN.dtype)
        return dx, dw, None
