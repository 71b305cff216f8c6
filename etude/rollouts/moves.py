"""The journal of moves: every transition of every slot, one line each, as it happens.

Owns `moves.jsonl` in a run's directory, which is written where `faults.journal` asks for it. Tests that kill processes
follow it, and so can whoever wants to see where samples spend their time. It is a witness only: nothing is restored
from it, and it does not survive a power cut. A line with "began" stands at the start of each life of the controller,
which knows slots anew from there on.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from etude.durable import append_whole
from etude.rollouts.slots import Slot, State

NAME = "moves.jsonl"


class Moves:
    """Appends to the journal of one run. Each line is whole or not there, for whoever reads beside it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._write({"began": os.getpid()})

    def moved(self, slot: Slot, before: State | None) -> None:
        """To be told of every move, after it; None before the first."""
        self._write({"slot": slot.id, "from": before, "to": slot.state, "attempt": slot.attempts})

    def _write(self, line: dict[str, object]) -> None:
        append_whole(self._file, json.dumps({**line, "at": round(time.time(), 4)}).encode() + b"\n", self._path)

    def close(self) -> None:
        os.close(self._file)
