"""What one listener of a stream is told of one thing.

Owns `Topic`, which each topic of the studio is, and its bounds. Knows neither runs nor sessions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

LOOK_S = 0.25
"""Between two looks."""
AT_ONCE = 200
"""Events of one topic before the others have their turn."""
Told = list[tuple[str, dict[str, Any]]]
"""Cursors after events, and their data; an empty cursor leaves the topic's as it is."""


class Topic(ABC):
    """`cursor` is how far the listener knows it, None where it begins now."""

    every_s = LOOK_S

    def __init__(self, cursor: str | None) -> None:
        self.cursor = cursor

    @abstractmethod
    async def open(self) -> Told:
        """What comes before all else: where it begins, or what became of its cursor."""

    @abstractmethod
    async def new(self) -> Told:
        """What came since. Fewer than `AT_ONCE` events: all there is."""

    def close(self) -> None:
        """Nobody listens any more."""
        return


MakeTopic = Callable[[Sequence[str], str | None], Topic | None]
"""The topic of a name in its parts, and of a cursor; None where the name is none of this maker's."""
