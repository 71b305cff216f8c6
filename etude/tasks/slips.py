"""Calls as a model gets them wrong: what a scripted player says now and then, and is refused.

Owns `Slips`. The kinds are those of SmolLM2-135M's sessions on real code: a path or a name that lost letters, the first
part of a path in place of a name, a command or a pattern in place of a path, a line that is not quite what the file
has, one word of it, the same line again in place of another, parameters that the tool has not, and one that is missing.
A call that fails changes nothing. What it is answered is the environment's. Whoever learns from such a session does not
learn these messages, but what is said after them (`trainer.hunting`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from etude.tasks.check import CHECK
from etude.tasks.scripted import Call

UNKNOWN = ("size", "line", "text", "query", "range")
"""Parameters that no tool of the small set has."""
UNCHANGED = 3
"""How much likelier an edit that changes nothing is than another slip: half of a small model's are such."""
_OFTEN = 3
"""A word that a function has so often is in its file more than once, whatever was edited since."""
Given = dict[str, str]


class Slips:
    """What a call about the file at `path` becomes."""

    def __init__(self, rng: random.Random, path: str, function: str) -> None:
        self._rng, self._path, self._function = rng, path, function
        self.text = ""
        """As much of the file as was read."""

    def wrong_form(self, call: Call) -> Call:
        """One that fails."""
        name, given = call
        ways: list[Callable[[Given], Given | None]] = [self._malformed]
        if "pattern" in given:
            ways.append(self._other_name)
        if "pattern" in given or "path" in given:
            ways.append(self._elsewhere)
        if "old" in given:
            ways += [self._not_there, self._not_unique, *[_unchanged] * UNCHANGED]
        self._rng.shuffle(ways)
        return name, next(wrong for way in ways if (wrong := way(given)) is not None)

    def _malformed(self, given: Given) -> Given:
        """With a parameter too many, with its last one under another name, or without that."""
        *others, last = given
        unknown, kept = self._rng.choice(UNKNOWN), {key: given[key] for key in others}
        forms = [{**given, unknown: "1"}, {**kept, unknown: given[last]}]
        return self._rng.choice([*forms, kept] if last == "new" else forms)

    def _elsewhere(self, given: Given) -> Given:
        """In a file that is not there."""
        parts = self._path.split("/")
        at = self._rng.randrange(len(parts))
        lost = "/".join([*parts[:at], self._lost(parts[at]), *parts[at + 1 :]])
        return {**given, "path": self._rng.choice((lost, lost, f"python3 {CHECK}", rf"def {self._function}\b"))}

    def _other_name(self, given: Given) -> Given:
        [word] = re.findall(r"\w+(?=\\b$)", given["pattern"])
        name = self._rng.choice((self._lost(word), self._lost(word), self._lost(self._path.split("/")[0])))
        return {**given, "pattern": rf"def {name}\b"}

    def _not_there(self, given: Given) -> Given | None:
        old, words = given["old"], [*re.finditer(r"[A-Za-z_]{3,}", given["old"])]
        if not words:
            return None
        word = self._rng.choice(words)
        wrong = f"{old[: word.start()]}{self._lost(word.group())}{old[word.end() :]}"
        return None if wrong in self.text else {**given, "old": wrong}

    def _not_unique(self, given: Given) -> Given | None:
        words = [word for word in re.findall(r"\w{2,}", given["old"]) if self.text.count(word) >= _OFTEN]
        return {**given, "old": self._rng.choice(words)} if words else None

    def _lost(self, word: str) -> str:
        """Without a letter or two, more often of its end; one letter alone is doubled."""
        count = min(self._rng.choice((1, 1, 2)), len(word) - 1)
        if not count:
            return word * 2
        at = len(word) - count if self._rng.random() < 0.6 else self._rng.randrange(1, len(word) - count + 1)
        return word[:at] + word[at + count :]


def _unchanged(given: Given) -> Given:
    return {**given, "new": given["old"]}
