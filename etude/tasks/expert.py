"""A scripted expert that plays ladder tasks through the real harness, and knows no more than a player could.

Owns the two kinds of demonstration Etude learns from: sessions with slips (mid-training, so that the base model knows
mistakes and the way out of them) and those of the fine-tuning control, without. Where a comment tells what is right,
the expert mends by it. Where none does, it tries what is plausible, one after the other, until the check passes; the
control's reads what each check prints and tries nothing that this refutes (`tasks.evidence`). It never ends a session
before the check has passed, and never puts back what has failed.

The task's provenance has the function to be found, what its comment tells, and else the plausible mends, in no order.
`tasks.hunter` plays what has no such provenance.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from etude.config import Config
from etude.records import Task
from etude.tasks.check import CHECK
from etude.tasks.evidence import Evidence
from etude.tasks.generated import define
from etude.tasks.scripted import (
    RUN_CHECK,
    Answered,
    Call,
    Mend,
    ScriptedPlayer,
    Turns,
    edit,
    edits_between,
    line_found,
    look_for,
    passed,
    read,
)

WINDOW = 6  # lines read from a function's start; the longest generated function fits


class ExpertConfig(Config):
    """How often the expert slips; each rate is a probability at the moment it could happen."""

    search: float = 0.0
    """Not a slip: look the failing function up although the file is named, and again after a change in the wrong
    place. Otherwise the file is read while the check runs.
    """
    idle_read: float = 0.0
    """Read a file that has nothing to do with it."""
    one_by_one: float = 0.0
    """Make parallel calls in turns of their own."""
    wrong_fix: float = 0.0
    """Mend wrongly what the comment tells."""
    wrong_place: float = 0.0
    """Change another line instead."""
    misspell: float = 0.0
    """Call a tool in a form that fails, then again in the right one."""
    all_tools: float = 0.0
    """Not a slip: go about it with all ten tools of the product: look around, plan, search by meaning, and afterwards
    look at lints and run a script of its own.
    """
    reads_checks: bool = True
    """Where no comment tells what is right: try only what nothing that was printed refutes. Otherwise any plausible
    mend may be next that was not tried yet."""


CLEAN = ExpertConfig(search=1.0)
NOISY = ExpertConfig(
    search=0.75, idle_read=0.06, one_by_one=0.4, wrong_fix=0.25, wrong_place=0.1, misspell=0.03, reads_checks=False,
)  # fmt: skip


class Expert(ScriptedPlayer):
    """Plays one task of the ladder."""

    def __init__(self, task: Task, config: ExpertConfig, seed: int) -> None:
        self.task, self.config = task, config
        self.rng = random.Random(f"expert {task.id} {seed}")
        super().__init__(self._slipping(self._play()))

    # --- the script ---------------------------------------------------------------------------------------------------

    def _play(self) -> Turns:
        facts, thorough = self.task.provenance, self.rng.random() < self.config.all_tools
        if thorough:
            yield from self._together([("list_dir", {}), ("glob", {"pattern": "*.py"})])
            yield from self._together([_plan("in_progress"), ("codebase_search", {"query": f"what {CHECK} calls"})])
        if facts["path"] in self.task.instruction and self.rng.random() >= self.config.search:
            said, _ = yield from self._together([RUN_CHECK, read(facts["path"])])
        else:
            [said] = yield [RUN_CHECK]
            yield from self._follow_chain()
        yield from self._mend(said)
        if thorough:
            yield [("read_lints", {"path": facts["path"]})]
            yield [("write_file", {"path": _SCRIPT, "content": f"import {facts['path'].removesuffix('.py')}\n"})]
            yield from self._together([_RUN_SCRIPT, _plan("completed")])

    def _follow_chain(self) -> Turns:
        """From the function the check names down to the one that is wrong, one definition at a time."""
        for link in self.task.provenance["chain"]:
            path, _, function = link.partition(":")
            if self.rng.random() < self.config.idle_read:
                yield [read(self.rng.choice(sorted(set(self.task.files) - {CHECK})))]
            yield from self._look_up(path, function)

    def _look_up(self, path: str, function: str) -> Turns:
        """Find a definition's line, and read from there."""
        [found] = yield [look_for(function)]
        start = line_found(found) or 1
        yield [read(path, start, start + WINDOW)]

    def _mend(self, said: str) -> Turns:
        """Edit and check until the check passes."""
        facts, evidence = self.task.provenance, Evidence()
        mends = [Mend(*way) for way in facts["mends"]]
        if self.rng.random() < self.config.wrong_place:
            yield from self._wrong_place(facts["path"], {mend.old for mend in mends})
        applied, may_slip = None, len(mends) == 1
        while mends:
            evidence.hear(said)
            mend = self._next(mends, evidence)
            if may_slip and self.rng.random() < self.config.wrong_fix:
                mend, may_slip = Mend(mend.old, wrong_edit(self.rng, mend.old, mend.new)), False
            else:
                mends.remove(mend)
            *_, said = yield from self._together([*edits_between(facts["path"], applied, mend), RUN_CHECK])
            if passed(said):
                return
            applied = mend

    def _next(self, mends: list[Mend], evidence: Evidence) -> Mend:
        """Any of those that were not tried; of those that the evidence allows, if the expert reads it."""
        if self.config.reads_checks and len(mends) > 1:
            mends = [mend for mend in mends if evidence.allows(self._mended(mend))] or mends
        return self.rng.choice(mends)

    def _mended(self, mend: Mend) -> Callable[..., Any]:
        """The function as it would be."""
        facts = self.task.provenance
        source = self.task.files[facts["path"]].decode().replace(mend.old, mend.new)
        start = source.index(f"def {facts['function']}(")
        return define(source[start:].split("\n\n")[0] + "\n", facts["function"])

    def _wrong_place(self, path: str, plausible: set[str]) -> Turns:
        """Spoil a line of the file that is none of the plausible ones, see that it did not help, and take it back."""
        text = self.task.files[path].decode()
        lines = [line.strip() for line in text.split("\n") if line.startswith("    return")]
        lines = [line for line in lines if text.count(line) == 1 and line not in plausible]
        if not lines:
            return
        line = self.rng.choice(lines)
        spoiled = wrong_edit(self.rng, line, line)
        yield from self._together([edit(path, line, spoiled), RUN_CHECK])
        yield [edit(path, spoiled, line)]
        if self.rng.random() < self.config.search:
            yield from self._look_up(path, self.task.provenance["function"])

    # --- slips of form ------------------------------------------------------------------------------------------------

    def _together(self, calls: list[Call]) -> Answered:
        """The calls in one turn, or each in its own; returns what they said."""
        if self.rng.random() >= self.config.one_by_one:
            return (yield calls)
        said = []
        for call in calls:
            said += yield [call]
        return said

    def _slipping(self, script: Turns) -> Turns:
        """The script, with misspelt calls put in."""
        calls = next(script)
        while True:
            if self.rng.random() < self.config.misspell:
                yield [_misspelt(self.rng, calls[0])]
            observations = yield calls
            try:
                calls = script.send(observations)
            except StopIteration:
                return


