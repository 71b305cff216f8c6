"""Figures of steps in columns, and a column in buckets.

Owns `flat`, the names that figures of nested lines have, `Columns`, which grows by a row, and `buckets`: of each
stretch of x the smallest, the largest and the last value, so that no outlier vanishes however little is drawn. Reads
no file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

MOST_NAMES, _LONGEST_NAME, _DEEPEST = 2000, 120, 4
"""Of one run: what has more was made to have more."""
_MOST = 1e300


def flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Every value that is no table, by its dotted name."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            found |= {f"{key}.{name}": each for name, each in flat(value).items()}
        else:
            found[key] = value
    return found


def figures_of(table: Mapping[str, Any], without: Collection[str] = (), above: str = "") -> dict[str, float]:
    """The numbers in it by their dotted names, of tables in each other down to the fourth."""
    found: dict[str, float] = {}
    _numbers(found, {key: value for key, value in table.items() if key not in without}, above, _DEEPEST)
    return found


def _numbers(found: dict[str, float], table: dict[str, Any], above: str, deeper: int) -> None:
    for key, value in table.items():
        kind = type(value)  # of what JSON holds: quick, as there are a million of these in a long run
        if kind is float or kind is int or kind is bool:
            if -_MOST < value < _MOST:
                found[above + key] = float(value)
        elif kind is dict and deeper > 1:
            _numbers(found, value, f"{above}{key}.", deeper - 1)


class Columns:
    """Rows of figures at growing x. A figure that a row lacks is NaN there."""

    def __init__(self) -> None:
        self.rows, self._room = 0, 256
        self._x = np.zeros(self._room)
        self._of: dict[str, np.ndarray] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self._of)

    @property
    def x(self) -> np.ndarray:  # [rows]
        return self._x[: self.rows]

    def __getitem__(self, name: str) -> np.ndarray:  # [rows]
        """NaN throughout for a name that no row had."""
        found = self._of.get(name)
        return np.full(self.rows, np.nan) if found is None else found[: self.rows]

    def add(self, x: float, figures: Mapping[str, float]) -> None:
        if self.rows == self._room:
            self._room *= 2
            self._x = np.resize(self._x, self._room)
            self._of = {name: _longer(column, self._room) for name, column in self._of.items()}
        self._x[self.rows] = x
        for name, value in figures.items():
            if name not in self._of:
                if len(self._of) >= MOST_NAMES or len(name) > _LONGEST_NAME:
                    continue
                self._of[name] = np.full(self._room, np.nan)
            self._of[name][self.rows] = value
        self.rows += 1

    def latest(self, names: Sequence[str]) -> dict[str, float | None]:
        """The last row's."""
        row = {name: float(self[name][-1]) for name in names} if self.rows else {}
        return {name: value if math.isfinite(value) else None for name, value in row.items()}


def _longer(column: np.ndarray, room: int) -> np.ndarray:
    return np.concatenate([column, np.full(room - len(column), np.nan)])


def buckets(
    x: np.ndarray, values: np.ndarray, count: int, begins: float, ends: float
) -> dict[str, list[float]]:  # [rows], [rows] -> x, min, max, last of at most `count` buckets
    """Of x from `begins` to `ends`, both included. A bucket without a finite value is left out; its x is the last
    one's in it. `x` ascends."""
    there = np.isfinite(values) & (x >= begins) & (x <= ends)
    x, values = x[there], values[there]
    if not len(x):
        return {"x": [], "min": [], "max": [], "last": []}
    if len(x) > count:
        width = max((ends - begins) / count, 1e-12)
        at = np.minimum(((x - begins) / width).astype(np.int64), count - 1)
        first = np.flatnonzero(np.concatenate([[True], at[1:] != at[:-1]]))
    else:
        first = np.arange(len(x))
    last = np.append(first[1:], len(x)) - 1
    return {
        "x": x[last].tolist(),
        "min": _short(np.minimum.reduceat(values, first)),
        "max": _short(np.maximum.reduceat(values, first)),
        "last": _short(values[last]),
    }


def _short(values: np.ndarray) -> list[float]:
    """To seven digits: more of them are only bytes on the way."""
    return [float(f"{value:.7g}") for value in values.tolist()]
