"""Which mend to try next, as anybody would say who sees the code and what the check prints.

Owns `Suspects`. It knows the code, the mends that are plausible there, and the failing calls with what came and what
should have come. Each kind of mend is as likely as another, however many places it has; likelier are kinds that would
make such a difference, and lines that name what the failing calls are about. Within that, chance decides. It knows
nothing of what was right before. Runs nothing.
"""

from __future__ import annotations

import ast
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from etude import syntax
from etude.tasks.mutate import Mutation
from etude.tasks.scripted import Mend

FITS, NAMED, MATTERS = 4.0, 3.0, 3.0
"""How much likelier a mend is whose kind fits the difference, whose line names a value of a failing call, or whose line
was shown to matter: another mend of it changed what the check says."""
_FAILED = re.compile(r"^FAIL \w+\((.*)$", re.MULTILINE)
_OF_TRUTH = frozenset({"opposite", "negation", "connective", "direction", "boundary"})
_OF_SIZE = frozenset({"boundary", "constant", "start", "side", "end", "operator"})
_OF_ORDER = frozenset({"swap", "direction", "end", "method", "side", "variable"})
_OF_NUMBERS = frozenset({"operator", "sign", "swap", "variable", "constant"})


@dataclass(frozen=True)
class Failure:
    """A failing call: its arguments, what came, and what should have. An error that came is the text of it."""

    arguments: Sequence[Any]
    got: Any
    expected: Any
    raised: bool


class Suspects:
    """Mends that were not tried yet."""

    def __init__(self, mends: Sequence[Mutation], text: str, rng: random.Random) -> None:
        self._left, self._rng = list(mends), rng
        self._constants = _constants(text)
        self._of_kind = Counter(mend.bug for mend in mends)
        self._kinds: frozenset[str] = frozenset()
        self._named: set[int] = set()
        self._matters: Counter[int] = Counter()
        self._lines = {Mend(each.right, each.wrong): each.line for each in mends}

    def hear(self, said: str) -> None:
        """What the check prints of the function as it stands."""
        failures = failures_in(said)
        self._kinds = frozenset().union(*map(suggested, failures))
        self._named = {line for line, values in self._constants.items()
                       if any(_names(value, failure) for value in values for failure in failures)}  # fmt: skip

    def learn(self, mend: Mend, before: str, after: str) -> None:
        """A mend did not do; but whether what the check says has changed by it tells of its line."""
        self._matters[self._lines[mend]] += 1 if after != before else -1

    def take(self) -> Mend | None:
        """The next to try, by chance and by how likely it is; None when all were tried."""
        if not self._left:
            return None
        [chosen] = self._rng.choices(self._left, list(map(self._weight, self._left)))
        self._left.remove(chosen)
        return Mend(chosen.right, chosen.wrong)

    def _weight(self, mend: Mutation) -> float:
        weight = 1 / self._of_kind[mend.bug]
        weight *= FITS if mend.bug in self._kinds else 1.0
        weight *= NAMED if mend.line in self._named else 1.0
        return weight * MATTERS ** max(-2, min(2, self._matters[mend.line]))


def failures_in(said: str) -> list[Failure]:
    """The failing calls that a check has printed, as far as they can be read."""
    return [failure for line in _FAILED.findall(said) if (failure := _failure(line)) is not None]


def _failure(line: str) -> Failure | None:
    """What a value is, and where it ends, is told by its being one: any mark may stand in a text."""
    for arguments, rest in _splits(line, ") = "):
        if (given := _literal(f"[{arguments}]")) is None:
            continue
        for got, expected in _splits(rest, ", not "):
            if (right := _literal(expected)) is not None:
                came = _literal(got)
                return Failure(given[0], got if came is None else came[0], right[0], came is None)
    return None


def suggested(failure: Failure) -> frozenset[str]:
    """Kinds of changes that make such a difference."""
    got, expected = failure.got, failure.expected
    if failure.raised:
        return frozenset({"swap", "variable", "end", "boundary", "negation", "constant"})
    if isinstance(got, bool) or isinstance(expected, bool) or got is None or expected is None:
        return _OF_TRUTH
    if isinstance(got, int | float) and isinstance(expected, int | float):
        return _OF_SIZE if abs(got - expected) <= 1 else _OF_NUMBERS
    if isinstance(got, str) and isinstance(expected, str) and got.lower() == expected.lower():
        return frozenset({"method"})
    if type(got) is type(expected) and isinstance(got, str | list | tuple | bytes | dict):
        if not got or not expected:
            return _OF_TRUTH | {"side"}
        if len(got) == len(expected):
            return _OF_ORDER
        return _OF_SIZE if abs(len(got) - len(expected)) == 1 else _OF_TRUTH | {"side", "method"}
    return frozenset({"swap", "variable", "negation"})


def _splits(text: str, mark: str) -> Iterator[tuple[str, str]]:
    at = text.find(mark)
    while at >= 0:
        yield text[:at], text[at + len(mark) :]
        at = text.find(mark, at + 1)


def _literal(text: str) -> tuple[Any] | None:
    """The value that is written there, by itself in a tuple; None where there is none."""
    try:
        return (syntax.literal(text),)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _constants(text: str) -> dict[int, set[Any]]:
    """Texts and numbers by their line. 0 and 1 are everywhere, and tell nothing."""
    found: dict[int, set[Any]] = defaultdict(set)
    for node in ast.walk(syntax.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int) and node.value not in ("", 0, 1):
            found[node.lineno].add(node.value)
    return found


def _names(value: Any, failure: Failure) -> bool:
    for each in _inside([*failure.arguments, failure.expected]):
        if each == value or (isinstance(value, str) and isinstance(each, str) and value in each):
            return True
    return False


def _inside(values: Sequence[Any]) -> Iterator[Any]:
    for each in values:
        if isinstance(each, list | tuple):
            yield from _inside(each)
        elif isinstance(each, dict):
            yield from _inside([*each, *each.values()])
        else:
            yield each
