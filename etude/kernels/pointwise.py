"""What is done to each row, head or element by itself, on CPU, in one pass each: norms, rotations, activations.

Owns these kernels and their gradients, fp32. Torch's own give an element other bits by where it lies in the tensor (its
vectors have other functions than what is left over at the end), and take several passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from etude.kernels import vectors
from etude.kernels.vectors import LANES, in_parallel, kernel, load, part, store, times, total

Array = npt.NDArray[np.float32]
ROWS = 256
"""That a thread is worth starting for."""


def _floats(x: Tensor) -> Array:
    """Its rows, in fp32."""
    return x.detach().float().contiguous().view(-1, x.shape[-1]).numpy()


# --- RMS norm --------------------------------------------------------------------------------------------------------


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight, over the last dimension."""
    return _Norm.apply(x, weight_D, eps) if torch.is_grad_enabled() else _norm(x, weight_D, eps)[0]


def _norm(x: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    out, shares = torch.empty(x.shape), torch.empty(x.numel() // x.shape[-1])
    given, weight, said, inverse = _floats(x), weight_D.detach().float().numpy(), _floats(out), shares.numpy()
    in_parallel(len(given), ROWS, lambda its: norm_rows(given[its], weight, eps, said[its], inverse[its]))
    return out.to(x.dtype), shares


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        out, shares = _norm(x, weight_D, eps)
        ctx.save_for_backward(x, weight_D, shares)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight_D, shares = ctx.saved_tensors
        dx, dw = torch.empty(x.shape), torch.zeros(x.shape[-1])
        norm_slopes(
            _floats(x), weight_D.float().numpy(), shares.numpy(), _floats(grads[0]), _floats(dx), dw.numpy()
        )  # fmt: skip
        return dx.to(x.dtype), dw.to(weight_D.dtype), None


@kernel
def norm_rows(x: Array, weight: Array, eps: float, out: Array, shares: Array) -> None:
    """shares[m] = 1 / sqrt(mean(x[m]²) + eps); out[m] = x[m] * shares[m] * weight."""
    width = x.shape[1]
    whole = width // LANES * LANES
    for m in range(len(x)):
        squares = vectors.splat(np.float32(0.0))
        for c in range(m * width, m * width + whole, LANES):
            part = load(x, c)
            squares = vectors.add(squares, times(part, part))
        summed = total(squares)
        for c in range(whole, width):
            summed += x[m, c] * x[m, c]
        shares[m] = np.float32(1.0) / np.sqrt(summed / np.float32(width) + np.float32(eps))
        for c in range(width):
            out[m, c] = x[m, c] * shares[m] * weight[c]


@kernel
def norm_slopes(x: Array, weight: Array, shares: Array, grads: Array, dx: Array, dw: Array) -> None:
    """The gradients of `norm_rows`; adds to dw."""
    width = x.shape[1]
    for m in range(len(x)):
        dot = np.float32(0.0)
        for c in range(width):
            dx[m, c] = grads[m, c] * weight[c]
            dw[c] += grads[m, c] * x[m, c] * shares[m]
        for c in range(width):
            dot += dx[m, c] * x[m, c]
        pull = dot * shares[m] * shares[m] / np.float32(width)
        for c in range(width):
            dx[m, c] = (dx[m, c] - x[m, c] * pull) * shares[m]


# --- rotation --------------------------------------------------------------------------------------------------------


def rotate(x_NHC: Tensor, cos_NC: Tensor, sin_NC: Tensor) -> Tensor:
    """Turn each pair of channels (c, c + C/2) of a token's heads by its angle; the tables are C/2 wide."""
    return _Rotate.apply(x_NHC, cos_NC, sin_NC) if torch.is_grad_enabled() else _rotate(x_NHC, cos_NC, sin_NC)


def _rotate(x_NHC: Tensor, cos_NC: Tensor, sin_NC: Tensor) -> Tensor:
    out = torch.empty(x_NHC.shape)
    x, cos, sin, said = x_NHC.detach().float().contiguous().numpy(), cos_NC.numpy(), sin_NC.numpy(), out.numpy()
    in_parallel(len(x), ROWS, lambda its: rotate_rows(x[its], cos[its], sin[its], said[its]))
    return out.to(x_NHC.dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NHC: Tensor, cos_NC: Tensor, sin_NC: Tensor) -> Tensor:
        ctx.save_for_backward(cos_NC, sin_NC)
        return _rotate(x_NHC, cos_NC, sin_NC)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos_NC, sin_NC = ctx.saved_tensors
        return _rotate(grads[0], cos_NC, -sin_NC), None, None


@kernel
def rotate_rows(x: Array, cos: Array, sin: Array, out: Array) -> None:
    half = cos.shape[1]
    for n in range(x.shape[0]):
        for h in range(x.shape[1]):
            for c in range(half):
                first, second = x[n, h, c], x[n, h, half + c]
                out[n, h, c] = first * cos[n, c] - second * sin[n, c]
                out[n, h, half + c] = second * cos[n, c] + first * sin[n, c]


# --- activations -----------------------------------------------------------------------------------------------------


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), of rows, in fp32."""
    return _Sigmoid.apply(x) if torch.is_grad_enabled() else _sigmoid(x)


def _sigmoid(x: Tensor) -> Tensor:
    out = torch.empty(x.shape)
    sigmoid_rows(_floats(x), _floats(out))
    return out


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = _sigmoid(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return grads[0] * out * (1 - out)


@kernel
def sigmoid_rows(x: Array, out: Array) -> None:
    width = x.shape[1]
    row = np.zeros(width + LANES, np.float32)
    for m in range(len(x)):
        row[:width] = x[m]
        for c in range(0, width, LANES):
            store(vectors.sigmoid(load(row, c)), row, c)
        out[m] = row[:width]


def swiglu(hidden_MF: Tensor) -> Tensor:
    """silu(gate) * up, of rows gate | up."""
    return _Gated.apply(hidden_MF) if torch.is_grad_enabled() else _gated(hidden_MF)


def _gated(hidden_MF: Tensor) -> Tensor:
    out = torch.empty(len(hidden_MF), hidden_MF.shape[1] // 2)
    gated_rows(_floats(hidden_MF), out.numpy())
    return out.to(hidden_MF.dtype)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_MF: Tensor) -> Tensor:
        ctx.save_for_backward(hidden_MF)
        return _gated(hidden_MF)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (hidden_MF,) = ctx.saved_tensors
        out = torch.empty(hidden_MF.shape)
        gated_slopes(_floats(hidden_MF), _floats(grads[0]), out.numpy())
        return out.to(hidden_MF.dtype)


@part
def gated(hidden: Array, start: int, end: int, out: Array) -> None:
    """out[m] = silu(gate) * up for hidden[m] = gate | up, of rows from `start` to `end`."""
    width = out.shape[1]
    row = np.zeros(width + LANES, np.float32)
    for m in range(start, end):
        if width % LANES == 0:
            for c in range(m * width, (m + 1) * width, LANES):
                gate = load(hidden, c + m * width)
                store(times(times(gate, vectors.sigmoid(gate)), load(hidden, c + (m + 1) * width)), out, c)
        else:
            row[:width] = hidden[m, :width]
            for c in range(0, width, LANES):
                gate = load(row, c)
                store(times(gate, vectors.sigmoid(gate)), row, c)
            for c in range(width):
                out[m, c] = row[c] * hidden[m, width + c]


@kernel
def gated_rows(hidden: Array, out: Array) -> None:
    gated(hidden, 0, len(hidden), out)


@kernel
def gated_slopes(hidden: Array, grads: Array, out: Array) -> None:
    """The gradient of `gated`, of all rows."""
    width = grads.shape[1]
    row = np.zeros(width + LANES, np.float32)
    for m in range(len(hidden)):
        row[:width] = hidden[m, :width]
        for c in range(0, width, LANES):
            store(vectors.sigmoid(load(row, c)), row, c)
        for c in range(width):
            gate, share, slope = hidden[m, c], row[c], grads[m, c]
            out[m, c] = slope * hidden[m, width + c] * share * (np.float32(1.0) + gate * (np.float32(1.0) - share))
            out[m, width + c] = slope * gate * share
