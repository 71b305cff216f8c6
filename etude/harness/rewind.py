"""Which events of a log still stand after undo and redo.

Owns `Rewind`. A log is only appended to: an `undo` says that the events from `line` up to itself no longer count, and a
`redo` that those of the last undo count again. A redo is possible until something new is said. Everything that folds
a log asks here first; whoever shows all that ever happened does not.
"""

from __future__ import annotations

from collections.abc import Iterable

from etude.records import Event

_NOTHING_NEW = {"undo", "redo", "resumed", "model"}


class Rewind:
    """What the undos and redos of a log come to."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._gone: set[int] = set()
        self._back: list[tuple[Event, set[int]]] = []
        """The undos that can be taken back, and the lines each has taken."""
        for line, event in enumerate(events):
            self._take(line, event)

    def is_current(self, line: int) -> bool:
        """Whether an event counts; lines are counted from 0."""
        return line not in self._gone

    @property
    def redoable(self) -> Event | None:
        """The undo that a redo would take back."""
        return self._back[-1][0] if self._back else None

    def _take(self, line: int, event: Event) -> None:
        if event.kind == "undo":
            lines = set(range(event.data["line"], line)) - self._gone
            self._back.append((event, lines))
            self._gone |= lines
        elif event.kind == "redo":
            self._gone -= self._back.pop()[1]
        elif event.kind not in _NOTHING_NEW:
            self._back.clear()
