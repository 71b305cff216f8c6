"""What it costs on a GPU that bits do not depend on the batch: our kernels of one order against torch's own.

    python benchmarks/gpu/batch_invariance.py [--width 2048] [--heads 32] [--groups 4] [--channels 128] [--context 4096]

Needs a CUDA device and Triton. For a decoding batch of 1 and of 64, and for a prefill of one context, in bf16: the time
of `triton_invariant.linear`, `rms_norm` and `attention` over that of `F.linear`, `F.rms_norm` and
`scaled_dot_product_attention`, which choose their routine by shape. A cost of 1 is none. A row must have the same bits
alone and in a batch from our kernels; the share of rows that torch gives other bits is printed beside it. Times are
medians of CUDA events with the L2 cache flushed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from timing import device_name, flushed, median_ms, open_device
from torch import Tensor
from torch.nn import functional as F

EPS = 1e-6


def share_that_differs(ours: Tensor, alone: list[Tensor]) -> float:
    return sum(not torch.equal(row, whole[None]) for row, whole in zip(alone, ours, strict=True)) / len(alone)


def check_bits(x: Tensor, weight: Tensor) -> dict[str, float]:
    """Rows alone against rows together."""
    from etude.kernels.triton_invariant import linear

    figures = {}
    for name, product in (("ours", linear), ("torch", F.linear)):
        together = product(x, weight)
        alone = [product(x[at : at + 1], weight) for at in range(min(64, len(x)))]
        figures[f"{name}_rows_that_differ"] = share_that_differs(together[: len(alone)], alone)
    assert figures["ours_rows_that_differ"] == 0
    return figures


def attention_calls(queries: int, batch: int, options: argparse.Namespace, device: torch.device) -> tuple[Any, Any]:
    """(torch's, ours): `batch` sequences, the last `queries` tokens of each."""
    from etude.kernels.triton_invariant import attention

    def drawn(heads: int, tokens: int) -> Tensor:
        return torch.randn(batch, heads, tokens, options.channels, device=device, dtype=torch.bfloat16)

    q, k, v = (
        drawn(options.heads, queries), drawn(options.groups, options.context), drawn(options.groups, options.context),
    )  # fmt: skip
    packed = [x.transpose(1, 2).flatten(0, 1).contiguous() for x in (q, k, v)]
    steps = torch.arange(1, batch + 1, device=device)
    scale = options.channels**-0.5

    def theirs() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=queries > 1, enable_gqa=True)

    def ours() -> Tensor:
        return attention(*packed, steps * queries, steps * options.context, scale)

    wanted = theirs().transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(ours(), wanted, rtol=3e-2, atol=3e-2)
    return theirs, ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--context", type=int, default=4096)
    options = parser.parse_args()
    device = open_device()
    from etude.kernels.triton_invariant import linear, rms_norm

    torch.manual_seed(0)
    flush = flushed(device)
    weight = torch.randn(options.width, options.width, device=device, dtype=torch.bfloat16) / options.width**0.5
    scale = torch.rand(options.width, device=device, dtype=torch.bfloat16)
    figures: dict[str, float] = {}
    for name, rows, queries, batch in (
        ("decode_1", 1, 1, 1), ("decode_64", 64, 1, 64), ("prefill", options.context, options.context, 1),
    ):  # fmt: skip
        x = torch.randn(rows, options.width, device=device, dtype=torch.bfloat16)
        theirs, ours = attention_calls(queries, batch, options, device)
        calls = {
            "linear": (lambda x=x: F.linear(x, weight), lambda x=x: linear(x, weight)),
            "rms_norm": (
                lambda x=x: F.rms_norm(x, (options.width,), scale, EPS), lambda x=x: rms_norm(x, scale, EPS),
            ),
            "attention": (theirs, ours),
        }  # fmt: skip
        for kernel, (usual, fixed) in calls.items():
            figures[f"{kernel}_{name}_cost"] = median_ms(fixed, flush) / median_ms(usual, flush)
    figures |= check_bits(torch.randn(256, options.width, device=device, dtype=torch.bfloat16), weight)
    for name, figure in figures.items():
        print(f"{name:32} {figure:10.2f}")
    print(json.dumps({"device": device_name(), **vars(options), **figures}))


if __name__ == "__main__":
    main()
