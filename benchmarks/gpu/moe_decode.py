"""A decoding step's experts, output by output, against the standard path of sorted tokens and grouped products.

    python benchmarks/gpu/moe_decode.py [--tokens 1 8 32] [--experts 128] [--top-k 8] [--width 2048]

The defaults are the expert layer of Qwen3-30B-A3B. Needs a CUDA device and Triton. The standard path is bf16: sort by
expert, gather, two `torch._grouped_mm`, silu and product between them, scatter back weighted. Ours is
`etude.kernels.triton_moe_decode` on the same weights in bf16, and on their MXFP8 codes. Both are checked against the
reference before they are timed. Times are medians of CUDA events with the L2 cache flushed, so weights come from memory
as they do in a model of many layers. `weights_gb_s` is the bytes of the experts that were used over the time, beside a
copy's bandwidth in the same run. The last line is one JSON object; the aim is a speedup of 1.5 or more.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from timing import device_name, flushed, median_ms, open_device
from torch import Tensor
from torch.nn import functional as F


def standard(x: Tensor, chosen: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Tokens sorted by expert, grouped products, tokens sorted back."""
    top_k = chosen.shape[1]
    by_expert = chosen.flatten().argsort(stable=True)
    ends = torch.bincount(chosen.flatten(), minlength=gate_up.shape[0]).cumsum(0).int()
    token_of = by_expert // top_k
    gate, up = torch._grouped_mm(x[token_of], gate_up, offs=ends).chunk(2, dim=-1)
    outputs = torch._grouped_mm(F.silu(gate) * up, down, offs=ends)
    weighted = outputs * gates.flatten()[by_expert, None].to(outputs.dtype)
    return torch.zeros_like(x).index_add(0, token_of, weighted)


def figures_of(tokens: int, options: argparse.Namespace, device: torch.device, flush: Tensor) -> dict[str, float]:
    from etude.kernels import moe_decode as reference
    from etude.kernels.triton_moe_decode import moe_decode

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    width, hidden = options.width, options.expert_width
    gate_up = drawn(options.experts, width, 2 * hidden) / width**0.5
    down = drawn(options.experts, hidden, width) / hidden**0.5
    x = drawn(tokens, width)
    gates, chosen = torch.randn(tokens, options.experts, device=device).softmax(-1).topk(options.top_k, dim=-1)
    plain = reference.Experts.of(gate_up, down)
    codes = reference.Experts.of(gate_up, down, as_mxfp8=True)
    for experts in (plain, codes):
        wanted = reference.moe_decode(x, chosen, gates, experts)
        torch.testing.assert_close(moe_decode(x, chosen, gates, experts), wanted, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(
        standard(x, chosen, gates, gate_up, down), reference.moe_decode(x, chosen, gates, plain), rtol=5e-2, atol=5e-2
    )
    base = median_ms(lambda: standard(x, chosen, gates, gate_up, down), flush)
    ours = median_ms(lambda: moe_decode(x, chosen, gates, plain), flush)
    low = median_ms(lambda: moe_decode(x, chosen, gates, codes), flush)
    used = 3 * width * hidden * 2 * len(chosen.unique())
    return {
        f"standard_us_{tokens}": 1000 * base, f"ours_us_{tokens}": 1000 * ours, f"mxfp8_us_{tokens}": 1000 * low,
        f"speedup_{tokens}": base / ours, f"mxfp8_speedup_{tokens}": base / low,
        f"weights_gb_s_{tokens}": used / ours / 1e6,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--expert-width", type=int, default=768)
    options = parser.parse_args()
    device = open_device()
    torch.manual_seed(0)
    flush = flushed(device)
    source, target = torch.empty_like(flush), torch.empty_like(flush)
    figures = {"copy_gb_s": 2 * source.numel() / median_ms(lambda: target.copy_(source), flush) / 1e6}
    for tokens in options.tokens:
        figures |= figures_of(tokens, options, device, flush)
    for name, figure in figures.items():
        print(f"{name:32} {figure:10.2f}")
    result: dict[str, Any] = {"device": device_name(), **vars(options), **figures}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
