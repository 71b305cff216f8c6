"""What is asked of an index: which trajectories, in which order, and from where on.

Owns `Filter`, `ORDERS` and the SQL of a page. A page is found by its keys (the value that orders, and the row's
number), so that the thousandth page costs what the first does. What a user types is only ever a value, or words that
full text is searched for. Runs nothing.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from etude.errors import ConfigError

ORDERS = {
    "kept": "seq", "reward": "reward_key", "step": "step_key", "turns": "turns", "sampled_tokens": "sampled_tokens",
    "seconds": "seconds", "ended_at": "ended_at",
}  # fmt: skip
"""By which rows may be ordered, and the column; with a "-" before it, the largest first."""
NO_REWARD, NO_STEP = -1e300, -1
"""Keys of rows that have none."""
_SAME = ("turns", "calls", "sampled_tokens", "total_tokens", "seconds", "newest_version")
HISTOGRAMS = {**{name: name for name in _SAME}, "reward": "reward_key", "step": "step_key"}
"""Of what there are histograms, and the column."""
MOST_WHOLE = (1 << 63) - 1
"""No whole number of SQLite's is larger."""
MANY = 5_000
"""Rows that are rather gone through in their order than sorted."""
FAR = 2 * MANY
"""Rows that are gone through in their order for a page. One that is not full by then looks for what is rare, or lies at
the other end."""
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

    def conditions(self) -> list[Condition]:
        """What must hold, all of it."""
        given = {column: getattr(self, name) for name, column in _EQUAL.items()}
        found = [_of_column(column, ("=", value)) for column, value in given.items() if value is not None]
        if self.tool is not None:
            listed = "SELECT seq FROM tools WHERE name = ?"
            probe = f"EXISTS ({listed} AND tools.seq = trajectories.seq)"
            found.append(Condition("tool", f"seq IN ({listed})", probe, [self.tool], listed))
        words = (("", self.text), ("findings : ", self.finding))
        if asked := " AND ".join(f"({column}({searched(each)}))" for column, each in words if each is not None):
            listed = "SELECT rowid FROM said WHERE said MATCH ?"
            found.append(Condition("said", f"seq IN ({listed})", f"+seq IN ({listed})", [asked], listed))
        for column, none, bounds in (("step_key", NO_STEP, self.step), ("reward_key", NO_REWARD, self.reward)):
            if bounds is not None:
                low, high = bounds
                above = (">", none) if low is None else (">=", low)  # what has no value is below no bound
                found.append(_of_column(column, above, *([] if high is None else [("<=", high)])))
        least, most = self.version or (None, None)
        if least is not None:
            found.append(_of_column("newest_version", (">=", least)))
        if most is not None:
            found.append(_of_column("oldest_version", ("<=", most)))
        if self.trained is not None:
            found.append(_of_column("step_key", (">" if self.trained else "=", NO_STEP)))
        return found


@dataclass(frozen=True)
class Condition:
    """One thing that must hold of a row."""

    of: str
    """The column that it is of, or the table beside the rows."""
    seek: str
    """In a form by which an index finds the rows that it holds of."""
    probe: str
    """In a form that is asked of one row after the other, as another index has them."""
    values: list[Any]
    rows: str
    """A query for the rows that it holds of."""


def _of_column(column: str, *compared: tuple[str, Any]) -> Condition:
    """Everything that it is compared with must hold."""
    holds, values = [f"{column} {than} ?" for than, _ in compared], [value for _, value in compared]
    seek, probe = " AND ".join(holds), " AND ".join(f"+{each}" for each in holds)
    return Condition(column, seek, probe, values, f"SELECT 1 FROM trajectories WHERE {seek}")


def holding(conditions: Sequence[Condition], sought: Condition | None) -> tuple[str, list[Any]]:
    """From where, and what must hold there, with its values. What is `sought` is found by an index of its own, and its
    rows are asked for the rest. Without it all rows are looked at, in the index that has all figures.
    """
    table = "trajectories INDEXED BY figures" if conditions and sought is None else "trajectories"
    said = " AND ".join(each.seek if each is sought else each.probe for each in conditions) or "1"
    return f"FROM {table} WHERE {said}", [value for each in conditions for value in each.values]


def histogram_sql(conditions: Sequence[Condition], field: str, sought: Condition | None) -> tuple[str, str, list[Any]]:
    """The column, and where to look for its values. Raises ConfigError for a field of which there is none."""
    if field not in HISTOGRAMS:
        raise ConfigError(f"{field}: no histogram of it; there are {', '.join(HISTOGRAMS)}")
    column, none = HISTOGRAMS[field], {"reward": NO_REWARD, "step": NO_STEP}.get(field)
    there = f"+{column} IS NOT NULL" if none is None else f"+{column} > {none}"
    here, values = holding(conditions, sought)
    return column, f"{here} AND {there}", values


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


