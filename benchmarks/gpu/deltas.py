"""Finding what changed on the device, as a share of the copy bandwidth measured beside it.

    python benchmarks/gpu/deltas.py [--elements 268435456] [--lr 3e-6]

Needs a CUDA device and Triton (which torch's CUDA builds bring). Normal weights of deviation 0.02 move by lr * u, u
normal. `find_share` counts the bytes that must be read, both versions once, over the time of all of `find_changes`, as
a share of the bandwidth of torch's own copy (read and written) in the same run; its two passes read them twice, so that
0.5 is as much as it can be where a tensor exceeds the cache. `enc_GBps` is raw bf16 over the time until the payload of
codec R is there: finding, copying the changes to the host, packing them on one core. Before anything is timed, the
payload is compared with the one that numba makes of the two tensors. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch
from timing import device_name, flushed, median_ms, open_device
from torch import Tensor

from etude.weights import rice


def payload_of(new: Tensor, parent: Tensor) -> bytes:
    """Codec R's payload, the device looking at every weight and the host at what changed."""
    from etude.kernels.triton_deltas import find_changes

    gaps, steps = (part.cpu().numpy() for part in find_changes(new, parent))
    payload = rice.pack(gaps.view(np.uint32), steps, new.numel(), 2 * new.numel())
    assert payload is not None
    return payload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--elements", type=int, default=1 << 28)
    parser.add_argument("--lr", type=float, default=3e-6)
    options = parser.parse_args()
    device = open_device()
    from etude.kernels.triton_deltas import find_changes

    master = torch.randn(options.elements, device=device) * 0.02
    parent = master.bfloat16()
    new = (master + options.lr * torch.randn(options.elements, device=device)).bfloat16()
    bits = [tensor.view(torch.int16).cpu().numpy().view(np.uint16) for tensor in (new, parent)]
    assert payload_of(new, parent) == rice.encode(*bits, 2 * options.elements)[1], "other bytes than numba's"
    flush, target = flushed(device), torch.empty_like(new)
    copy_ms, find_ms = median_ms(lambda: target.copy_(new), flush), median_ms(lambda: find_changes(new, parent), flush)
    started = time.perf_counter()
    payload_of(new, parent)
    encode_s = time.perf_counter() - started
    figures = {
        "changed": round(len(find_changes(new, parent).steps) / options.elements, 5),
        "copy_gb_s": round(4e-6 * options.elements / copy_ms, 1),
        "find_share": round(copy_ms / find_ms, 3),
        "enc_GBps": round(2e-9 * options.elements / encode_s, 2),
        "device": device_name(),
    }
    for name, value in figures.items():
        print(f"{name:12} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
