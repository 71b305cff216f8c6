"""What a search answers with.

Owns `Hit` and `INDEX_VERSION`. Knows no ranking and no store.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hit:
    """A stretch of a file: lines `first` to `last`, counted from 1. Scores compare within one answer only."""

    path: str
    first: int
    last: int
    score: float
