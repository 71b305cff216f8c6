"""Counts how a session worked, from its log, in the same way for rollouts, benchmarks and reports.

Owns `Conduct` and `conduct_of`. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etude.records import Event

READS = frozenset(("read_file", "list_dir", "grep", "glob", "codebase_search"))
EDITS = frozenset(("edit_file", "write_file"))
TERMINAL = "run_terminal_cmd"


@dataclass(frozen=True)
class Conduct:
    calls: int
    looked: int
    """Reads and searches before the first edit; all of them where nothing was edited."""
    edited: bool
    in_terminal: int
    """Calls of the terminal."""


def conduct_of(events: Sequence[Event]) -> Conduct:
    """Of well-formed calls."""
    names = [event.data["name"] for event in events if event.kind == "tool_call"]
    first = next((place for place, name in enumerate(names) if name in EDITS), None)
    looked = sum(name in READS for name in names[:first])
    return Conduct(len(names), looked, first is not None, names.count(TERMINAL))
