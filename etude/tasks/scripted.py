"""What scripted players have in common: how a script is played, the calls they make, and how they try mends.

Owns `ScriptedPlayer`. A script is a generator: it yields the calls of a turn and receives the observations; when it
returns, the session ends. Which script, `tasks.expert` and `tasks.hunter` say.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import NamedTuple

from etude.harness.prompt import render_calls
from etude.tasks.check import CHECK

Call = tuple[str, dict[str, str]]
Turns = Generator[list[Call], list[str], None]
Answered = Generator[list[Call], list[str], list[str]]

RUN_CHECK: Call = ("run_terminal_cmd", {"command": f"python3 {CHECK}"})
FAREWELL = "Done."


class Mend(NamedTuple):
    """A line, whole or without its indentation, and what is tried in its place."""

    old: str
    new: str


class ScriptedPlayer:
    """Plays one task; `next_message` is what a `ScriptedSampler` asks for."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._started = turns, False

    def next_message(self, observations: list[str]) -> str:
        """The next assistant message, given the tool results of the previous one (none at first)."""
        try:
            calls = self._turns.send(observations) if self._started else next(self._turns)
        except StopIteration:
            return FAREWELL
        self._started = True
        return render_calls(calls)


def read(path: str, first: int | None = None, last: int | None = None) -> Call:
    """Without `last` from there on, as much as fits."""
    window = {key: str(line) for key, line in (("start", first), ("end", last)) if line is not None}
    return ("read_file", {"path": path, **window})


def edit(path: str, old: str, new: str) -> Call:
    return ("edit_file", {"path": path, "old": old, "new": new})


def look_for(function: str) -> Call:
    """Where it is defined."""
    return ("grep", {"pattern": f"def {function}"})


def line_found(answer: str, path: str = "") -> int | None:
    """The first line that a grep has found, in that file or in any."""
    line = re.search(rf"^{re.escape(path)}:(\d+):" if path else r":(\d+):", answer, re.MULTILINE)
    return int(line.group(1)) if line else None


def passed(said: str) -> bool:
    """Whether a check did, by what it printed."""
    return said.startswith("passed")


def edits_between(path: str, applied: Mend | None, mend: Mend) -> list[Call]:
    """From what was tried last to the next; where that is another line, the first is as it was again."""
    if applied is None:
        return [edit(path, mend.old, mend.new)]
    if applied.old == mend.old:
        return [edit(path, applied.new, mend.new)]
    return [edit(path, applied.new, applied.old), edit(path, mend.old, mend.new)]
