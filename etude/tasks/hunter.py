"""A scripted player without an oracle: it reads, tries what is plausible, and looks at what the check says.

It is given the instruction and a seed, and then what its own calls are answered, as any player is; neither the task's
provenance nor its solution. It runs the check, looks the named function up, reads it, and tries mends that could take
back a small change of one line (`mutate.mends_of`), likeliest first (`tasks.suspects`), with the check after each. It
keeps the file as it found it, and each further try begins with that. It puts nothing back without trying another thing,
and ends when the check has passed, or when it knows nothing more to try. Most of its sessions mend a bug by chance;
which did, the verifier says.

What it puts into a call was printed before, in the same letters: a path and a line's number as the search found them, a
line whole, with its indentation. A small model copies such things, and is bad at deriving them: one that has to take
back its last edit by another loses track of what the file has. It may be told to slip: then now and then it makes a
call that fails (`tasks.slips`) first, and goes on from what that was answered.
"""

from __future__ import annotations

import ast
import random
import re
import shlex
from collections.abc import Generator

from etude import syntax
from etude.tasks.holdout import is_held_out
from etude.tasks.mutate import Mutation, mends_of
from etude.tasks.scripted import (
    RUN_CHECK,
    Answered,
    Call,
    ScriptedPlayer,
    Turns,
    edit,
    line_found,
    passed,
    read,
)
from etude.tasks.slips import Slips
from etude.tasks.suspects import Suspects

READS = 4
"""Of one function, each as much as an answer holds."""
KEPT = "/tmp/before.py"
"""The file as it was found."""
_ASKED = re.compile(r"bug in (\w+) in (\S+\.py)\. ")
_CUT = re.compile(r"\[cut: line (\d+) of \d+ is next\]$")


def known_mends(text: str, function: str) -> list[Mutation]:
    """What is tried in a function as it stands: all mends, but of kinds of bugs that are held out."""
    return [each for each in mends_of(text, function) if not is_held_out("bug", each.bug)]


class Hunter(ScriptedPlayer):
    """Plays one task whose instruction names a function and its file."""

    def __init__(self, instruction: str, seed: int, misspell: float = 0.0) -> None:
        """`misspell` is how often a message slips."""
        self.rng = random.Random(f"hunter {seed}")
        self.tries = 0
        """Mends that were tried."""
        self.slipped = 0
        self._misspell, self._first = misspell, 1
        asked = _ASKED.search(f"{instruction} ")
        self._function, self._path = asked.groups() if asked else ("", "")
        self._chance = random.Random(f"slips {seed}")  # of its own: whoever slips tries the same mends
        self._slips = Slips(self._chance, self._path, self._function)
        super().__init__(self._slipping(self._play()))

    def _play(self) -> Turns:
        if not self._function:
            return
        said, found = yield [RUN_CHECK, _find(self._function)]
        line = line_found(found, self._path)
        if line is None:  # so many are called that
            [found] = yield [_find(self._function, self._path)]
            line = line_found(found, self._path)
        self._first = line or 1
        text = yield from self._read()
        if text is not None and not passed(said):
            self._slips.text = text
            yield from self._hunt(Suspects(known_mends(text, self._function), text, self.rng), said)

    def _read(self) -> Generator[list[Call], list[str], str | None]:
        """The function's source, as its file has it from its first line on; None where it cannot be told."""
        lines: list[str] = []
        for _ in range(READS):
            look = read(self._path, self._first + len(lines))
            [answer, *_] = yield [look] if lines else [look, _copy(self._path, KEPT)]
            cut = _CUT.search(answer)
            lines += answer.removesuffix("\n").split("\n")[: -1 if cut else None]
            if not cut or any(map(_outside, lines[1:])):
                break
        return _whole(lines, self._function)

    def _hunt(self, suspects: Suspects, said: str) -> Turns:
        """Edit and check until the check passes. An edit that is refused changes nothing, and the next is tried."""
        suspects.hear(said)
        changed = False
        while (mend := suspects.take()) is not None:
            self.tries += 1
            begin = [_copy(KEPT, self._path)] if changed else []
            *_, edited, now = yield [*begin, edit(self._path, mend.old, mend.new), RUN_CHECK]
            if passed(now):
                return
            changed = edited.startswith("ok")
            if changed:
                suspects.learn(mend, said, now)

    # --- slips --------------------------------------------------------------------------------------------------------

    def _slipping(self, script: Turns) -> Turns:
        """The script; now and then one of a message's calls goes wrong first."""
        calls = next(script, None)
        while calls is not None:
            slips = self._chance.random() < self._misspell
            answers = (yield from self._at_second_go(calls)) if slips else (yield calls)
            try:
                calls = script.send(answers)
            except StopIteration:
                return

    def _at_second_go(self, calls: list[Call]) -> Answered:
        """A message with a call that fails, a look where one helps, and what is still to be called. The check is not
        what fails; and a try is made again as a whole, after one that has changed nothing."""
        self.slipped += 1
        at = self._chance.choice([number for number, call in enumerate(calls) if call != RUN_CHECK])
        wrong, again = self._slips.wrong_form(calls[at]), [calls[at]]
        said = [*calls[:at], wrong, *calls[at + 1 :]]
        if any(name == "edit_file" for name, _ in calls):
            said, again = [*calls[:at], wrong, RUN_CHECK], calls
        answers = yield said
        if look := self._look_after(answers[said.index(wrong)]):
            yield [look]
        repeated = yield again
        return repeated if again is calls else [*answers[:at], *repeated, *answers[at + 1 :]]

    def _look_after(self, refusal: str) -> Call | None:
        """What shows how the call should have been; None where the refusal itself says it."""
        if refusal.startswith("error: no file ") or refusal.endswith(": No such file or directory"):
            return _find(self._function)
        if refusal.startswith("error: old is not there"):
            line = re.search(r" line (\d+)", refusal)
            return read(self._path, int(line[1]), int(line[1])) if line else read(self._path, self._first)
        return None


def _find(function: str, path: str | None = None) -> Call:
    """Where it is defined, and no other whose name begins so."""
    pattern = {"pattern": rf"def {function}\b"}
    return ("grep", pattern if path is None else {**pattern, "path": path})


def _copy(path: str, to: str) -> Call:
    return ("run_terminal_cmd", {"command": f"cp {shlex.quote(path)} {shlex.quote(to)}"})


def _outside(line: str) -> bool:
    """Whether a line belongs to no function that began before it."""
    return re.match(r"(@|def |class |\w+ =)", line) is not None


def _whole(lines: list[str], function: str) -> str | None:
    """The longest beginning of the lines that is this function and nothing else."""
    for count in range(len(lines), 0, -1):
        text = "\n".join(lines[:count])
        try:
            body = syntax.parse(text).body
        except (SyntaxError, ValueError):
            continue
        match body:
            case [ast.FunctionDef(name=name)] if name == function:
                return f"{text.rstrip()}\n"
    return None
