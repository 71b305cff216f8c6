"""Whether a change keeps to the conventions of its own project, as the project's files show them.

Owns `style_of`. A convention holds where the files of a language, as the session found them, follow one way nearly
always; what a change adds against it is a breach. Where a project has no convention, or too little to show one,
anything goes. Lines count as too long past what the project's own lines are. No taste of ours is in it: a project of
tabs and camelCase is kept to as one of blanks and snake_case is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etude.rewards.quality.conventions import Occurrence, known, language_of, occurrences

FEWEST = 12
"""So many occurrences show a convention, if they agree."""
AGREED = 0.9
_RARE = 0.005
"""Share of a project's own lines that may be longer than its limit."""
_SHORTEST_LIMIT = 79


@dataclass(frozen=True)
class Breach:
    path: str
    line: int
    convention: str
    said: str
    """What was done, and what the project does."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.convention}: {self.said}"


@dataclass(frozen=True)
class Style:
    """`checked` counts the places of a change that a convention speaks about."""

    checked: int
    breaches: tuple[Breach, ...]

    @property
    def share(self) -> float:
        """Of those places, how many break one; 0 where no convention speaks about the change."""
        return len(self.breaches) / self.checked if self.checked else 0.0


def style_of(before: Mapping[str, str], after: Mapping[str, str]) -> Style:
    """Texts by path. Files that did not change are what the conventions are learnt from, with the older text of those
    that did."""
    changed = [path for path in sorted(after) if after[path] != before.get(path) and known(path)]
    languages = {language_of(path) for path in changed}
    given: dict[str, list[Occurrence]] = {language: [] for language in languages}
    lengths: dict[str, list[int]] = {language: [] for language in languages}
    for path, text in before.items():
        if (language := language_of(path)) in languages and known(path):
            given[language] += occurrences(path, text)
            lengths[language] += [len(line) for line in text.split("\n") if line]
    agreed = {language: _agreed(found) for language, found in given.items()}
    limits = {language: _limit(found) for language, found in lengths.items()}
    checked, breaches = 0, list[Breach]()
    for path in changed:
        language = language_of(path)
        places, found = _of_file(path, before.get(path, ""), after[path], agreed[language], limits[language])
        checked, breaches = checked + places, breaches + found
    return Style(checked, tuple(breaches))


def _agreed(found: Sequence[Occurrence]) -> dict[str, str]:
    """Convention → the way of the project, where it has one."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for each in found:
        counts[each.convention][each.way] += 1
    agreed = {}
    for convention, ways in counts.items():
        way, count = ways.most_common(1)[0]
        total = ways.total()
        if total >= FEWEST and count >= AGREED * total:
            agreed[convention] = way
    return agreed


def _limit(lengths: Sequence[int]) -> int | None:
    """Characters of all but the project's longest lines; None for too few lines to tell."""
    if len(lengths) < FEWEST:
        return None
    at = sorted(lengths)[max(0, int(len(lengths) * (1 - _RARE)) - 1)]
    return max(at, _SHORTEST_LIMIT)


def _of_file(path: str, old: str, new: str, agreed: Mapping[str, str], limit: int | None) -> tuple[int, list[Breach]]:
    added = added_lines(old, new)
    checked, breaches = 0, []
    for each in occurrences(path, new):
        way = agreed.get(each.convention)
        if way is None or each.line not in added:
            continue
        checked += 1
        if each.way != way:
            breaches.append(Breach(path, each.line, each.convention, f"{each.way}, and the project has {way}"))
    if limit is not None:
        lines = new.split("\n")
        for number in sorted(added):
            checked += 1
            if len(lines[number - 1]) > limit:
                said = f"{len(lines[number - 1])} characters, and the project stays below {limit + 1}"
                breaches.append(Breach(path, number, "length of lines", said))
    return checked, breaches


def added_lines(old: str, new: str) -> set[int]:
    """Numbers of the lines of `new` whose text stands there more often than in `old`; empty ones left out. What was
    only moved was not added."""
    left = Counter(old.split("\n"))
    added = set()
    for number, line in enumerate(new.split("\n"), 1):
        if left[line] > 0:
            left[line] -= 1
        elif line.strip():
            added.add(number)
    return added