def walk_sql(
    conditions: Sequence[Condition], order: str, after: str | None, limit: int, until: Sequence[Any] = ()
) -> tuple[str, list[Any]]:
    """The rows of a page, each with the key that the next page goes on after as its first column: gone through in their
    order, until the page is full, or as far as the keys `until`.
    """
    column, falls = column_of(order)
    table, key, said, values = "trajectories", column, [], []
    for each in conditions:
        if each.of == "said" and column == "seq":  # full text is in this order itself
            table, key = "said CROSS JOIN trajectories ON trajectories.seq = said.rowid", "said.rowid"
            said.append("said MATCH ?")
        else:
            said.append(each.seek if each.of == column else each.probe)
        values += each.values
    for than, keys in ((">", _keys_of(after)), ("<=", until)):
        if keys:
            beyond, of_keys = _beyond(key, than, falls, keys)
            said, values = [*said, beyond], [*values, *of_keys]
    holds = " AND ".join(said) or "1"
    sql = f"SELECT {key} AS page_key, trajectories.* FROM {table} WHERE {holds} ORDER BY {_by(key, falls)} LIMIT ?"
    return sql, [*values, limit]


def far_sql(conditions: Sequence[Condition], order: str, after: str | None) -> tuple[str, list[Any]]:
    """The keys of the row that is `FAR` behind the beginning of a page: none where there are not so many."""
    column, falls = column_of(order)
    own = [each for each in conditions if each.of == column]
    said, values = [each.seek for each in own], [value for each in own for value in each.values]
    if keys := _keys_of(after):
        beyond, of_keys = _beyond(column, ">", falls, keys)
        said, values = [*said, beyond], [*values, *of_keys]
    holds = " AND ".join(said) or "1"
    sql = f"SELECT {column} AS page_key, seq FROM trajectories WHERE {holds} ORDER BY {_by(column, falls)}"
    return f"{sql} LIMIT 1 OFFSET {FAR}", values


def sorted_sql(
    conditions: Sequence[Condition], order: str, after: str | None, limit: int, sought: Condition | None
) -> tuple[str, list[Any]]:
    """The rows of a page as `walk_sql` has them: all that hold are found as in `holding`, and sorted."""
    column, falls = column_of(order)
    here, values = holding(conditions, sought)
    if keys := _keys_of(after):
        beyond, of_keys = _beyond(f"+{column}", ">", falls, keys)
        here, values = f"{here} AND {beyond}", [*values, *of_keys]
    found = f"SELECT seq AS found {here} ORDER BY {_by(f'+{column}', falls)} LIMIT ?"
    rows = f"({found}) CROSS JOIN trajectories ON trajectories.seq = found ORDER BY {_by(f'+{column}', falls)}"
    return f"SELECT {column} AS page_key, trajectories.* FROM {rows}", [*values, limit]


def _by(column: str, falls: bool) -> str:
    way = "DESC" if falls else "ASC"
    return f"{column} {way}" if column.endswith(("seq", "rowid")) else f"{column} {way}, seq {way}"


def _beyond(column: str, than: str, falls: bool, keys: Sequence[Any]) -> tuple[str, list[Any]]:
    """What holds of the rows behind a row of these keys (">"), or up to it ("<=")."""
    than = than.translate({ord(">"): "<", ord("<"): ">"}) if falls else than
    last, seq = keys
    if column.endswith(("seq", "rowid")):
        return f"{column} {than} ?", [seq]
    return f"({column}, seq) {than} (?, ?)", [last, seq]


def column_of(order: str) -> tuple[str, bool]:
    """The column, and whether the largest comes first. Raises ConfigError."""
    falls, name = order.startswith("-"), order.removeprefix("-")
    if name not in ORDERS:
        raise ConfigError(f"{order}: no such order; there are {', '.join(ORDERS)}, each also with a - before it")
    return ORDERS[name], falls


def cursor(key: Any, seq: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([key, seq]).encode()).decode().rstrip("=")


def _keys_of(after: str | None) -> tuple[float, int] | tuple[()]:
    """What a page's cursor holds; nothing before the first."""
    if after is None:
        return ()
    try:
        key, seq = json.loads(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
        return float(key), _within(int(seq))
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise ConfigError(f"{after!r} is no place in a list; take what the page before gave as its next") from None


_EQUAL = {
    "outcome": "outcome", "task": "task_id", "group": "group_id", "solved": "solved", "phase": "phase",
    "dropped": "dropped",
}  # fmt: skip


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
        bounds = tuple(_within(number(each)) if each else None for each in ((low, high) if dots else (low, low)))
    except ValueError:
        raise ConfigError(f"{name}: {value!r} is no number and no range such as 3..10, 3.. or ..10") from None
    if bounds == (None, None):
        raise ConfigError(f"{name}: {value!r} has neither a beginning nor an end")
    return bounds[0], bounds[1]


def _within(number: Any) -> Any:
    """The same, if SQLite can have it. Raises ValueError."""
    if isinstance(number, int) and abs(number) > MOST_WHOLE:
        raise ValueError(number)
    return number


_READ = {
    "step": _range, "version": _range, "reward": _range, "trained": _truth, "solved": _truth,
}  # fmt: skip
