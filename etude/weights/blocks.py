"""Byte ranges of one large object, read in blocks, several at a time.

Owns the cut into blocks: they begin at multiples of one size, so that whoever reads from the same relay asks for the
same ones, a failure costs one block and not the object, and a slow link is given up only if one block is too slow for
it. Keeps nothing. Talks to: store.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from etude.weights.store import Store

Span = tuple[int, int]


def read_spans(store: Store, key: str, size: int, spans: Sequence[Span], *, again: bool = False) -> list[memoryview]:
    """The bytes `start` to `stop` of each span of an object that has `size` bytes.

    With `again`, what a relay has kept of it is not good enough. Raises what `Store.get_range` does.
    """
    block = store.config.block_bytes
    wanted = {at for start, stop in spans if start < stop for at in range(start // block, (stop - 1) // block + 1)}
    runs = _runs(sorted(wanted))
    buffers = [bytearray(min(run.stop * block, size) - run.start * block) for run in runs]

    def bring(piece: tuple[int, int]) -> None:
        which, at = piece
        start, stop = at * block, min((at + 1) * block, size)
        begins = start - runs[which].start * block
        memoryview(buffers[which])[begins : begins + stop - start] = store.get_range(
            key, start, stop, size, again=again
        )

    pieces = [(which, at) for which, run in enumerate(runs) for at in run]
    if len(pieces) < 2:
        for piece in pieces:
            bring(piece)
    else:
        with ThreadPoolExecutor(min(store.config.parallel, len(pieces)), "weight-blocks") as pool:
            for _ in pool.map(bring, pieces):  # the first failure cancels what has not begun
                pass
    return [_view(span, runs, buffers, block) for span in spans]


def _runs(blocks: list[int]) -> list[range]:
    """Neighbouring blocks joined."""
    edges = [0, *(at + 1 for at, (a, b) in enumerate(pairwise(blocks)) if b != a + 1), len(blocks)]
    return [range(blocks[start], blocks[stop - 1] + 1) for start, stop in pairwise(edges) if start < stop]


def _view(span: Span, runs: list[range], buffers: list[bytearray], block: int) -> memoryview:
    start, stop = span
    if start >= stop:
        return memoryview(b"")
    which = bisect.bisect_right(runs, start // block, key=lambda run: run.start) - 1
    begins = runs[which].start * block
    return memoryview(buffers[which])[start - begins : stop - begins]
