"""How a process keeps the memory of large arrays: it gives it back at once, for a model that is not tiny, or keeps it.

glibc puts a block into its heap rather than a mapping of its own below a size that grows, with what is freed, to
32 MiB. Activations of a published model are of 1 to 32 MiB and of as many sizes as there are batches: the heap of its
trainer grew to three times what it held (docs/results.md, "A published model"). With a fixed size each such array is a
mapping that ends with it. That costs page faults, 10 to 30% of a step; arrays of tiny models stay in the heap, and so
do those of a training that has the machine to itself. Owns the two settings. Elsewhere than on glibc it does nothing.
"""

from __future__ import annotations

import ctypes
import sys

from torch import nn

TINY = 2**25
"""Parameters below which nothing is changed."""
LARGE_BYTES = 2**21
KEPT_BYTES = 2**25
"""The most that glibc takes for a threshold."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def give_back_large_arrays(model: nn.Module) -> bool:
    """Whether it was done. For the process, and for as long as it lives."""
    is_tiny = sum(parameter.numel() for parameter in model.parameters()) < TINY
    return not is_tiny and _set(LARGE_BYTES, LARGE_BYTES)


def keep_large_arrays() -> bool:
    """The heap keeps all but the largest, as glibc's own threshold would in time. Whether it was done."""
    return _set(KEPT_BYTES, 2 * KEPT_BYTES)


def _set(mapped: int, trimmed: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:  # musl
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, mapped)) and bool(mallopt(_M_TRIM_THRESHOLD, trimmed))
