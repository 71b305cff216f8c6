"""What a search says: the best pieces whole, and more of them as an outline.

Owns `answer`, the form of it. Few questions are answered by the first piece and most by one of twenty, so the first few
are shown with their lines, and each of the others by where it is, what it defines and the lines that say most of what
was asked, the pieces of a file together. The whole is held to a budget, which is spent from the best piece down. It
depends on the question, the pieces and their lines alone: whoever asks, in training or at a desk, reads the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from etude.search.base import Hit
from etude.search.pieces import is_definition
from etude.search.words import words_of

ANSWER_VERSION = 1
BUDGET_BYTES = 2700
"""Of an answer: about 750 tokens."""


@dataclass(frozen=True)
class Form:
    """Chosen on the development part of `benchmarks/search.py`."""

    pieces: int = 20
    """How many are looked at."""
    whole: int = 2
    """So many of the best are shown with their lines."""
    whole_lines: int = 20
    best_lines: int = 1
    """Of a piece in the outline, beside its definition."""
    line_chars: int = 100


FORM = Form()


def answer(
    question: str, hits: Sequence[Hit], lines_of: Callable[[str], Sequence[str]], budget: int = BUDGET_BYTES,
    form: Form = FORM,
) -> str:  # fmt: skip
    """The text of an answer; `lines_of` gives a file's lines, none where it is gone. Hits are best first."""
    files = {path: lines_of(path) for path in dict.fromkeys(hit.path for hit in hits)}
    asked = frozenset(words_of(question))
    rows: list[str] = []
    for hit in hits[: form.whole]:
        own = _whole(hit, files[hit.path], form)
        if not rows or _size([*rows, *own]) <= budget:
            rows += own
    outline = _outline(hits[form.whole :], files, asked, budget - _size(rows), form)
    return "\n".join([*rows, *outline]).rstrip("\n")


def _whole(hit: Hit, file: Sequence[str], form: Form) -> list[str]:
    lines = file[hit.first - 1 : hit.last]
    more = [f"[{len(lines) - form.whole_lines} more lines]"] if len(lines) > form.whole_lines else []
    return [f"{hit.path}:{hit.first}-{hit.last}", *lines[: form.whole_lines], *more, ""]


def _outline(
    hits: Sequence[Hit], files: Mapping[str, Sequence[str]], asked: frozenset[str], budget: int, form: Form
) -> list[str]:
    """A row with each file's path, and below it its pieces in their order; the best that there is room for."""
    rows_of: dict[Hit, list[str]] = {}
    shown: set[str] = set()
    left = budget - len("more:\n")
    for hit in hits:
        rows = _row(hit, files[hit.path], asked, form)
        cost = _size(rows) + (0 if hit.path in shown else _size([hit.path]))
        if cost <= left:
            rows_of[hit], left = rows, left - cost
            shown.add(hit.path)
    found = ["more:"] if rows_of else []
    for path in dict.fromkeys(hit.path for hit in rows_of):
        found.append(path)
        for hit in sorted((hit for hit in rows_of if hit.path == path), key=lambda hit: hit.first):
            found += rows_of[hit]
    return found


def _row(hit: Hit, file: Sequence[str], asked: frozenset[str], form: Form) -> list[str]:
    """Where a piece is with what it defines, and its lines that say most, by their numbers."""
    lines = list(enumerate(file[hit.first - 1 : hit.last], hit.first))
    said = [(number, line) for number, line in lines if line.strip()]
    named = next(((n, line) for n, line in said if is_definition(line) and not line.lstrip().startswith("@")), None)
    head = named or next(iter(said), (hit.first, ""))
    others = [(number, line, len(asked.intersection(words_of(line)))) for number, line in said if number != head[0]]
    best = sorted(sorted(others, key=lambda each: (-each[2], each[0]))[: form.best_lines])
    return [
        f" {hit.first}-{hit.last} {head[1].strip()[: form.line_chars]}",
        *(f"  {number} {line.strip()[: form.line_chars]}" for number, line, shared in best if shared),
    ]


def _size(rows: Sequence[str]) -> int:
    return sum(len(row.encode("utf-8", "replace")) + 1 for row in rows)
