"""One token of each row of a distribution, on CPU, in one pass: the most likely one, or one drawn by its number.

Owns the kernel and its arithmetic: sums of fp32 probabilities in fp64, in order, each rounded to fp32, which is how
`torch.cumsum` adds. A row's token depends on no other row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from etude.kernels.vectors import kernel

Array = npt.NDArray[np.float32]
TOGETHER = 4
"""Rows added up side by side: each sum waits for the one before it, those of other rows need not."""


@kernel
def draw_rows(
    logprobs: Array, probabilities: Array, greedy: npt.NDArray[np.bool_], uniforms: Array, tokens: npt.NDArray[np.int64]
) -> None:
    """tokens[r] = the first most likely of a greedy row; else the first whose cumulative probability is above
    uniforms[r] of the row's total. `probabilities` of greedy rows are not read.
    """
    width = logprobs.shape[1]
    drawn = np.empty(len(tokens), np.int64)
    count = 0
    for r in range(len(tokens)):
        if greedy[r]:
            best = 0
            for v in range(1, width):
                if logprobs[r, v] > logprobs[r, best]:
                    best = v
            tokens[r] = best
        else:
            drawn[count] = r
            count += 1
    sums = np.empty(TOGETHER)
    cumulative = np.empty((TOGETHER, width), np.float32)
    for start in range(0, count, TOGETHER):
        some = min(TOGETHER, count - start)
        sums[:] = 0.0
        for v in range(width):
            for i in range(some):
                sums[i] += probabilities[drawn[start + i], v]
                cumulative[i, v] = sums[i]
        for i in range(some):
            total = cumulative[i, width - 1]
            # below the row's own total, so that rounding can never draw past the last token there is
            target = min(uniforms[drawn[start + i]] * total, np.nextafter(total, np.float32(0.0)))
            tokens[drawn[start + i]] = np.searchsorted(cumulative[i], target, side="right")
