"""From the indentation a model wrote to the file's: shifted, rescaled, spaces for tabs or tabs for spaces.

Owns `Indentation`, learnt from lines that are the same but for their indentation, and applied to lines that are new:
the first of a few rules that explains every known line is taken for all. What no rule explains is refused, never
guessed: in many languages indentation is meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import gcd
from typing import TypeAlias

_Rule: TypeAlias = Callable[[str], str | None]
_WIDTHS = (4, 2, 8, 3)


def indent_of(line: str) -> str:
    """The spaces and tabs a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t"))]


class Indentation:
    """`pairs` are (as written, as in the file) of lines known to be the same; `written` is all of the model's text."""

    def __init__(self, pairs: Iterable[tuple[str, str]], written: Iterable[str], file: Iterable[str]) -> None:
        self._known: dict[str, str] = {}
        clear = True
        for ours, theirs in pairs:
            clear &= self._known.setdefault(ours, theirs) == theirs
        clear = clear and bool(self._known)
        self.is_identity = clear and all(ours == theirs for ours, theirs in self._known.items())
        self._clear = clear
        self._rule: _Rule | None = None
        if clear and not self.is_identity:
            rules = _rules(self._known, _written_unit(written), _unit_of(file))
            self._rule = next((rule for rule in rules if _explains(rule, self._known)), None)

    @property
    def understood(self) -> bool:
        """Whether one rule explains every known line."""
        return self.is_identity or self._rule is not None

    def translate(self, line: str) -> str | None:
        """The line as the file would have it; None where that cannot be told."""
        indent = indent_of(line)
        if self.is_identity or not line.strip():
            return line
        found = self._known.get(indent) if self._clear else None
        if found is None and self._rule is not None:
            found = self._rule(indent)
        return None if found is None else found + line[len(indent) :]


def _explains(rule: _Rule, known: dict[str, str]) -> bool:
    return all(rule(ours) == theirs for ours, theirs in known.items())


def _rules(known: dict[str, str], written: str, file_unit: str) -> Iterator[_Rule]:
    """What may have happened to the indentation, the likeliest first. `written` is one level as the model wrote it."""
    theirs = "".join(known.values())
    unit = "\t" if "\t" in theirs or (not theirs and file_unit == "\t") else file_unit
    first = next(iter(known))
    shifted = _shifted(first, known[first])
    scales = list(_scales(written, unit))
    yield from (_scaled(one, other, 0) for one, other in scales)
    if len(known[first]) < len(first):
        yield shifted
    for one, other in scales if "\t" in (written, unit) else ():
        yield _scaled(one, other, len(known[first]) // len(other) - len(first) // len(one))
    yield shifted


def _scales(written: str, unit: str) -> Iterator[tuple[str, str]]:
    """Pairs of a level as it may have been written and as it may be in the file, where those are not alike."""
    if not written or not unit or written == unit:
        return
    if "\t" not in (written, unit):
        if len(written) > 1:
            yield written, unit
        return
    widths = [len(unit if written == "\t" else written), *_WIDTHS]
    for width in (each for each in widths if each > 1):
        yield ("\t", " " * width) if written == "\t" else (" " * width, "\t")


def _scaled(one: str, other: str, levels_more: int) -> _Rule:
    """Each level is written as `one` and is `other` in the file, which stands so many levels deeper."""

    def rule(indent: str) -> str | None:
        levels, rest = divmod(len(indent), len(one))
        if one == "\t":  # spaces after tabs align; they are no levels
            levels = len(indent) - len(indent.lstrip("\t"))
            rest = len(indent) - levels
        if "\t" in indent[levels * len(one) :] or indent[: levels * len(one)].strip(one[0]):
            return None
        return None if levels + levels_more < 0 else other * (levels + levels_more) + " " * rest

    return rule


def _shifted(ours: str, theirs: str) -> _Rule:
    """The whole stands deeper in the file, or less deep, than it was written."""

    def rule(indent: str) -> str | None:
        if theirs.endswith(ours):
            return theirs[: len(theirs) - len(ours)] + indent
        surplus = ours[: len(ours) - len(theirs)]
        return indent[len(surplus) :] if ours.endswith(theirs) and indent.startswith(surplus) else None

    return rule


def _written_unit(lines: Iterable[str]) -> str:
    """One level of what a model wrote, as far as a few lines show it; empty where nothing is indented."""
    indents = [indent for line in lines if line.strip() and (indent := indent_of(line))]
    if any("\t" in indent for indent in indents):
        return "\t"
    return " " * gcd(*map(len, indents)) if indents else ""


def _unit_of(lines: Iterable[str]) -> str:
    """One level of a file's indentation: the commonest step from a line to a deeper one."""
    steps: Counter[str] = Counter()
    before = ""
    for line in lines:
        if line.strip():
            indent = indent_of(line)
            if len(indent) > len(before) and indent.startswith(before):
                steps[indent[len(before) :]] += 1
            before = indent
    common = [step for step, _ in steps.most_common() if step == "\t" or len(step) in _WIDTHS]
    return common[0] if common else ""
