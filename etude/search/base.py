"""What a search answers with, and what its parts pass on.

Owns `Hit` and `Vectors`. Knows no ranking and no store.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.int8]
"""A row a piece, each of length 127 or, where nothing is known of it, zero."""


@dataclass(frozen=True)
class Hit:
    """A stretch of a file: lines `first` to `last`, counted from 1. Scores compare within one answer only."""

    path: str
    first: int
    last: int
    score: float
