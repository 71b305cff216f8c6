"""Byte ranges of large objects, read in blocks, several at a time.

Owns the cut into blocks: they begin at multiples of one size, so that whoever reads from the same relay asks for the
same ones, a failure costs one block and not the object, and a slow link is given up only if one block is too slow for
it. Keeps nothing. Talks to: store.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

from etude.weights.store import PARALLEL, Store

Span = tuple[int, int]


class Wanted(NamedTuple):
    """The bytes `start` to `stop` of each span of an object that has `size` bytes."""

    key: str
    size: int
    spans: Sequence[Span]


class _Run(NamedTuple):
    """Neighbouring blocks of one object, and where their bytes go."""

    key: str
    size: int
    blocks: range
    buffer: bytearray


def read_spans(store: Store, objects: Sequence[Wanted], *, again: bool = False) -> list[list[memoryview]]:
    """The bytes of every span of every object, read side by side.

    With `again`, what a relay has kept of them is not good enough. Raises what `Store.get_range` does.
    """
    block = store.config.block_bytes
    runs = [_runs(wanted, block) for wanted in objects]

    def bring(piece: tuple[_Run, int]) -> None:
        run, at = piece
        start, stop = at * block, min((at + 1) * block, run.size)
        begins = start - run.blocks.start * block
        data = store.get_range(run.key, start, stop, run.size, again=again)
        memoryview(run.buffer)[begins : begins + stop - start] = data

    pieces = [(run, at) for found in runs for run in found for at in run.blocks]
    if len(pieces) < 2:
        for piece in pieces:
            bring(piece)
    else:
        with ThreadPoolExecutor(min(PARALLEL, len(pieces)), "weight-blocks") as pool:
            for _ in pool.map(bring, pieces):  # the first failure cancels what has not begun
                pass
    return [[_view(span, found, block) for span in wanted.spans] for wanted, found in zip(objects, runs, strict=True)]


def _runs(wanted: Wanted, block: int) -> list[_Run]:
    needed = {
        at for start, stop in wanted.spans if start < stop for at in range(start // block, (stop - 1) // block + 1)
    }
    blocks = sorted(needed)
    edges = [0, *(at + 1 for at, (a, b) in enumerate(pairwise(blocks)) if b != a + 1), len(blocks)]
    joined = [range(blocks[start], blocks[stop - 1] + 1) for start, stop in pairwise(edges) if start < stop]
    return [
        _Run(wanted.key, wanted.size, run, bytearray(min(run.stop * block, wanted.size) - run.start * block))
        for run in joined
    ]


def _view(span: Span, runs: list[_Run], block: int) -> memoryview:
    start, stop = span
    if start >= stop:
        return memoryview(b"")
    run = runs[bisect.bisect_right(runs, start // block, key=lambda run: run.blocks.start) - 1]
    begins = run.blocks.start * block
    return memoryview(run.buffer)[start - begins : stop - begins]
