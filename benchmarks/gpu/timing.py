"""What the benchmarks of this folder share: a refusal without a GPU, and the time of a call on the device."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

REPEATS = 30


def require_gpu() -> torch.device:
    """Ends the program where there is none."""
    if not torch.cuda.is_available():
        raise SystemExit(
            "benchmarks/gpu needs a CUDA device and torch's CUDA build, and this machine has none. The kernels are "
            "checked on CPU by `pytest tests/kernels`."
        )
    return torch.device("cuda")


def flushed(device: torch.device) -> Tensor:
    """More bytes than any L2 cache holds."""
    return torch.empty(1 << 28, dtype=torch.uint8, device=device)


def median_ms(call: Callable[[], Any], flush: Tensor) -> float:
    """Milliseconds of one call on the device: median over repeats, the L2 cache flushed before each."""
    for _ in range(3):
        call()
    times = []
    for _ in range(REPEATS):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)
