"""A scripted player without an oracle: it reads, tries what is plausible, and looks at what the check says.

It is given the instruction and a seed, and then what its own calls are answered, as any player is; neither the task's
provenance nor its solution. It runs the check, looks the named function up, reads it, and tries mends that could take
back a small change of one line (`mutate.mends_of`), likeliest first (`tasks.suspects`), with the check after each. It
puts nothing back without trying another thing, and ends when the check has passed, or when it knows nothing more to
try. Most of its sessions mend a bug by chance; which did, the verifier says.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Generator

from etude.tasks.holdout import is_held_out
from etude.tasks.mutate import mends_of
from etude.tasks.scripted import (
    RUN_CHECK,
    Call,
    Mend,
    ScriptedPlayer,
    Turns,
    edits_between,
    line_found,
    look_for,
    passed,
    read,
)
from etude.tasks.suspects import Suspects

WINDOW = 40
"""Lines that are read at once; of longer functions what follows is read too."""
READS = 4
_ASKED = re.compile(r"bug in (\w+) in (\S+\.py)\. ")
_CUT = re.compile(r"\[cut: line (\d+) of \d+ is next\]$")


class Hunter(ScriptedPlayer):
    """Plays one task whose instruction names a function and its file."""

    def __init__(self, instruction: str, seed: int) -> None:
        self.rng = random.Random(f"hunter {seed}")
        super().__init__(self._play(instruction))

    def _play(self, instruction: str) -> Turns:
        asked = _ASKED.search(f"{instruction} ")
        if asked is None:
            return
        function, path = asked.groups()
        said, found = yield [RUN_CHECK, look_for(function, path)]
        text = yield from _read(path, line_found(found) or 1, function)
        if text is not None and not passed(said):
            mends = [each for each in mends_of(text, function) if not is_held_out("bug", each.bug)]
            yield from self._hunt(path, Suspects(mends, text, self.rng), said)

    def _hunt(self, path: str, suspects: Suspects, said: str) -> Turns:
        """Edit and check until the check passes. An edit that is refused changes nothing, and the next is tried."""
        suspects.hear(said)
        applied: Mend | None = None
        while (mend := suspects.take()) is not None:
            edits = edits_between(path, applied, mend)
            *answers, now = yield [*edits, RUN_CHECK]
            if passed(now):
                return
            if len(edits) == 2 and _refused(answers[0]):  # what was tried stands there for good
                return
            if not _refused(answers[-1]):
                suspects.learn(mend, said, now)
                applied = mend
            elif len(edits) == 2:
                applied = None


def _refused(answer: str) -> bool:
    return not answer.startswith("ok")


def _read(path: str, first: int, function: str) -> Generator[list[Call], list[str], str | None]:
    """The function's source, as its file has it from its first line on; None where it cannot be told."""
    lines: list[str] = []
    for _ in range(READS):
        at = first + len(lines)
        [answer] = yield [read(path, at, at + WINDOW - 1)]
        cut = _CUT.search(answer)
        lines += answer.removesuffix("\n").split("\n")[: -1 if cut else None]
        if (not cut and len(lines) < WINDOW) or any(map(_outside, lines[1:])):
            break
    return _whole(lines, function)


def _outside(line: str) -> bool:
    """Whether a line belongs to no function that began before it."""
    return re.match(r"(@|def |class |\w+ =)", line) is not None


def _whole(lines: list[str], function: str) -> str | None:
    """The longest beginning of the lines that is this function and nothing else."""
    for count in range(len(lines), 0, -1):
        text = "\n".join(lines[:count])
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError):
            continue
        match body:
            case [ast.FunctionDef(name=name)] if name == function:
                return f"{text.rstrip()}\n"
    return None
