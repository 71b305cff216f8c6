"""One edit of one text: the ladder from an exact match to one whose surroundings have changed.

Owns `replace`, `replace_each`, and the rule by which an edit is accepted: at the strictest rung that finds anything,
it must find one place. Below the exact rung an edit is applied as a patch: only the lines that differ between old and
new are touched, so what the model remembered wrongly around them stays as it is in the file. A line that is changed
or removed is always the one that was given, up to its spacing; only its surroundings may have changed since.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from typing import Literal, TypeAlias

from etude.harness.edits import explain
from etude.harness.edits.hunks import Edit
from etude.harness.edits.indentation import Indentation, indent_of
from etude.harness.edits.places import Match, likely, weight, windows, without_line_end, without_spacing

Tolerance: TypeAlias = Literal["exact", "line_ends", "spacing", "context"]
"""How much of what a model wrote may differ from the file: nothing; whitespace at line ends; all indentation and
spacing; and lines around those that change."""

_RUNGS: tuple[Tolerance, ...] = ("exact", "line_ends", "spacing", "context")
_MIN_SCORE = 0.5  # of a place whose surroundings have changed
_MARGIN = 0.2  # by which it must be better than any other
_OPENERS = (":", "{", "(", "[", "=>", "->")
_TELLING = 15.0  # so much must a text say that finding it is no accident


class EditRefused(Exception):
    """The edit was not made; the message says why, for the model."""


@dataclass(frozen=True)
class Replacement:
    """The new text; where it changed, as first and last line counted from 1; what was tolerated, empty if nothing."""

    text: str
    first: int
    last: int
    notes: tuple[str, ...] = ()


def replace_each(text: str, edits: Sequence[Edit], tolerance: Tolerance = "context") -> list[Replacement]:
    """Each edit made in the text that the one before it left. Raises Refused, naming every edit that does not fit."""
    done: list[Replacement] = []
    faults: list[str] = []
    for number, edit in enumerate(edits, 1):
        try:
            done.append(replace(text, edit, tolerance))
            text = done[-1].text
        except EditRefused as refusal:
            faults.append(f"hunk {number} of {len(edits)}: {refusal}" if len(edits) > 1 else str(refusal))
    if faults:
        raise EditRefused("\n".join([*faults, "nothing was changed"] if len(edits) > 1 else faults))
    return done


def replace(text: str, edit: Edit, tolerance: Tolerance = "context") -> Replacement:
    """The text with its one occurrence of `edit.old` replaced, or all of them. Raises Refused."""
    if edit.old == edit.new:
        raise EditRefused("old and new are the same")
    if not edit.old.strip():
        raise EditRefused("old is blank; give the text to replace, or write the file anew")
    done = _climb(text, edit, tolerance)
    if done.text == text:
        raise EditRefused("this would change nothing: the file already is so, up to whitespace at line ends")
    return done


def _climb(text: str, edit: Edit, tolerance: Tolerance) -> Replacement:
    starts = _find_all(text, edit.old)
    if starts and edit.every:
        return _replace_every(text, edit, starts)
    clear = [at for at in starts if not _indented_more(text, at, edit, tolerance)]
    if clear:  # what was given with its indentation is not found deeper; without, it may have been meant anywhere
        return _replace_exact(text, edit, clear if edit.old[0] in " \t" else starts)
    if edit.every or tolerance == "exact":
        raise EditRefused(explain.missing(text.split("\n"), edit.old.split("\n")))
    return _replace_lines(text, edit, _RUNGS.index(tolerance))


# --- exact: characters ----------------------------------------------------------------------------------------------


def _find_all(text: str, old: str) -> list[int]:
    """Where `old` starts, overlapping occurrences included: they too would be ambiguous."""
    starts, at = [], text.find(old)
    while at >= 0:
        starts.append(at)
        at = text.find(old, at + 1)
    return starts


def _indented_more(text: str, at: int, edit: Edit, tolerance: Tolerance) -> bool:
    """Whether what is found at `at` stands deeper than it was given, and what is new would stand wrongly after it.

    A first line given without its indentation is a habit, and the lines after it are then meant as they are; unless
    they are less deep than it really stands, or only as deep where it opens a block.
    """
    indent = text[text.rfind("\n", 0, at) + 1 : at]
    if not indent or indent.strip(" \t") or _RUNGS.index(tolerance) < _RUNGS.index("spacing"):
        return False
    if edit.old[0] in " \t":
        return True
    first, *others = edit.new.split("\n")
    depths = [len(indent_of(line)) for line in others if line.strip()]
    if "\n" in edit.old.strip("\n") or not depths:
        return False
    return min(depths) < len(indent) or (min(depths) == len(indent) and first.rstrip().endswith(_OPENERS))


def _replace_every(text: str, edit: Edit, starts: Sequence[int]) -> Replacement:
    first, last = (line + 1 for line in _line_numbers(text, [starts[0], starts[-1]]))
    new, count = _with_ending(edit.new, _ending(text, starts[0])), text.count(edit.old)
    return Replacement(text.replace(edit.old, new), first, last, (f"in {count} places",) if count > 1 else ())


def _replace_exact(text: str, edit: Edit, starts: Sequence[int]) -> Replacement:
    old, new = edit.old, _with_ending(edit.new, _ending(text, starts[0]))
    if len(starts) > 1:
        spans = [(line, line + old.rstrip("\n").count("\n") + 1) for line in _line_numbers(text, starts)]
        raise EditRefused(explain.ambiguous(text.split("\n"), spans))
    [start] = starts
    if text[start] == "\n" and text[start - 1 : start] == "\r":
        start, old = start - 1, "\r" + old  # a line's end is taken whole
    _refuse_repetition(text, start, old, new)
    end = start + len(old)
    if not new:
        start, end = _removed(text, start, end)
    return _made(text, start, end, new)


def _removed(text: str, start: int, end: int) -> tuple[int, int]:
    """What goes with a text that goes: of a line that is empty without it, indentation and line end too."""
    line = text.rfind("\n", 0, start) + 1
    if text[line:start].strip(" \t") or not (end == len(text) or text[end] in "\r\n" or text[end - 1] == "\n"):
        return start, end
    if text[end - 1] != "\n" and end < len(text):
        end += len(_ending(text, start))
    return line, end


def _refuse_repetition(text: str, start: int, old: str, new: str) -> None:
    """An edit that adds to what it finds is found again after it was made, and would add once more."""
    at = new.find(old)
    while at >= 0:
        adds = (new[:at] + new[at + len(old) :]).strip()
        if adds and start >= at and text.startswith(new, start - at):
            line = text.count("\n", 0, start - at) + 1
            raise EditRefused(f"the text already is as new has it, from line {line} on; this edit was made before")
        at = new.find(old, at + 1)


def _line_numbers(text: str, starts: Sequence[int]) -> list[int]:
    numbers, line, before = [], 0, 0
    for start in starts:
        line += text.count("\n", before, start)
        numbers.append(line)
        before = start
    return numbers


def _made(text: str, start: int, end: int, new: str, *notes: str) -> Replacement:
    first = text.count("\n", 0, start) + 1
    return Replacement(text[:start] + new + text[end:], first, first + new.rstrip("\n").count("\n"), notes)


def _ending(text: str, at: int) -> str:
    """How the line at `at` ends; the last one as the one before it."""
    end = text.find("\n", at)
    if end < 0:
        end = text.rfind("\n", 0, at)
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def _with_ending(new: str, ending: str) -> str:
    return new.replace("\r\n", "\n").replace("\n", ending) if ending == "\r\n" else new


# --- tolerant: lines ------------------------------------------------------------------------------------------------


def _replace_lines(text: str, edit: Edit, rung: int) -> Replacement:
    file, readings = text.split("\n"), _readings(edit)
    if found := _found(file, readings, without_line_end):
        return _patched(file, *found, "whitespace at line ends ignored")
    if (within := _replace_within_lines(text, edit, _RUNGS[rung])) is not None:
        return within
    old, new = readings[0]
    there = windows(file, new, without_line_end) if any(line.strip() for line in new) else []
    if there and sum(weight(line) for line in new) >= _TELLING:
        raise EditRefused(f"old is not there; new already is, {_at(there)}: this edit was made before")
    if rung >= _RUNGS.index("spacing") and (found := _found(file, readings, without_spacing)):
        return _patched(file, *found, "indentation and spacing ignored")
    if rung >= _RUNGS.index("context") and (place := _best(file, old, new)) is not None:
        return _patched(file, old, new, place, f"lines around it are not as you gave them{_stale(file, old, place)}")
    raise EditRefused(explain.missing(file, old, f" (new is, {_at(there)})" if there else ""))


def _readings(edit: Edit) -> list[tuple[list[str], list[str]]]:
    """Old and new as lines: as given, without the line end after the last, without blank lines at both ends."""
    old, new = edit.old.split("\n"), [line.removesuffix("\r") for line in edit.new.split("\n")]
    if not edit.new and old[-1]:
        new = []  # lines that are removed leave no empty one behind
    readings = [(old, new)]
    if not old[-1]:
        readings.append((old[:-1], new[:-1] if new and not new[-1] else new))
    while len(old) > 1 and new and not old[0].strip() and not new[0].strip():
        old, new = old[1:], new[1:]
    while len(old) > 1 and new and not old[-1].strip() and not new[-1].strip():
        old, new = old[:-1], new[:-1]
    return [*readings, (old, new)]


def _found(
    file: list[str], readings: Sequence[tuple[list[str], list[str]]], key: Callable[[str], str]
) -> tuple[list[str], list[str], Match] | None:
    """The first reading that stands in the file up to what the key leaves out; Refused where it does so twice."""
    for old, new in readings:
        if places := windows(file, old, key):
            place = _only(file, places)
            made = windows(file, new, key) if len(new) > len(old) else []
            if any(_overlap(place, each) for each in made):
                raise EditRefused(f"the text already is as new has it, {_at(made)}; this edit was made before")
            return old, new, place
    return None


def _overlap(one: Match, other: Match) -> bool:
    return one.span[0] < other.span[1] and other.span[0] < one.span[1]


def _only(file: Sequence[str], places: Sequence[Match]) -> Match:
    if len(places) > 1:
        raise EditRefused(explain.ambiguous(file, [place.span for place in places]))
    return places[0]


def _replace_within_lines(text: str, edit: Edit, tolerance: Tolerance) -> Replacement | None:
    """A match that begins or ends inside a line, whatever whitespace its lines end with."""
    pattern = r"[ \t\r]*\n".join(re.escape(line.rstrip()) for line in edit.old.split("\n"))
    matches = islice(re.finditer(pattern, text), 100)
    spans = [match.span() for match in matches if not _indented_more(text, match.start(), edit, tolerance)]
    if not spans:
        return None
    if len(spans) > 1:
        lines = _line_numbers(text, [start for start, _ in spans])
        raise EditRefused(explain.ambiguous(text.split("\n"), [(line, line + 1) for line in lines]))
    [(start, end)] = spans
    return _made(text, start, end, _with_ending(edit.new, _ending(text, start)), "whitespace at line ends ignored")


def _best(file: Sequence[str], old: Sequence[str], new: Sequence[str]) -> Match | None:
    """The place whose surroundings have changed least, if there is one; Refused where another is about as near."""
    changes = _differences([line.rstrip() for line in old], [line.rstrip() for line in new])
    near = {at for i1, i2, _, _ in changes for at in (range(i1, i2) if i1 < i2 else (i1 - 1, i1))}
    beside = sorted(near & set(range(len(old))))
    places = likely(file, old, beside)
    if not places or places[0].score < _MIN_SCORE:
        return None
    best = places[0]
    told = [at for at in beside if old[at].strip()]
    rivals = [each for each in places[1:] if each.score > best.score - _MARGIN and _elsewhere(best, each, told)]
    if rivals:
        spans = sorted({place.span for place in [best, *rivals]})
        raise EditRefused(explain.ambiguous(file, spans, "old is not there as it was given, but almost, in {} places"))
    return best


def _elsewhere(best: Match, other: Match, told: Sequence[int]) -> bool:
    """Whether the lines that say where the change is are others there; not where one way to see it sees fewer."""
    seen = [at for at in told if other.same[at]]
    return not seen or any(other.lines[at] != best.lines[at] for at in seen)


def _at(places: Sequence[Match]) -> str:
    return "at line " + ", ".join(str(place.span[0] + 1) for place in places[:8])


def _stale(file: Sequence[str], old: Sequence[str], place: Match) -> str:
    """The lines of the file that stand where others were given."""
    lines = list(place.lines)
    for at in range(1, len(lines)):
        lines[at] = lines[at] if lines[at] >= 0 or lines[at - 1] < 0 else lines[at - 1] + 1
    for at in range(len(lines) - 2, -1, -1):
        lines[at] = lines[at] if lines[at] >= 0 else lines[at + 1] - 1
    beside = [(line, asked) for line, asked in zip(lines, old, strict=True) if 0 <= line < len(file)]
    stale = [str(line + 1) for line, asked in beside if without_spacing(file[line]) != without_spacing(asked)]
    return f": line {', '.join(stale[:5])}" if stale else ""


# --- a patch --------------------------------------------------------------------------------------------------------


def _patched(file: list[str], old: list[str], new: list[str], place: Match, note: str) -> Replacement:
    """The file with the differences between old and new made at a place, in the file's own writing."""
    indentation = _indentation(file, old, new, place, range(len(old)))
    ending = "\r" if any(line.endswith("\r") for line in file[slice(*place.span)]) else ""
    # a line's end counts only where the file has just what was given
    there = [file[line].removesuffix("\r") if line >= 0 else None for line in place.lines]
    ours = [line if line == exact else without_line_end(line) for line, exact in zip(old, there, strict=True)]
    as_written = _kept_as_written(file, old, new, place)
    result, first, last = list(file), place.span[0], -1
    for i1, i2, j1, j2 in reversed(_differences(ours, [without_line_end(line) for line in new])):
        stretch = _stretch(old, place, i1, i2)
        if stretch is None:
            raise EditRefused(explain.missing(file, old, " as it was given, where it changes"))
        here = indentation
        if not here.understood:
            here = _indentation(file, old, new, place, range(max(i1 - 1, 0), min(i2 + 1, len(old))))
        lines = [here.translate(line) for line in new[j1:j2]]
        moved = not (here.is_identity or as_written) and _reindents(old[i1:i2], new[j1:j2], file[slice(*stretch)])
        if None in lines or moved:
            raise EditRefused(explain.missing(file, old, ", and it is not clear how new would be indented"))
        result[slice(*stretch)] = [f"{line}{ending}" for line in lines]
        first, end = stretch[0], stretch[0] + len(lines) - 1
        last = end if last < 0 else last + len(lines) - (stretch[1] - stretch[0])
    if ending and result and not file[-1].endswith("\r") and result[-1].endswith("\r"):
        result[-1] = result[-1].removesuffix("\r")  # the last line of a file has no ending
    return Replacement("\n".join(result), first + 1, max(first, last) + 1, (note,))


