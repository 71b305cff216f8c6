"""Tensors cut into slices that travel apart, so that a replica fetches only the experts and rows that it serves.

Owns the names of slices and the way back. A tensor cut by a grid of (2, 1, 4) becomes eight tensors of the chain, each
with its own chunks, hash and place in the root, named by its coordinate and the tensor: `1.0.3of2.1.4/experts.up`.
Trailing ones of a grid are left out: `5of8/experts.up`. The coordinate comes first, so that what one replica needs lies
together in a pack. A chain is cut the same way from its first version to its last, for its roots are over slices.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase

import numpy as np

from etude.errors import ConfigError, WeightError
from etude.weights.forms import Array
from etude.weights.manifest import Bits

Grid = tuple[int, ...]
Coordinate = tuple[int, ...]
_SLICE = re.compile(r"(?P<at>\d+(?:\.\d+)*)of(?P<grid>\d+(?:\.\d+)*)/(?P<name>.+)", re.DOTALL)


def cut(bits: Mapping[str, Array], grids: Mapping[str, Grid]) -> Bits:
    """Views of the slices. `grids`: shell-style pattern of names → into how many parts each axis is cut; the first that
    fits counts, and a tensor that none fits stays whole.

    Raises ConfigError for a grid that a tensor has too few axes or elements for.
    """
    found: Bits = {}
    for name, array in bits.items():
        grid = _trimmed(next((grid for pattern, grid in grids.items() if fnmatchcase(name, pattern)), ()))
        if len(grid) > array.ndim or any(parts > size for parts, size in zip(grid, array.shape, strict=False)):
            raise ConfigError(f"slices: {name} of shape {array.shape} cannot be cut into {grid}")
        if not grid:
            found[name] = array
            continue
        for at in itertools.product(*map(range, grid)):
            edges = [
                slice(size * index // parts, size * (index + 1) // parts)
                for index, parts, size in zip(at, grid, array.shape, strict=False)
            ]
            found[f"{_text(at)}of{_text(grid)}/{name}"] = array[tuple(edges)]
    return found


def join(slices: Mapping[str, Array]) -> Bits:
    """Tensors from their slices, all of them or the share that a replica holds; what is not a slice is left as it is.

    A share must be a box: the local tensor is its slices side by side. Raises WeightError if it is none.
    """
    joined: Bits = {}
    parts: defaultdict[tuple[str, str], dict[Coordinate, Array]] = defaultdict(dict)
    for name, array in slices.items():
        match = _SLICE.fullmatch(name)
        if match is None:
            joined[name] = array
        else:
            parts[match["name"], match["grid"]][tuple(map(int, match["at"].split(".")))] = array
    for (name, grid), pieces in parts.items():
        if name in joined:
            raise WeightError(f"{name} is there whole or cut in another way, and also in slices of {grid}")
        joined[name] = _side_by_side(name, pieces)
    return joined


def chosen(names: Iterable[str], coordinates: Collection[str]) -> frozenset[str]:
    """The names that a replica with these coordinates holds: its slices, and every tensor that is not cut.

    Raises ConfigError for a coordinate that no slice has.
    """
    found, seen = set(), set()
    for name in names:
        at = name.partition("/")[0] if _SLICE.fullmatch(name) else None
        if at is None or at in coordinates:
            found.add(name)
            seen.add(at)
    if missing := set(coordinates) - seen:
        raise ConfigError(f"subscriber.slices: no tensor of this chain is cut so that it has a slice {sorted(missing)}")
    return frozenset(found)


def _side_by_side(name: str, pieces: dict[Coordinate, Array]) -> Array:
    axes = len(next(iter(pieces)))
    spans = [sorted({at[axis] for at in pieces}) for axis in range(axes)]
    if any(span != list(range(span[0], span[-1] + 1)) for span in spans) or len(pieces) != np.prod([*map(len, spans)]):
        raise WeightError(f"{name}: its slices {sorted(pieces)} are no box; a replica holds neighbouring slices")
    for axis in reversed(range(axes)):
        rows: defaultdict[Coordinate, list[Array]] = defaultdict(list)
        for at in sorted(pieces):
            rows[at[:axis]].append(pieces[at])
        pieces = {at: row[0] if len(row) == 1 else np.concatenate(row, axis) for at, row in rows.items()}
    return pieces[()]


def _trimmed(grid: Grid) -> Grid:
    while grid and grid[-1] == 1:
        grid = grid[:-1]
    return grid


def _text(numbers: Iterable[int]) -> str:
    return ".".join(map(str, numbers))
