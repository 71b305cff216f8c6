"""A scripted expert that plays ladder tasks through the real harness, on purpose not perfectly.

Owns the two kinds of demonstration Etude learns from: sessions with slips (mid-training, so that the base model knows
mistakes and, some of the time, the way out of them) and clean ones (the fine-tuning control). The expert reads the
task's solution from its provenance, which no model ever sees; what it writes depends otherwise only on the observations
it gets back.

A script is a generator: it yields the calls of a turn and receives the observations; when it returns, the session ends.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator
from dataclasses import dataclass

from etude.config import Config
from etude.harness.prompt import render_calls
from etude.records import Task
from etude.tasks.ladder import CHECK

RUN_CHECK = ("run_terminal_cmd", {"command": f"python3 {CHECK}"})
FAREWELL = "Done."
WINDOW = 6  # lines read from a function's start; the longest generated function fits

Call = tuple[str, dict[str, str]]
Turns = Generator[list[Call], list[str], None]


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
    """Mend the right line wrongly."""
    wrong_vague_fix: float = 0.0
    """The same, where the comment does not say the operator."""
    wrong_place: float = 0.0
    """Change another line instead."""
    wrong_again: float = 0.0
    """Mend it wrongly once more after the check has refused the first mend."""
    put_back: float = 0.0
    """That wrong mend is what stood there first, which the check has refused as well."""
    blind: float = 0.0
    """Edit without running the check afterwards."""
    quit: float = 0.0
    """End the session at the start of a turn, whatever the state."""
    give_up: float = 0.0
    """End the session after a check that failed; otherwise try again."""
    misspell: float = 0.0
    """Call a tool in a form that fails, then again in the right one."""


CLEAN = ExpertConfig(search=1.0)
NOISY = ExpertConfig(
    search=0.75, idle_read=0.06, one_by_one=0.4, wrong_fix=0.5, wrong_vague_fix=0.7, wrong_again=0.75, put_back=0.5,
    wrong_place=0.15, blind=0.3, quit=0.05, give_up=0.6, misspell=0.03,
)  # fmt: skip


@dataclass
class Expert:
    """Plays one task; `next_message` is what a `ScriptedSampler` asks for."""

    task: Task
    config: ExpertConfig
    seed: int

    def __post_init__(self) -> None:
        self.rng = random.Random(f"expert {self.task.id} {self.seed}")
        self.turns = self._slipping(self._play())
        self.started = False

    def next_message(self, observations: list[str]) -> str:
        """The next assistant message, given the tool results of the previous one (none at first)."""
        try:
            calls = self.turns.send(observations) if self.started else next(self.turns)
        except StopIteration:
            return FAREWELL
        self.started = True
        return render_calls(calls)

    # --- the script ---------------------------------------------------------------------------------------------------

    def _play(self) -> Turns:
        facts = self.task.provenance
        if facts["rung"] == 1 and self.rng.random() >= self.config.search:
            yield from self._parallel([RUN_CHECK, _read(facts["path"])])
        else:
            yield [RUN_CHECK]
            yield from self._follow_chain()
        yield from self._mend()

    def _follow_chain(self) -> Turns:
        """From the function the check names down to the one that is wrong, one definition at a time."""
        for link in self.task.provenance["chain"]:
            path, _, function = link.partition(":")
            if self.rng.random() < self.config.idle_read:
                yield [_read(self.rng.choice(sorted(set(self.task.files) - {CHECK})))]
            yield from self._look_up(path, function)

    def _look_up(self, path: str, function: str) -> Turns:
        """Find a definition's line, and read from there."""
        [found] = yield [("grep", {"pattern": f"def {function}"})]
        line = re.search(r":(\d+):", found)
        start = int(line.group(1)) if line else 1
        yield [("read_file", {"path": path, "start": str(start), "end": str(start + WINDOW)})]

    def _mend(self) -> Turns:
        """Edit and check until the check passes, or until a slip ends it."""
        facts = self.task.provenance
        path, current, right = facts["path"], facts["old"], facts["new"]
        slip = self.config.wrong_vague_fix if facts["vague"] else self.config.wrong_fix
        if self.rng.random() < self.config.wrong_place:
            yield from self._wrong_place(path)
        for _ in range(4):
            target = self._wrong_mend(current) if self.rng.random() < slip else right
            edit = ("edit_file", {"path": path, "old": current, "new": target})
            if self.rng.random() < self.config.blind:
                yield [edit]
                return
            yield from self._parallel([edit, RUN_CHECK])
            if target == right or self.rng.random() < self.config.give_up:
                return
            current, slip = target, self.config.wrong_again

    def _wrong_mend(self, current: str) -> str:
        facts = self.task.provenance
        if current != facts["old"] and self.rng.random() < self.config.put_back:
            return facts["old"]
        return wrong_edit(self.rng, current, facts["new"])

    def _wrong_place(self, path: str) -> Turns:
        """Spoil another line of the file, see that it did not help, and take it back."""
        text = self.task.files[path].decode()
        lines = [line.strip() for line in text.split("\n") if line.startswith("    return")]
        lines = [line for line in lines if text.count(line) == 1 and line != self.task.provenance["old"]]
        if not lines:
            return
        line = self.rng.choice(lines)
        spoiled = wrong_edit(self.rng, line, line)
        yield from self._parallel([("edit_file", {"path": path, "old": line, "new": spoiled}), RUN_CHECK])
        yield [("edit_file", {"path": path, "old": spoiled, "new": line})]
        if self.rng.random() < self.config.search:
            yield from self._look_up(path, self.task.provenance["function"])

    # --- slips of form ------------------------------------------------------------------------------------------------

    def _parallel(self, calls: list[Call]) -> Turns:
        if self.rng.random() < self.config.one_by_one:
            for call in calls:
                yield [call]
        else:
            yield calls

    def _slipping(self, script: Turns) -> Turns:
        """The script, with misspelt calls and early ends put in."""
        calls = next(script)
        while True:
            if self.rng.random() < self.config.quit:
                return
            if self.rng.random() < self.config.misspell:
                yield [_misspelt(self.rng, calls[0])]
            observations = yield calls
            try:
                calls = script.send(observations)
            except StopIteration:
                return


def _read(path: str) -> Call:
    return ("read_file", {"path": path})


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
