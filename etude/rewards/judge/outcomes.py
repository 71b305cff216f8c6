"""What is judged, and every way it can end.

Owns `Change`, `Judged`, `NotJudged` and `RubricResult`. There is no third state between a verdict and the name of what
kept one from being reached, and no number that stands for a missing one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Why: TypeAlias = Literal[
    "refused",  # the model would not answer, or a filter stopped it
    "unreadable",  # what came is not the answer that was asked for
    "cut",  # the answer did not end within its tokens
    "ungrounded",  # the quote it gave as its reason does not stand in the change
    "late",  # no answer within the deadline
    "endpoint",  # the server does not answer, or not what is asked
    "too long",  # the change does not fit
    "injected",  # the change talked the judge into a yes
    "disagreed",  # its votes have no majority
]


@dataclass(frozen=True)
class Change:
    """What is judged: the instruction, and what became of the files, as a unified diff a file."""

    instruction: str
    diffs: tuple[str, ...]
    message: str = ""
    """The agent's last words."""

    @property
    def text(self) -> str:
        return "\n".join((*self.diffs, *([f"The agent's last message:\n{self.message}"] if self.message else [])))


@dataclass(frozen=True)
class Judged:
    """A verdict on one criterion, with the line of the change it rests on (empty where something is not there)."""

    criterion: str
    met: bool
    quote: str
    reason: str


@dataclass(frozen=True)
class NotJudged:
    """No verdict on one criterion, and why."""

    criterion: str
    why: Why
    detail: str


Judgement: TypeAlias = Judged | NotJudged


@dataclass(frozen=True)
class RubricResult:
    """One judgement a criterion, in the rubric's order."""

    judgements: tuple[Judgement, ...]

    @property
    def score(self) -> float | None:
        """The share of criteria that are met; None unless every one of them was judged."""
        judged = [each for each in self.judgements if isinstance(each, Judged)]
        if not judged or len(judged) < len(self.judgements):
            return None
        return sum(each.met for each in judged) / len(judged)

    @property
    def problems(self) -> tuple[NotJudged, ...]:
        return tuple(each for each in self.judgements if isinstance(each, NotJudged))


COMPARED_BYTES = 1 << 17
"""Of all files that changed, together. To compare lines costs their square: what is more is shown as out and in."""


def change_of(instruction: str, before: Mapping[str, bytes], after: Mapping[str, bytes], message: str = "") -> Change:
    """The change between two workspaces, files sorted by path. What is no text is named, not shown."""
    diffs, left = [], COMPARED_BYTES
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        if b"\0" in (old or b"") + (new or b""):
            diffs.append(f"{path}: a binary file was {'changed' if old and new else 'added' if new else 'removed'}")
            continue
        was, now = ((data or b"").decode("utf-8", "replace").splitlines() for data in (old, new))
        if (left := left - len(old or b"") - len(new or b"")) < 0:
            diffs.append(
                "\n".join([f"--- a/{path}", f"+++ b/{path}", *(f"-{x}" for x in was), *(f"+{x}" for x in now)])
            )
            continue
        lines = difflib.unified_diff(
            was,
            now,
            f"a/{path}" if old is not None else "/dev/null",
            f"b/{path}" if new is not None else "/dev/null",
            lineterm="",
        )
        diffs.append("\n".join(lines))
    return Change(instruction, tuple(diffs), message)
