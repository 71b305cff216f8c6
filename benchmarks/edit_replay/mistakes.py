"""How models get an edit wrong, applied to edits that people made, for `benchmarks/edits.py`.

A `Case` is what a model would have sent (`old`, `new`), the file it meets, and what must come of it. Each maker takes
a history's hunk and returns a case, or None where the hunk does not lend itself to that mistake. Nothing here knows
how edits are matched.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edit_replay.histories import Hunk


@dataclass(frozen=True)
class Source:
    """A hunk in its file: `before` and `after` are lines, `earlier` the file one change before, with its hunks."""

    before: Sequence[str]
    after: Sequence[str]
    hunk: Hunk
    earlier: Sequence[str] | None
    earlier_hunks: Sequence[Hunk]

    @property
    def added(self) -> list[str]:
        return list(self.after[self.hunk.new_start : self.hunk.new_end])

    @property
    def meant(self) -> list[str]:
        """The file with this one hunk applied."""
        return [*self.before[: self.hunk.start], *self.added, *self.before[self.hunk.end :]]


@dataclass(frozen=True)
class Case:
    """`meant` is the right text afterwards; None where the right answer is to change nothing. `kept_head` and
    `kept_tail` are what stands before and after the place: text that no right edit touches."""

    file: str
    old: str
    new: str
    meant: str | None
    kept_head: str
    kept_tail: str
    line: int
    """Where the edit was meant, counted from 1; a refusal for ambiguity must name it."""


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _window(source: Source, rng: random.Random) -> tuple[int, int] | None:
    """Lines around the hunk, as few as make it the only such place, and at times one or two more."""
    hunk, before = source.hunk, source.before
    text = _joined(before)
    for context in range(rng.choice((0, 1, 1, 2, 3)), 12):
        start, end = max(hunk.start - context, 0), min(hunk.end + context, len(before))
        old = "\n".join(before[start:end])
        if old.strip() and text.count(old) == 1 and f"\n{old}\n" in f"\n{text}":
            return start, end
    return None


def _case(source: Source, start: int, end: int, old: Sequence[str], new: Sequence[str]) -> Case | None:
    """What a model sends has no newline at its end, unless whole lines are to go.

    None where a mistake has made the text exactly what stands in another place: nobody could tell what was meant.
    """
    hunk = source.hunk
    if not "".join(old).strip() or list(old) == list(new) or list(new) == [""]:
        return None
    if list(old) != list(source.before[start:end]) and f"\n{_joined(old)}" in f"\n{_joined(source.before)}":
        return None
    return Case(
        _joined(source.before),
        "\n".join(old) if new else _joined(old),
        "\n".join(new),
        _joined(source.meant),
        _joined(source.before[: hunk.start]),
        _joined(source.before[hunk.end :]),
        start + 1,
    )


def _windowed(source: Source, rng: random.Random) -> tuple[int, int, list[str], list[str]] | None:
    window = _window(source, rng)
    if window is None:
        return None
    start, end = window
    head, tail = source.before[start : source.hunk.start], source.before[source.hunk.end : end]
    return start, end, list(source.before[start:end]), [*head, *source.added, *tail]


def as_it_is(source: Source, rng: random.Random) -> Case | None:
    """No mistake."""
    found = _windowed(source, rng)
    return _case(source, *found) if found else None


# --- whitespace -----------------------------------------------------------------------------------------------------


def trailing_space(source: Source, rng: random.Random) -> Case | None:
    """Whitespace at the ends of lines, or on blank ones, that the file does not have."""
    found = _windowed(source, rng)
    if found is None:
        return None
    start, end, old, new = found
    at = rng.randrange(len(old))
    old = [line + " " * rng.choice((1, 2, 4)) if k == at or rng.random() < 0.2 else line for k, line in enumerate(old)]
    return _case(source, start, end, old, new)


def lost_trailing_space(source: Source, rng: random.Random) -> Case | None:
    """The file has whitespace at the ends of lines; the model writes none."""
    found = _windowed(source, rng)
    if found is None or found[1] - found[0] < 2:
        return None
    start, end, old, new = found
    spaced = [
        *source.before[:start],
        *(f"{line}  " for line in source.before[start : end - 1]),
        *source.before[end - 1 :],
    ]
    return _case(Source(spaced, source.after, source.hunk, None, ()), start, end, old, new)


def line_endings(source: Source, rng: random.Random) -> Case | None:
    """The file's lines end in CR LF; the model's never do."""
    case = as_it_is(source, rng)
    if case is None or case.meant is None:
        return None
    file, meant, head, tail = (
        text.replace("\n", "\r\n") for text in (case.file, case.meant, case.kept_head, case.kept_tail)
    )
    return Case(file, case.old, case.new, meant, head, tail, case.line)


# --- indentation ----------------------------------------------------------------------------------------------------


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _reindented(source: Source, rng: random.Random, change: Callable[[str], str]) -> Case | None:
    found = _windowed(source, rng)
    if found is None:
        return None
    start, end, old, new = found
    rewritten = [
        [change(_indent(line)) + line.lstrip(" \t") if line.strip() else line for line in side] for side in (old, new)
    ]
    return _case(source, start, end, *rewritten) if rewritten[0] != old else None


def dedented(source: Source, rng: random.Random) -> Case | None:
    """Written from the left margin, however deep it stands."""
    lines = [*source.before[source.hunk.start : source.hunk.end], *source.added]
    found = _windowed(source, random.Random(rng.random()))
    if found is None:
        return None
    start, end, old, new = found
    margin = min((_indent(line) for line in [*old, *new] if line.strip()), key=len, default="")
    if not margin or not all(line.startswith(margin) for line in [*old, *new] if line.strip()) or not lines:
        return None
    cut = [[line[len(margin) :] if line.strip() else line for line in side] for side in (old, new)]
    return _case(source, start, end, *cut)


def deeper(source: Source, rng: random.Random) -> Case | None:
    """The whole of it one level too deep."""
    step = "\t" if any(line.startswith("\t") for line in source.before) else " " * rng.choice((2, 4))
    return _reindented(source, rng, lambda indent: step + indent)


def spaces_for_tabs(source: Source, rng: random.Random) -> Case | None:
    if not any(line.startswith("\t") for line in source.before):
        return None
    width = rng.choice((2, 4, 4, 8))
    return _reindented(source, rng, lambda indent: indent.replace("\t", " " * width))


def tabs_for_spaces(source: Source, rng: random.Random) -> Case | None:
    if (
        sum(line.startswith("    ") for line in source.before)
        < sum(line.startswith("  ") for line in source.before) * 0.7
    ):
        return None
    return _reindented(source, rng, lambda indent: indent.replace("    ", "\t"))


def half_as_wide(source: Source, rng: random.Random) -> Case | None:
    """Levels of two spaces in a file of four."""
    widths = {len(_indent(line)) for line in source.before if line.strip()}
    if any(width % 4 for width in widths) or len(widths) < 2:
        return None
    return _reindented(source, rng, lambda indent: indent[: len(indent) // 2])


# --- stale context, duplicates, repetition --------------------------------------------------------------------------


def stale(source: Source, rng: random.Random) -> Case | None:
    """The lines around the change are as they were one commit ago; the changed lines themselves are up to date."""
    if source.earlier is None:
        return None
    hunk, context = source.hunk, rng.choice((2, 3, 3, 4))
    start, end = max(hunk.start - context, 0), min(hunk.end + context, len(source.before))
    changed = [(each.new_start, each.new_end) for each in source.earlier_hunks]
    if any((a < hunk.end and hunk.start < b) or (a == b and hunk.start < a < hunk.end) for a, b in changed):
        return None
    if any(hunk.start == hunk.end and a <= hunk.start <= b for a, b in changed):
        return None  # an insertion beside what has changed since: nobody could say on which side
    first, last = _earlier_line(source, start), _earlier_line(source, end)
    a, b = _earlier_line(source, hunk.start), _earlier_line(source, hunk.end)
    if None in (first, last, a, b):
        return None
    head, tail = list(source.earlier[first:a]), list(source.earlier[b:last])
    if [*head, *tail] == [*source.before[start : hunk.start], *source.before[hunk.end : end]]:
        return None
    old = [*head, *source.earlier[a:b], *tail]
    if _joined(source.before).count("\n".join(old)):
        return None
    return _case(source, start, end, old, [*head, *source.added, *tail])


def _earlier_line(source: Source, line: int) -> int | None:
    """The same point in the file one change before; None inside what has changed since."""
    shift = 0
    for each in source.earlier_hunks:
        if each.new_start < line < each.new_end:
            return None
        if each.new_end <= line and (each.new_start, each.new_end) != (line, line):
            shift = each.end - each.new_end
    return line + shift


def duplicate(source: Source, rng: random.Random) -> Case | None:
    """Lines that stand in the file more than once, given alone."""
    hunk, text = source.hunk, f"\n{_joined(source.before)}"
    old = "\n".join(source.before[hunk.start : hunk.end])
    if not old.strip() or text.count(f"\n{old}\n") < 2:
        return None
    case = _case(source, hunk.start, hunk.end, source.before[hunk.start : hunk.end], source.added)
    return case and Case(case.file, case.old, case.new, None, "", "", case.line)


def made_before(source: Source, rng: random.Random) -> Case | None:
    """The edit has been made already, by an earlier call say."""
    case = as_it_is(source, rng)
    if case is None or case.meant is None or not case.new.strip():
        return None
    return Case(case.meant, case.old, case.new, None, "", "", case.line)


MISTAKES: Mapping[str, tuple[int, tuple[Callable[[Source, random.Random], Case | None], ...]]] = {
    "as it is": (20, (as_it_is,)),
    "whitespace": (20, (trailing_space, lost_trailing_space, line_endings)),
    "indentation": (25, (dedented, deeper, spaces_for_tabs, tabs_for_spaces, half_as_wide)),
    "stale context": (15, (stale,)),
    "duplicates": (12, (duplicate,)),
    "made before": (8, (made_before,)),
}
"""The kinds of mistakes, their shares in a hundred edits, and how each is made."""
