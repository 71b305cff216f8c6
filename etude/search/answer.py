"""What a search says: the best pieces whole, and more of them as an outline.

Owns `answer`, the form of it. Few questions are answered by the first piece and most by one of twenty, so the first few
are shown with their lines, and each of the others by where it is, what it is (`headings`) and the lines that say most
of what was asked, the pieces of a file together. The whole is held to a budget, which is spent from the best piece
down. It depends on the question, the pieces and their lines alone: whoever asks, in training or at a desk, reads the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from etude.search.base import Hit
from etude.search.headings import heading
from etude.search.words import words_of

ANSWER_VERSION = 2
BUDGET_BYTES = 2600
"""Of an answer: about 720 tokens."""


@dataclass(frozen=True)
class Form:
    """Chosen on the development part of `benchmarks/search.py`."""

    pieces: int = 20
    """How many are looked at."""
    whole: int = 2
    """So many of the best are shown with their lines."""
    whole_lines: int = 20
    whole_chars: int = 240
    """Of each of these lines."""
    best_lines: int = 1
    """Of a piece in the outline, beside its heading."""
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
    others = []
    for hit in hits[: form.whole]:
        own = _whole(hit, files[hit.path], form) if rows else _first(hit, files[hit.path], form, budget)
        if not rows or _size([*rows, *own]) <= budget:
            rows += own
        else:
            others.append(hit)
    outline = _outline([*others, *hits[form.whole :]], files, asked, budget - _size(rows), form)
    return "\n".join([*rows, *outline]).rstrip("\n")


def named(path: str) -> str:
    """A path on one line, whatever is in it."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in path)


def _first(hit: Hit, file: Sequence[str], form: Form, budget: int) -> list[str]:
    """The best piece, with as many of its lines as there is room for."""
    rows = _whole(hit, file, form)
    for most in range(min(form.whole_lines, hit.last - hit.first + 1) - 1, -1, -1):
        if _size(rows) <= budget:
            break
        rows = _whole(hit, file, form, most)
    return rows


def _whole(hit: Hit, file: Sequence[str], form: Form, most: int | None = None) -> list[str]:
    lines = file[hit.first - 1 : hit.last]
    shown = lines[: form.whole_lines if most is None else most]
    more = [f"[{len(lines) - len(shown)} more lines]"] if len(lines) > len(shown) else []
    return [
        f"{named(hit.path)}:{hit.first}-{hit.last}",
        *(_clipped(line, form.whole_chars) for line in shown),
        *more,
        "",
    ]


def _clipped(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[:most]} [{len(line) - most} more characters]"


def _outline(
    hits: Sequence[Hit], files: Mapping[str, Sequence[str]], asked: frozenset[str], budget: int, form: Form
) -> list[str]:
    """A row with each file's path, and below it its pieces in their order; the best that there is room for."""
    rows_of: dict[Hit, list[str]] = {}
    shown: set[str] = set()
    left = budget - len("more:\n")
    for hit in hits:
        rows = _row(hit, files[hit.path], asked, form)
        cost = _size(rows) + (0 if hit.path in shown else _size([named(hit.path)]))
        if cost <= left:
            rows_of[hit], left = rows, left - cost
            shown.add(hit.path)
    found = ["more:"] if rows_of else []
    for path in dict.fromkeys(hit.path for hit in rows_of):
        found.append(named(path))
        for hit in sorted((hit for hit in rows_of if hit.path == path), key=lambda hit: hit.first):
            found += rows_of[hit]
    return found


def _row(hit: Hit, file: Sequence[str], asked: frozenset[str], form: Form) -> list[str]:
    """Where a piece is with what it is, and its lines that say most, by their numbers."""
    head, text = heading(hit, file, form.line_chars)
    said = [(number, line) for number, line in enumerate(file[hit.first - 1 : hit.last], hit.first) if line.strip()]
    others = [(number, line, len(asked.intersection(words_of(line)))) for number, line in said if number != head]
    best = sorted(sorted(others, key=lambda each: (-each[2], each[0]))[: form.best_lines])
    return [
        f" {hit.first}-{hit.last} {text}",
        *(f"  {number} {line.strip()[: form.line_chars]}" for number, line, shared in best if shared),
    ]


def _size(rows: Sequence[str]) -> int:
    return sum(len(row.encode("utf-8", "replace")) + 1 for row in rows)
