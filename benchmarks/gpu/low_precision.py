"""Quantise kernels as a share of the copy bandwidth measured beside them, and grouped products against bf16.

    python benchmarks/gpu/low_precision.py [--rows 32768] [--experts 8] [--width 4096] [--expert-width 2048]

Needs a CUDA device and Triton (which torch's CUDA builds bring). Every figure is the median over repeats of CUDA-event
times, after a warm-up, with the L2 cache flushed before each. A kernel's bytes are what it must move: the bf16 input
once, codes and scales once. The copy is torch's own, of the same input (read and written), in the same run. Products
are the three of one linear layer of experts, quantising included, against `torch._grouped_mm` in bf16 on
the same rows. Before anything is timed, each kernel's bytes are compared with the torch reference's.

On Hopper the products decode codes to bf16 in registers (no FP4 there), so at best they equal bf16; see
`etude.kernels.triton_grouped_gemm`. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from timing import device_name, flushed, median_ms, open_device
from torch import Tensor


def size(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_bytes(x: Tensor, groups: Any) -> None:
    """The kernels' bytes are the references', on this device."""
    from etude.kernels import mxfp8, nvfp4, triton_quantise
    from etude.kernels.scale_layout import swizzle

    got, wanted = triton_quantise.mxfp8_rows(x, groups), mxfp8.quantise(x)
    assert torch.equal(got.codes, wanted.codes) and torch.equal(got.scales, swizzle(groups.pad(wanted.scales)))
    got, wanted = triton_quantise.nvfp4_rows(x, groups), nvfp4.quantise(x)
    assert torch.equal(got.codes, wanted.codes) and torch.equal(got.outer, wanted.outer)
    assert torch.equal(got.scales, swizzle(groups.pad(wanted.scales)))
    got, wanted = triton_quantise.mxfp8_columns(x, groups), mxfp8.quantise(groups.pad(x).T.contiguous())
    assert torch.equal(got.codes, wanted.codes) and torch.equal(got.scales, swizzle(wanted.scales))


def quantise_figures(x: Tensor, groups: Any, flush: Tensor) -> dict[str, float]:
    """GB/s of the copy, and of each kernel as a share of it."""
    from etude.kernels import triton_quantise

    target = torch.empty_like(x)
    copy = 2 * size(x) / median_ms(lambda: target.copy_(x), flush) / 1e6
    figures = {"copy_gb_s": copy}
    for name in ("mxfp8_rows", "mxfp8_columns", "nvfp4_rows"):
        kernel = getattr(triton_quantise, name)
        moved = size(x) + size(*kernel(x, groups))
        figures[f"{name}_share"] = moved / median_ms(lambda kernel=kernel: kernel(x, groups), flush) / 1e6 / copy
    return figures


def product_figures(x: Tensor, weight: Tensor, grad: Tensor, ends: Tensor, flush: Tensor) -> dict[str, float]:
    """TFLOP/s of bf16, and times faster than it (below 1: slower) of each product, quantising included."""
    from etude.kernels import triton_grouped_gemm as kernels

    offsets, work = ends.int(), 2 * x.shape[0] * weight.shape[1] * weight.shape[2]
    transposed = weight.transpose(1, 2)
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "forward_mxfp8": (
            lambda: torch._grouped_mm(x, weight, offs=offsets),
            lambda: kernels.forward(x, weight, ends, "mxfp8"),
        ),
        "forward_nvfp4": (
            lambda: torch._grouped_mm(x, weight, offs=offsets),
            lambda: kernels.forward(x, weight, ends, "nvfp4"),
        ),
        "data_gradient": (
            lambda: torch._grouped_mm(grad, transposed, offs=offsets),
            lambda: kernels.data_gradient(grad, weight, ends),
        ),
        "weight_gradient": (
            lambda: torch._grouped_mm(x.T, grad, offs=offsets),
            lambda: kernels.weight_gradient(x, grad, ends),
        ),
    }
    figures = {}
    for name, (baseline, ours) in calls.items():
        base = median_ms(baseline, flush)
        figures[f"{name}_bf16_tflops"] = work / base / 1e9
        figures[f"{name}_speedup"] = base / median_ms(ours, flush)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=32768, help="tokens times experts per token")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--expert-width", type=int, default=2048)
    options = parser.parse_args()
    device = open_device()
    from etude.kernels.groups import Groups

    torch.manual_seed(0)
    shares = torch.softmax(torch.randn(options.experts), 0)  # experts are not equally liked
    ends = (shares.cumsum(0) * options.rows).round().long()
    ends[-1] = options.rows
    ends = ends.to(device)
    x = torch.randn(options.rows, options.width, device=device, dtype=torch.bfloat16)
    grad = torch.randn(options.rows, options.expert_width, device=device, dtype=torch.bfloat16)
    weight = torch.randn(options.experts, options.width, options.expert_width, device=device, dtype=torch.bfloat16)
    groups, flush = Groups.of(ends, options.rows), flushed(device)
    check_bytes(x[: options.rows // 8], Groups.of(ends.clamp(max=options.rows // 8), options.rows // 8))
    figures = quantise_figures(x, groups, flush) | product_figures(x, weight / 64, grad, ends, flush)
    for name, figure in figures.items():
        print(f"{name:32} {figure:10.2f}")
    result: dict[str, Any] = {"device": device_name(), **vars(options), **figures}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
