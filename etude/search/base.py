"""What an index of code is, whatever ranks in it.

Owns the `CodeIndex` protocol and `Hit`. Whoever has the files tells an index of those that changed; it is never told
where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Hit:
    """A stretch of a file: lines `first` to `last`, counted from 1. Scores compare within one answer only."""

    path: str
    first: int
    last: int
    text: str
    score: float


class CodeIndex(Protocol):
    """Texts by path, searched with a question in words."""

    def put(self, path: str, text: str) -> None:
        """Add a file, or put another text in the place of the one it had."""
        ...

    def drop(self, path: str) -> None:
        """Forget a file; fine when it is not known."""
        ...

    def search(self, question: str, limit: int, under: str = "") -> list[Hit]:
        """The best stretches, best first, of all files or of those below a directory. Same files, same answer."""
        ...
