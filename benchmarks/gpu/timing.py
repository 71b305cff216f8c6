"""What the programs of this folder share: the device, its name, and the time of a call on it.

    python benchmarks/gpu/timing.py     # one JSON line: the GPU and what drives it; "device" null: none

The device is the GPU. With TRITON_INTERPRET=1 it is the CPU, and kernels run in Triton's interpreter: given small sizes
a program then proves itself and its kernels without a GPU. What it prints of time measures nothing there, and its
"device" says so.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import Tensor

REPEATS = 30
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
INTERPRETER = "Triton's interpreter on a CPU: its times measure nothing"


def open_device() -> torch.device:
    """Ends the program where there is none."""
    if INTERPRETED:
        _as_on_a_device()
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit(
            "benchmarks/gpu needs a CUDA device and torch's CUDA build, and this machine has none. With "
            "TRITON_INTERPRET=1 and small sizes the program runs in Triton's interpreter; "
            "`python benchmarks/gpu/session.py` does so for all of them."
        )
    return torch.device("cuda")


def device_name() -> str:
    return INTERPRETER if INTERPRETED else torch.cuda.get_device_name()


def interpreted_dot(builder: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
    """A product of Triton's interpreter in which a row depends on no other row, as on a device. Its own is numpy's,
    which treats rows by their place in the tile.
    """
    from triton.runtime.interpreter import TensorHandle

    product = np.einsum("ik,kj->ij", a.data, b.data, dtype=d.data.dtype, optimize=False)
    return TensorHandle(product + d.data, d.dtype.scalar)


def _as_on_a_device() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    torch.set_num_threads(1)
    InterpreterBuilder.create_dot = interpreted_dot


def flushed(device: torch.device) -> Tensor:
    """More bytes than any L2 cache holds; few for the interpreter."""
    return torch.empty(1 << 16 if INTERPRETED else 1 << 28, dtype=torch.uint8, device=device)


def median_ms(call: Callable[[], Any], flush: Tensor) -> float:
    """Milliseconds of one call on the device: median over repeats, the L2 cache flushed before each."""
    if INTERPRETED:
        started = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - started)
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


def machine() -> dict[str, Any]:
    """The GPU, None where torch sees none, and the versions of what drives it."""
    found: dict[str, Any] = {"device": None, "cores": os.cpu_count(), "python": platform.python_version()}
    for package in ("torch", "triton", "transformers", "trl"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    if torch.cuda.is_available():
        told = torch.cuda.get_device_properties(0)
        found |= {"device": told.name, "memory_gb": round(told.total_memory / 1e9, 1), "cuda": torch.version.cuda}
        found["capability"] = f"{told.major}.{told.minor}"
    return found


if __name__ == "__main__":
    print(json.dumps(machine()))
