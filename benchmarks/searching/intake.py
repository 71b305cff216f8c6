"""What it costs to take a tree in: CPU time of 1,000 lines, of ours and of peers, each with its index on the disk.

Owns `intake`. All have the same tree: files of Python's library and the packages beside it, read once before, so that
nobody pays for the disk. Each takes in something small first: what is loaded once is not counted. e5 embeds a sample
of our pieces, and its time is of as many pieces as 1,000 lines have.
"""

from __future__ import annotations

import argparse
import functools
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from searching.e5_peer import near
from searching.peers import Piece, Pieces
from searching.semble_peer import trees_of
from searching.sets import Question, files_below
from searching.trees import source_tree

from etude.search import Store
from etude.search.workspace import build

_SMALL, _SAMPLE = 5, 64


def intake(options: argparse.Namespace) -> dict[str, object]:
    """Milliseconds, by name. A peer that cannot run here is left out and says so."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        roots = [source_tree(Path(place), files, endings=(".py",)) for files in (_SMALL, options.intake_files)]
        tree = {path: data for path, data in files_below(roots[1]).items() if path.endswith(".py")}
        lines = sum(data.count(b"\n") for data in tree.values())
        print(f"{len(tree)} files, {lines} lines")
        found = {}
        for name, way in _ways(Path(place), options):
            try:
                found[name] = round(1e6 * way(roots, tree) / lines, 1)
                print(f"{name:8} {found[name]} ms of CPU for 1,000 lines", flush=True)
            except (ImportError, OSError) as error:
                print(f"{name} cannot run here and is left out: {error}", flush=True)
    return {"intake_lines": lines, "intake_ms": found}


_Way = Callable[[list[Path], dict[str, bytes]], float]
"""From a small tree's directory and the large one's, and what is in that, to seconds."""


def _ways(place: Path, options: argparse.Namespace) -> Iterator[tuple[str, _Way]]:
    yield "ours", lambda roots, _: _last(roots, lambda root: build(root, Store(place / f"{root.name}.sqlite")))
    if "semble" in options.peers:
        yield "semble", lambda roots, _: _last(roots, trees_of(options.semble_model).indexed)
    if "e5" in options.peers:
        yield "e5", lambda _, tree: _e5(tree, place)


def _last(roots: list[Path], take_in: Callable[[Path], object]) -> float:
    return [spent(functools.partial(take_in, root)) for root in roots][-1]


def _e5(tree: dict[str, bytes], place: Path) -> float:
    here = Pieces().of(Question("tree", tree, "", frozenset(), ()))
    chosen = random.Random(0).sample(here, _SAMPLE + 1)
    embedder = near(place / "vectors")

    def embed(some: list[Piece]) -> None:
        embedder.vectors.of([piece.text for piece in some])

    embed(chosen[:1])
    return spent(lambda: embed(chosen[1:])) / _SAMPLE * len(here)


def spent(do: Callable[[], object]) -> float:
    """Seconds of CPU, those of processes that it has started and waited for among them."""
    begun = time.process_time() + _of_children()
    do()
    return time.process_time() + _of_children() - begun


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
