"""What is asked of an index: which trajectories, in which order, and from where on.

Owns `Filter`, `ORDERS` and the SQL of a page. A page is found by its keys (the value that orders, and the row's
number), so that the thousandth page costs what the first does. What a user types is only ever a value, or words that
full text is searched for. Runs nothing.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from etude.errors import ConfigError

ORDERS = {
    "kept": "seq", "reward": "reward_key", "step": "step_key", "turns": "turns", "sampled_tokens": "sampled_tokens",
    "seconds": "seconds", "ended_at": "ended_at",
}  # fmt: skip
"""By which rows may be ordered, and the column; with a "-" before it, the largest first."""
HISTOGRAMS = ("reward", "turns", "calls", "sampled_tokens", "total_tokens", "seconds", "step", "newest_version")
OUTCOMES = ("scored", "truncated", "infra_failed", "cheated", "quarantined")
_WORDS = re.compile(r'"([^"]+)"|(\w+)')


@dataclass(frozen=True)
class Filter:
    """Which trajectories: those of which all that is given holds."""

    outcome: str | None = None
    task: str | None = None
    tool: str | None = None
    """One that it called."""
    finding: str | None = None
    """Words of what was held against it."""
    step: tuple[int | None, int | None] | None = None
    """From and to, both included; None is open."""
    version: tuple[int | None, int | None] | None = None
    """That sampled any of its tokens."""
    reward: tuple[float | None, float | None] | None = None
    group: str | None = None
    text: str | None = None
    """Words of its instruction, last message, calls, findings and notes."""
    trained: bool | None = None
    solved: bool | None = None
    phase: str | None = None
    """training, base, after, control."""
    dropped: str | None = None
    """Why it was not trained on."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Filter:
        """From words: `step=3`, `step=3..10`, `reward=..0.5`, `trained=true`. Raises ConfigError for what is wrong."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(given.keys() - known):
            raise ConfigError(f"{unknown[0]}: no such filter; there are {', '.join(sorted(known))}")
        read: dict[str, Any] = {name: _READ.get(name, _word)(name, value) for name, value in given.items()}
        if read.get("outcome", "scored") not in OUTCOMES:
            raise ConfigError(f"outcome: there is no {read['outcome']!r}; there are {', '.join(OUTCOMES)}")
        return cls(**read)

    def sql(self) -> tuple[str, list[Any]]:
        """The condition and its values."""
        found: list[tuple[str, list[Any]]] = []
        for name, column in _EQUAL.items():
            if (value := getattr(self, name)) is not None:
                found.append((f"{column} = ?", [value]))
        if self.tool is not None:
            found.append(("seq IN (SELECT seq FROM tools WHERE name = ?)", [self.tool]))
        for column, words in (("", self.text), ("findings : ", self.finding)):
            if words is not None:
                found.append(("seq IN (SELECT rowid FROM said WHERE said MATCH ?)", [f"{column}({searched(words)})"]))
        found += _within("step_key", "step_key", self.step) + _within("reward_key", "reward_key", self.reward)
        found += _within("newest_version", "oldest_version", self.version)
        if self.step is not None and self.step[0] is None:
            found.append(("step IS NOT NULL", []))
        if self.reward is not None and self.reward[0] is None:
            found.append(("reward IS NOT NULL", []))
        if self.trained is not None:
            found.append(("step_key >= 0" if self.trained else "step_key < 0", []))
        return " AND ".join(each for each, _ in found) or "1", [value for _, values in found for value in values]


def searched(words: str) -> str:
    """As full text is asked: all words, a quoted phrase as it stands, the last word by its beginning. Raises
    ConfigError where there is no word.
    """
    found = [(phrase, True) if phrase else (word, False) for phrase, word in _WORDS.findall(words)]
    terms = [f'"{each}"' for each, _ in found if re.search(r"\w", each)]
    if not terms:
        raise ConfigError(f"{words!r}: holds no word to search for")
    if not found[-1][1] and not words.endswith(" "):
        terms[-1] += "*"
    return " AND ".join(terms)


def page_sql(chosen: Filter, order: str, after: str | None, limit: int) -> tuple[str, list[Any]]:
    """The rows of a page, each with the key that the next page goes on after as its first column."""
    column, falls = column_of(order)
    where, values = chosen.sql()
    way, than = ("DESC", "<") if falls else ("ASC", ">")
    if after is not None:
        key, seq = _key_of(after)
        beyond = f"seq {than} ?" if column == "seq" else f"({column}, seq) {than} (?, ?)"
        where, values = f"{where} AND {beyond}", [*values, *([seq] if column == "seq" else [key, seq])]
    by = f"seq {way}" if column == "seq" else f"{column} {way}, seq {way}"
    return f"SELECT {column} AS page_key, * FROM trajectories WHERE {where} ORDER BY {by} LIMIT ?", [*values, limit]


def column_of(order: str) -> tuple[str, bool]:
    """The column, and whether the largest comes first. Raises ConfigError."""
    falls, name = order.startswith("-"), order.removeprefix("-")
    if name not in ORDERS:
        raise ConfigError(f"{order}: no such order; there are {', '.join(ORDERS)}, each also with a - before it")
    return ORDERS[name], falls


def cursor(key: Any, seq: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([key, seq]).encode()).decode().rstrip("=")


def _key_of(after: str) -> tuple[float, int]:
    try:
        key, seq = json.loads(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
        return float(key), int(seq)
    except (ValueError, TypeError):
        raise ConfigError(f"{after!r} is no place in a list; take what the page before gave as its next") from None


_EQUAL = {
    "outcome": "outcome", "task": "task_id", "group": "group_id", "solved": "solved", "phase": "phase",
    "dropped": "dropped",
}  # fmt: skip


def _within(above: str, below: str, bounds: tuple[float | None, float | None] | None) -> list[tuple[str, list[Any]]]:
    if bounds is None:
        return []
    low, high = bounds
    found = [(f"{above} >= ?", [low])] if low is not None else []
    return [*found, (f"{below} <= ?", [high])] if high is not None else found


def _word(name: str, value: str) -> str:
    if not value:
        raise ConfigError(f"{name}: is empty; leave it out, or give it a value")
    return value


def _truth(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigError(f"{name}: {value!r} is neither true nor false")
    return value == "true"


def _range(name: str, value: str) -> tuple[Any, Any]:
    low, dots, high = value.partition("..")
    number = float if name == "reward" else int
    try:
        bounds = tuple(number(each) if each else None for each in ((low, high) if dots else (low, low)))
    except ValueError:
        raise ConfigError(f"{name}: {value!r} is no number and no range such as 3..10, 3.. or ..10") from None
    if bounds == (None, None):
        raise ConfigError(f"{name}: {value!r} has neither a beginning nor an end")
    return bounds[0], bounds[1]


_READ = {
    "step": _range, "version": _range, "reward": _range, "trained": _truth, "solved": _truth,
}  # fmt: skip