def _kept_as_written(file: Sequence[str], old: Sequence[str], new: Sequence[str], place: Match) -> bool:
    """Whether new repeats a line of old with an indentation that is not the file's: then all of it is written so."""
    pairs = zip(old, place.lines, place.same, strict=True)
    return any(same and a.strip() and indent_of(a) != indent_of(file[b]) and a in new for a, b, same in pairs)


def _indentation(
    file: Sequence[str], old: Sequence[str], new: Sequence[str], place: Match, asked: range
) -> Indentation:
    """As some of the asked lines show it: those that are the same in the file."""
    shown = [at for at in asked if place.same[at] and old[at].strip()]
    pairs = [(indent_of(old[at]), indent_of(file[place.lines[at]])) for at in shown]
    return Indentation(pairs, [*old, *new], file)


def _differences(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Which stretches of old become which of new. What both begin with, and then what both end with, stays."""
    head = tail = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    matcher = SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    changes = [stretch for tag, *stretch in matcher.get_opcodes() if tag != "equal"]
    return [(i1 + head, i2 + head, j1 + head, j2 + head) for i1, i2, j1, j2 in changes]


def _stretch(old: Sequence[str], place: Match, i1: int, i2: int) -> tuple[int, int] | None:
    """The file's lines for the asked lines from i1 to i2; for none of them, the point between their neighbours."""
    if i1 < i2:
        lines = place.lines[i1:i2]
        if not all(place.same[i1:i2]) or lines != tuple(range(lines[0], lines[0] + len(lines))):
            return None
        above_fits = old[i1].strip() or i1 == 0 or (place.same[i1 - 1] and place.lines[i1 - 1] == lines[0] - 1)
        below_fits = old[i2 - 1].strip() or i2 == len(old) or (place.same[i2] and place.lines[i2] == lines[-1] + 1)
        return (lines[0], lines[-1] + 1) if above_fits and below_fits else None  # a blank line may be any other
    before = place.lines[i1 - 1] + 1 if i1 > 0 else None
    after = place.lines[i1] if i1 < len(old) else None
    sure = [place.same[at] and bool(old[at].strip()) for at in (i1 - 1, i1) if 0 <= at < len(old)]
    both = all(place.same[at] for at in (i1 - 1, i1) if 0 <= at < len(old))
    if (before is not None and after is not None and before != after) or not (any(sure) or both):
        return None
    point = after if before is None else before
    return None if point is None or point < 0 else (point, point)


def _reindents(old: Sequence[str], new: Sequence[str], there: Sequence[str]) -> bool:
    """Whether a line is changed from another indentation than the file's to just that: was it meant to move?

    Not where a part of new stands less deep than the file's lines: then new is written as old was.
    """
    was = {without_spacing(a): (indent_of(a), indent_of(b)) for a, b in zip(old, there, strict=True) if a.strip()}
    depth = min((len(theirs) for _, theirs in was.values()), default=0)
    if any(len(indent_of(line)) < depth for line in new if line.strip()):
        return False
    moved = ((was[key], indent_of(line)) for line in new if (key := without_spacing(line)) in was)
    return any(ours != theirs == now for (ours, theirs), now in moved)
