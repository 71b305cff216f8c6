"""What changed between two versions of a tensor, found on the GPU that holds them: Triton kernels.

Owns the half of a delta's encoding that looks at every weight: which elements differ, and by how many places in the
order of bf16 values. What comes off the device are gaps and steps of the changes alone, a percent or two of the tensor
at 8 bytes each, and `weights.rice` packs them into the payload that it would have made of the two tensors itself, byte
for byte. Imported only where Triton is: for tensors on a CUDA device, or in Triton's interpreter. Talks to nobody.

Two passes, both at the speed of memory: blocks count their changes; then each block, knowing how many lie before it,
writes its own in order. Nothing is sorted, and no order of blocks shows in the result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.errors import ConfigError

_BLOCK = 4096


class Changes(NamedTuple):
    """The changed elements of a flattened tensor, in order."""

    gaps: Tensor
    """int32 [C]: unchanged elements since the change before."""
    steps: Tensor
    """int32 [C]: places moved in the order of bf16 values, never 0."""


@triton.jit
def _ordered(bits):
    """The place of a bf16 pattern (seen as int16) among all, by value."""
    wide = bits.to(tl.int32) & 0xFFFF
    return tl.where(wide < 0x8000, wide, -(wide & 0x7FFF) - 1)


@triton.jit
def count_kernel(new, parent, counts, elements, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    changed = tl.load(new + at, mask=inside, other=0) != tl.load(parent + at, mask=inside, other=0)
    tl.store(counts + tl.program_id(0), tl.sum(changed.to(tl.int32), axis=0))


@triton.jit
def write_kernel(new, parent, ends, places, steps, elements, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < elements
    after = _ordered(tl.load(new + at, mask=inside, other=0))
    before = _ordered(tl.load(parent + at, mask=inside, other=0))
    changed = after != before
    ones = changed.to(tl.int32)
    slot = tl.load(ends + block) - tl.sum(ones, axis=0) + tl.cumsum(ones, axis=0) - 1
    tl.store(places + slot, at.to(tl.int32), mask=changed)
    tl.store(steps + slot, after - before, mask=changed)


def find_changes(new: Tensor, parent: Tensor) -> Changes:
    """What turns `parent` into `new`: two contiguous bf16 tensors of one shape on one device, of less than 2^31
    elements. Compared as bits: NaN payloads and the sign of zero count.

    Raises ConfigError for other tensors.
    """
    for tensor in (new, parent):
        if tensor.dtype != torch.bfloat16 or not tensor.is_contiguous() or tensor.numel() >= 1 << 31:
            raise ConfigError(
                f"deltas are found in contiguous bf16 tensors of less than 2^31 elements, not {tensor.dtype}"
            )
    if new.shape != parent.shape or new.device != parent.device:
        raise ConfigError(f"deltas: {tuple(new.shape)} on {new.device}, {tuple(parent.shape)} on {parent.device}")
    elements, blocks = new.numel(), triton.cdiv(new.numel(), _BLOCK)
    if elements == 0:
        none = torch.empty(0, dtype=torch.int32, device=new.device)
        return Changes(none, none)
    after, before = new.view(torch.int16), parent.view(torch.int16)
    counts = torch.empty(blocks, dtype=torch.int32, device=new.device)
    count_kernel[(blocks,)](after, before, counts, elements, BLOCK=_BLOCK)
    ends = counts.cumsum(0, dtype=torch.int32)
    places, steps = torch.empty(2, int(ends[-1]), dtype=torch.int32, device=new.device)
    write_kernel[(blocks,)](after, before, ends, places, steps, elements, BLOCK=_BLOCK)
    return Changes(places.diff(prepend=places.new_full((1,), -1)) - 1, steps)