_SCRIPT = "try_it.py"
_RUN_SCRIPT = ("run_terminal_cmd", {"command": f"python3 {_SCRIPT}; rm {_SCRIPT}"})


def _plan(status: str) -> Call:
    return ("todo_write", {"todos": json.dumps([{"content": "Make the check pass", "status": status}])})


def _misspelt(rng: random.Random, call: Call) -> Call:
    name, arguments = call
    if "path" in arguments:
        return name, {**arguments, "path": arguments["path"].removesuffix(".py")}
    return name, {rng.choice(("text", "query")): value for value in arguments.values()}


# no builtin is exchanged for its partner here: the hold-out rule keeps that bug out of all training data
_TOKEN = re.compile(r"<=|>=|==|!=|\+=|-=|[-+*<>]|\b\d\b|\b(?:and|or|True|False)\b")
_OTHER = {
    "+": "-*", "-": "+*", "*": "+-", "<": ["<=", ">", ">="], "<=": ["<", ">", ">="], ">": [">=", "<", "<="],
    ">=": [">", "<", "<="], "==": ["!=", "<"], "!=": ["==", ">"], "+=": ["-="], "-=": ["+="],
    "and": ["or"], "or": ["and"],
    "True": ["False"], "False": ["True"],
}  # fmt: skip


def wrong_edit(rng: random.Random, current: str, right: str) -> str:
    """A plausible wrong form of a line: one token of it changed. Never the right line; rarely the current one."""
    for _ in range(20):
        tokens = list(_TOKEN.finditer(right))
        if not tokens:
            break
        token = rng.choice(tokens)
        old = token.group()
        new = str(max(1, int(old) + rng.choice((-1, 1)))) if old.isdigit() else rng.choice(_OTHER[old])
        wrong = right[: token.start()] + new + right[token.end() :]
        if wrong not in (right, current):
            return wrong
    return right + " + 1"
