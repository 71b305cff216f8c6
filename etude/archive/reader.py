"""How a run's archive is read: while it is written, when it is over, or on another machine.

Owns `ArchiveReader`: pages, counts and histograms of what an index has, and each trajectory as it was kept
(`archived.Archived`). Whoever reads never waits for a writer, nor a writer for a reader: `refresh` puts into the index
what came since, and everything else looks at that. An index that is missing, damaged or older is made anew. Writes
nothing but index and notes. Use it from any thread.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from etude.archive import notes
from etude.archive.archived import Archived, Place
from etude.archive.catching_up import catch_up
from etude.archive.chunks import chunks
from etude.archive.index import FILL_S, Index, is_damage, plain
from etude.archive.notes import Note
from etude.archive.query import (
    MANY,
    Condition,
    Filter,
    cursor,
    far_sql,
    histogram_sql,
    holding,
    sorted_sql,
    walk_sql,
)
from etude.archive.records import TrajectoryRow
from etude.archive.writer import ARCHIVE
from etude.errors import ConfigError

MOST_ROWS = 1_000
T = TypeVar("T")
Keyed = tuple[tuple[Any, int], TrajectoryRow]
"""A row, and the place of its page that it is at."""
_NONE = Filter()
_COLUMNS = tuple(TrajectoryRow.__dataclass_fields__)


@dataclass(frozen=True)
class Page:
    rows: tuple[TrajectoryRow, ...]
    next: str | None
    """Where the next page begins; None after the last."""


@dataclass(frozen=True)
class Changes:
    """Rows that are new or changed since a cursor, the oldest change first."""

    rows: tuple[TrajectoryRow, ...]
    cursor: str
    """Go on from here."""
    anew: bool = False
    """The cursor was of an index that is no more: these rows begin from the first."""


@dataclass(frozen=True)
class Histogram:
    edges: tuple[float, ...]
    """One more than counts."""
    counts: tuple[int, ...]
    solved: tuple[int, ...]
    """Of each count, how many were solved."""


@dataclass(frozen=True)
class GroupRows:
    id: str
    task_id: str
    rows: tuple[TrajectoryRow, ...]
    """In the order of their members."""


class ArchiveReader:
    """Of one run. Close it, or use it as a context manager."""

    def __init__(self, run: Path, fill: bool = True) -> None:
        """`run` is the run's directory. What is there by now is in the index when this returns, unless another process
        fills it just then; without `fill`, what an index has already. A run without an archive has no rows.
        """
        self.run, self.directory = run, run / ARCHIVE
        self._index, self._opening = Index(self.directory), threading.Lock()
        self._stopping = threading.Event()
        if fill:
            self.refresh()

    # --- what there is ------------------------------------------------------------------------------------------------

    def refresh(self, wait: bool = False) -> int:
        """Put into the index what came since the last time; returns how many frames it was. With `wait`, another
        process that does so is waited for: raises DeadlineExceeded.
        """
        with self._opening:
            if not self._index.was_there and self.directory.exists():
                self._index.close()
                self._index = Index(self.directory)

        def fill() -> int:
            with self._index.filling(FILL_S if wait else 0.0) as connection:
                return 0 if connection is None else catch_up(connection, self.run, self.directory, self._stopping)

        try:
            return self._sound(fill)
        except sqlite3.OperationalError as error:
            self._index.leave(error)
            return self._sound(fill)

    def behind(self) -> int:
        """Bytes of the chunks that `refresh` has still to look at."""
        scanned = {row[0]: row[1] for row in self._asked("SELECT number, max(scanned, size) FROM chunks", [])}
        sizes = {number: path.stat().st_size for number, path in chunks(self.directory).items() if path.exists()}
        return sum(max(0, size - scanned.get(number, 0)) for number, size in sizes.items())

    def stop(self) -> None:
        """Who fills the index ends soon, in whichever thread; what is in it by then stands."""
        self._stopping.set()

    def trajectories(
        self, chosen: Filter = _NONE, order: str = "-kept", after: str | None = None, limit: int = 50
    ) -> Page:
        """Rows, by default the newest first; `after` is a page's `next`. Raises ConfigError for an order, a cursor or a
        filter that is none.
        """
        limit = max(1, min(limit, MOST_ROWS))
        found = self._found(chosen.conditions(), order, after, limit + 1)
        more = len(found) > limit
        rows = found[:limit]
        last = cursor(*rows[-1][0]) if more else None
        return Page(tuple(row for _, row in rows), last)

    def _found(self, conditions: Sequence[Condition], order: str, after: str | None, many: int) -> list[Keyed]:
        """So many rows from a place on. Those of which something rare holds are sorted; else they are gone through in
        their order. Where that does not lead to enough of them soon, all that hold are sorted after all.
        """
        sought = self._rare(conditions)
        if sought is None:
            far = self._asked(*far_sql(conditions, order, after))
            found = self._asked(*walk_sql(conditions, order, after, many, *map(tuple, far)), _keyed)
            if len(found) == many or not far:
                return found
        return self._asked(*sorted_sql(conditions, order, after, many, sought), _keyed)

    def _rare(self, conditions: Sequence[Condition]) -> Condition | None:
        """One that holds of few rows: then these are looked at, and nothing else."""
        for each in conditions:
            if self._asked(f"SELECT count(*) FROM ({each.rows} LIMIT {MANY + 1})", each.values)[0][0] <= MANY:
                return each
        return None

    def every(self, chosen: Filter = _NONE, order: str = "kept") -> Iterator[TrajectoryRow]:
        """All of them, a page at a time."""
        after: str | None = None
        while True:
            page = self.trajectories(chosen, order, after, MOST_ROWS)
            yield from page.rows
            if (after := page.next) is None:
                return

    def count(self, chosen: Filter = _NONE) -> int:
        conditions = chosen.conditions()
        sought = conditions[0] if len(conditions) == 1 else self._rare(conditions)
        here, values = holding(conditions, sought)
        return self._asked(f"SELECT count(*) {here}", values)[0][0]

    def histogram(self, chosen: Filter, field: str, bins: int = 40) -> Histogram:
        """How the values of a field are spread; rows without one are left out. Raises ConfigError for another field."""
        conditions = chosen.conditions()
        column, here, values = histogram_sql(conditions, field, self._rare(conditions))
        bins = max(1, min(bins, 1_000))
        low, high = self._asked(f"SELECT min({column}), max({column}) {here}", values)[0]
        if low is None:
            return Histogram((), (), ())
        width = (high - low) / bins or 1.0
        of_bin = f"min({bins - 1}, CAST(({column} - ?) / ? AS INTEGER))"
        rows = self._asked(f"SELECT {of_bin} AS bin, count(*), sum(solved) {here} GROUP BY bin", [low, width, *values])
        counted = {row[0]: (row[1], row[2]) for row in rows}
        both = [counted.get(number, (0, 0)) for number in range(bins)]
        edges = tuple(low + width * number for number in range(bins + 1))
        return Histogram(edges, tuple(each for each, _ in both), tuple(each for _, each in both))

    def values(self, field: str) -> dict[str, int]:
        """What there is to filter by: how many rows have which outcome, task_id, phase, dropped or tool."""
        if field == "tool":
            rows = self._asked("SELECT name, count(*) FROM tools GROUP BY name ORDER BY 2 DESC, 1", [])
        elif field in ("outcome", "task_id", "phase", "dropped"):
            there = f"FROM trajectories WHERE {field} IS NOT NULL GROUP BY {field} ORDER BY 2 DESC, 1"
            rows = self._asked(f"SELECT {field}, count(*) {there}", [])
        else:
            raise ConfigError(f"{field}: there are outcome, task_id, phase, dropped and tool")
        return {row[0]: row[1] for row in rows}

    def group(self, group_id: str) -> GroupRows | None:
        """Its members in their order; None where there is none of that name."""
        rows = sorted(self._asked("SELECT * FROM trajectories WHERE group_id = ?", [group_id], _row), key=_member)
        return GroupRows(group_id, rows[0].task_id, tuple(rows)) if rows else None

    def groups(self, step: int) -> list[GroupRows]:
        """Those that a step trained on, whole: with the members that were dropped."""
        named = "SELECT DISTINCT group_id FROM trajectories WHERE step_key = ?"
        rows = self._asked(f"SELECT * FROM trajectories WHERE group_id IN ({named})", [step], _row)
        found: dict[str, list[TrajectoryRow]] = {}
        for row in sorted(rows, key=_member):
            found.setdefault(row.group_id, []).append(row)
        return [GroupRows(name, members[0].task_id, tuple(members)) for name, members in found.items()]

    def step(self, number: int) -> list[TrajectoryRow]:
        """The rows that a step trained on, by their beginning: the lanes of its workers."""
        return self._asked("SELECT * FROM trajectories WHERE step_key = ? ORDER BY begun_at, seq", [number], _row)

    def size(self) -> tuple[int, int]:
        """Bytes of the chunks, and how many there are."""
        sizes = [path.stat().st_size for path in chunks(self.directory).values() if path.exists()]
        return sum(sizes), len(sizes)

    # --- following ----------------------------------------------------------------------------------------------------

    def newest(self) -> str:
        """Where `changes` goes on from what there is now."""
        name, revision = self._state()
        return f"{name}.{revision}"

    def changes(self, since: str | None = None, limit: int = MOST_ROWS) -> Changes:
        """Rows that were added or have changed since a cursor of `newest` or of the last call; from the first without
        one, or where the index was made anew. Call `refresh` before, to hear of what is new.
        """
        name, revision = self._state()
        of, _, at = (since or "").partition(".")
        known = of == name and at.isdigit() and int(at) <= revision
        found = self._asked(
            "SELECT * FROM trajectories WHERE revision > ? ORDER BY revision LIMIT ?",
            [int(at) if known else 0, max(1, min(limit, MOST_ROWS))],
            lambda each: (each["revision"], _row(each)),
        )
        last = found[-1][0] if found else int(at) if known else 0
        return Changes(tuple(row for _, row in found), f"{name}.{last}", since is not None and not known)

    def _state(self) -> tuple[str, int]:
        found = {row[0]: row[1] for row in self._asked("SELECT key, value FROM meta", [])}
        return str(found["name"]), int(found["revision"])

    # --- one of them --------------------------------------------------------------------------------------------------

    def row(self, trajectory_id: str) -> TrajectoryRow | None:
        found = self._asked("SELECT * FROM trajectories WHERE id = ?", [trajectory_id], _row)
        return found[0] if found else None

    def trajectory(self, trajectory_id: str) -> Archived | None:
        """As it was kept; None where there is none of that name. Its parts are read when they are asked for."""
        found = self._asked(
            "SELECT t.*, m.chunk AS marks_chunk, m.at AS marks_at FROM trajectories t LEFT JOIN marks m USING (id) "
            "WHERE t.id = ?",
            [trajectory_id],
            lambda each: (each, _row(each)),
        )
        if not found:
            return None
        row, told = found[0]
        task = self._asked("SELECT at FROM tasks WHERE id = ? AND chunk = ?", [row["task_id"], row["chunk"]])
        marks = None if row["marks_chunk"] is None else Place(row["marks_chunk"], row["marks_at"])
        return Archived(
            self.directory, told, Place(row["chunk"], row["at"]),
            Place(row["chunk"], task[0]["at"]) if task else None, marks,
        )  # fmt: skip

    # --- notes --------------------------------------------------------------------------------------------------------

    def annotate(self, trajectory_id: str, text: str, author: str, place: Mapping[str, int] | None = None) -> Note:
        """Write a note beside a trajectory, or at a `place` in it ({"event": …} or {"segment": …, "token": …}). Raises
        ConfigError for an unknown trajectory, or a note without a text.
        """
        if self.row(trajectory_id) is None:
            raise ConfigError(f"{trajectory_id}: no such trajectory in {self.directory}")
        note = notes.add(self.directory, trajectory_id, place or {}, text, author)
        self.refresh(wait=True)
        return note

    def remove_note(self, note: str) -> None:
        notes.remove(self.directory, note)
        self.refresh(wait=True)

    def annotations(self, trajectory_id: str) -> list[Note]:
        """The oldest first."""
        return self._asked("SELECT * FROM notes WHERE trajectory = ? ORDER BY at, id", [trajectory_id], _note)

    # --- below --------------------------------------------------------------------------------------------------------

    def _asked(
        self, sql: str, values: Sequence[Any], read: Callable[[sqlite3.Row], Any] = lambda row: row
    ) -> list[Any]:
        """The rows as `read` makes them: that these can be read, too, is asked of an index that is sound."""
        return self._sound(lambda: list(map(read, self._select(sql, values))))

    def _select(self, sql: str, values: Sequence[Any]) -> list[sqlite3.Row]:
        asking = self._index.connection().cursor()
        asking.row_factory = sqlite3.Row
        return asking.execute(sql, [plain(each) if isinstance(each, str) else each for each in values]).fetchall()

    def _sound(self, work: Callable[[], T]) -> T:
        """What `work` does with the index; where that turns out to be damaged, with a new one."""
        while True:
            try:
                return work()
            except (sqlite3.DatabaseError, ValueError) as error:
                if not is_damage(error):
                    raise
                self._index.put_away(error)
                self.refresh(wait=True)

    def close(self) -> None:
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _keyed(found: sqlite3.Row) -> Keyed:
    return (found["page_key"], found["seq"]), _row(found)


def _row(found: sqlite3.Row) -> TrajectoryRow:
    told = {name: found[name] for name in _COLUMNS}
    told |= {
        "parts": json.loads(told["parts"]), "tools": tuple(json.loads(told["tools"])), "solved": bool(told["solved"]),
        "dropped": told["dropped"] if told["step"] is None else None,
    }  # fmt: skip
    return TrajectoryRow(**told)


def _note(found: sqlite3.Row) -> Note:
    place = json.loads(found["place"])
    return Note(found["id"], found["trajectory"], place, found["text"], found["author"], found["at"])


def _member(row: TrajectoryRow) -> tuple[str, int, str]:
    last = row.id.rpartition("/")[2]
    return row.group_id, int(last) if last.isdigit() else 0, row.id
