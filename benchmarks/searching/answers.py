"""What an answer costs, and whether the function that was looked for is in it.

Owns `now` and `before`: an answer of a search as the agent reads it, in today's form and in the one before. Tokens are
counted without any model's tokenizer: parts of names, numbers, signs and spaces, much as large models' tokenizers cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from searching.sets import Question

from etude.search import Hit
from etude.search.answer import BUDGET_BYTES, FORM, Form, answer
from etude.search.content import lines_of, text_of

KEYS = ("tokens", "held", "shown", "tokens_read")


@dataclass(frozen=True)
class Told:
    """What an answer costs; whether it names a line of a right function, whether it shows one; and what it costs with a
    look at the file where it names one and shows none. That look is the best one: an agent does not know which."""

    tokens: int
    held: bool
    shown: bool
    tokens_read: int


_TOKEN = re.compile(r" ?[^\W\d_]{1,8}|\d{1,3}|\n[ \t]*|[ \t]+|_|[^\s\w]{1,2}")
MOST_WHOLE, _BEFORE_LINES = 8, 30
_PLACE = re.compile(r"^ ?(?P<first>\d+)-(?P<last>\d+)(?: |$)|^(?P<path>\S.*?):(?P<a>\d+)-(?P<b>\d+)$")


def tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


def now(question: Question, hits: Sequence[Hit], budget: int = BUDGET_BYTES, form: Form = FORM) -> Told:
    text = answer(question.text, hits[: form.pieces], lambda path: _lines(question, path), budget, form)
    named = [(path, first, last, form.whole_lines if whole else 0) for path, first, last, whole in places(text)]
    return _told(question, text, named)


def before(question: Question, hits: Sequence[Hit], pieces: int = MOST_WHOLE) -> Told:
    """Eight pieces whole, thirty lines of each at most."""
    rows = []
    for hit in hits[:pieces]:
        lines = _lines(question, hit.path)[hit.first - 1 : hit.last]
        more = [f"[{len(lines) - _BEFORE_LINES} more lines]"] if len(lines) > _BEFORE_LINES else []
        rows += [f"{hit.path}:{hit.first}-{hit.last}", *lines[:_BEFORE_LINES], *more, ""]
    named = [(hit.path, hit.first, hit.last, _BEFORE_LINES) for hit in hits[:pieces]]
    return _told(question, "\n".join(rows).rstrip("\n"), named)


def _told(question: Question, text: str, named: Sequence[tuple[str, int, int, int]]) -> Told:
    """Of places with how many of their lines are shown."""
    right = [(path, first, last) for path, first, last, _ in named if _right(question, path, first, last)]
    shown = any(_right(question, path, first, min(last, first + most - 1)) for path, first, last, most in named if most)
    look = 0 if shown or not right else min(_read(question, *each) for each in right)
    return Told(tokens(text), bool(right), shown, tokens(text) + look)


def _read(question: Question, path: str, first: int, last: int) -> int:
    """What it costs to read a place: the call, and the lines with their numbers."""
    lines = enumerate(_lines(question, path)[first - 1 : last], first)
    call = {"path": path, "start": first, "end": last}
    return tokens(str(call)) + tokens("\n".join(f"{number}\t{line}" for number, line in lines))


def places(text: str) -> list[tuple[str, int, int, bool]]:
    """The stretches of files that an answer names, read from its text, and whether it shows them."""
    found, path, outline = [], "", False
    for row in text.split("\n"):
        outline |= row == "more:"
        match = _PLACE.match(row)
        if match and match["path"] and not outline:
            found.append((match["path"], int(match["a"]), int(match["b"]), True))
        elif match and match["first"] and outline:
            found.append((path, int(match["first"]), int(match["last"]), False))
        elif outline and not row.startswith(" "):
            path = row
    return found


def _lines(question: Question, path: str) -> list[str]:
    return lines_of(text_of(question.tree[path]) or "")


def _right(question: Question, path: str, first: int, last: int) -> bool:
    return any(path == p and first <= b and a <= last for p, a, b in question.functions)
