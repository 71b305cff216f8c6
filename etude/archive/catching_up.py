"""What an index has not heard of yet, put into it: frames, what the ledger says of groups, notes.

Owns `catch_up`, the one way in which an index is filled: while a run writes, by whoever looks, after a kill, and anew
from the beginning. Of a frame it reads the head alone. It goes on where the last one stopped; a chunk that is gone, or
is not what it was, takes its rows along. All of a batch is there at once, or nothing of it.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from etude.archive import notes
from etude.archive.chunks import chunks
from etude.archive.contents import row_of, step_of, task_of
from etude.archive.fates import Fate, fates
from etude.archive.frames import START, Frame, Kind, nonce_of, opened, scan
from etude.archive.index import plain
from etude.archive.query import NO_REWARD, NO_STEP
from etude.archive.records import TrajectoryRow
from etude.errors import CheckpointError

_MOST_CHUNK = 8 << 30
"""Bytes of one that is looked through: none of a run's is as long, but a hole in a stranger's may be."""
BATCH = 400
"""Frames that are put in at once: others wait no longer than these take."""
_COLUMNS = tuple(TrajectoryRow.__dataclass_fields__)
_QUOTED = ", ".join(f'"{name}"' for name in _COLUMNS)
_INSERT = (
    f"INSERT INTO trajectories(seq, revision, chunk, at, reward_key, step_key, {_QUOTED}) "
    f"VALUES ({', '.join('?' * (6 + len(_COLUMNS)))})"
)
_OF_GROUP = "id IN (SELECT id FROM fates WHERE group_id = ?)"


def catch_up(connection: sqlite3.Connection, run: Path, directory: Path, stopping: threading.Event) -> int:
    """Put all that is there into the index; only for who fills it (`Index.filling`). Returns how many frames it was.
    Once it is `stopping` it ends after the batch in hand; the next one goes on from there.
    """
    filler = _Filler(connection, directory)
    with filler.batch():
        filler.forget_gone()
    count = 0
    for number, path in chunks(directory).items():
        for batch in _batches(filler.unseen(number, path)):
            if stopping.is_set():
                return count
            with filler.batch():
                for frame in batch:
                    filler.take(number, frame)
                filler.seen(number, batch[-1].stop)
            count += len(batch)
        filler.ended(number)
    with filler.batch():
        filler.take_fates(run)
        filler.take_notes()
    return count


def _batches(frames: Iterator[Frame]) -> Iterator[list[Frame]]:
    batch: list[Frame] = []
    for frame in frames:
        batch.append(frame)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


class _Filler:
    """One pass."""

    def __init__(self, connection: sqlite3.Connection, directory: Path) -> None:
        self.connection, self.directory = connection, directory
        self.revision = 0
        self._instructions: dict[tuple[str, int], str] = {}
        self._sizes: dict[int, int] = {}
        """Of the chunks that were looked through, before what is in them was put in."""

    def _tell(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self.connection.execute(sql, [plain(each) if isinstance(each, str) else each for each in values])

    def batch(self) -> _Batch:
        return _Batch(self)

    # --- chunks -------------------------------------------------------------------------------------------------------

    def forget_gone(self) -> None:
        """Of chunks that were removed, or cut, or are others of the same number."""
        there = chunks(self.directory)
        for number, nonce, scanned in self._tell("SELECT number, nonce, scanned FROM chunks").fetchall():
            with contextlib.suppress(KeyError, FileNotFoundError), opened(there[number]) as file:
                if nonce_of(file) == nonce and file.seek(0, 2) >= scanned:
                    continue
            self._forget(number)

    def _forget(self, number: int) -> None:
        gone = self._tell("SELECT seq, id FROM trajectories WHERE chunk = ?", (number,)).fetchall()
        for seq, _ in gone:
            self._forget_row(seq)
        for (marked,) in self._tell("SELECT id FROM marks WHERE chunk = ?", (number,)).fetchall():
            self._mark(marked, None, None)
        self._tell("DELETE FROM marks WHERE chunk = ?", (number,))
        self._tell("DELETE FROM tasks WHERE chunk = ?", (number,))
        self._tell("DELETE FROM chunks WHERE number = ?", (number,))

    def _forget_row(self, seq: int) -> None:
        self._tell("DELETE FROM trajectories WHERE seq = ?", (seq,))
        self._tell("DELETE FROM said WHERE rowid = ?", (seq,))
        self._tell("DELETE FROM tools WHERE seq = ?", (seq,))

    def unseen(self, number: int, path: Path) -> Iterator[Frame]:
        """The frames of a chunk that the index does not know. A chunk that is as long as when all of it was looked at
        is not looked at again: what it ends with is no frame.
        """
        known = self._tell("SELECT scanned, size FROM chunks WHERE number = ?", (number,)).fetchone()
        try:
            with opened(path) as file:
                size, nonce = file.seek(0, 2), nonce_of(file)
                if nonce is None or (known is not None and known[1] == size):
                    return
                if known is None:
                    self._tell("INSERT INTO chunks VALUES (?, ?, ?, ?)", (number, nonce, START, START))
                if size <= _MOST_CHUNK:
                    yield from scan(file, known[0] if known else START)
                self._sizes[number] = size
        except FileNotFoundError:  # removed, as it was too old
            return

    def seen(self, number: int, stop: int) -> None:
        self._tell("UPDATE chunks SET scanned = ? WHERE number = ?", (stop, number))

    def ended(self, number: int) -> None:
        """All frames of a chunk are in the index. Said before that, a kill in between would lose the last of them."""
        if (size := self._sizes.pop(number, None)) is not None:
            self._tell("UPDATE chunks SET size = ? WHERE number = ?", (size, number))

    # --- frames -------------------------------------------------------------------------------------------------------

    def take(self, number: int, frame: Frame) -> None:
        """One that is whole and says nothing of the kind, or is of a later version, is passed over."""
        taking = self._takes.get(frame.kind)
        if taking is not None:
            with contextlib.suppress(CheckpointError):
                taking(number, frame)

    @property
    def _takes(self) -> Mapping[int, Callable[[int, Frame], None]]:
        return {
            Kind.TASK: self._take_task, Kind.TRAJECTORY: self._keep, Kind.MARKS: self._take_marks,
            Kind.RESUMED: self._resume,
        }  # fmt: skip

    def _take_task(self, number: int, frame: Frame) -> None:
        task = task_of(frame.head)
        values = task.id, number, frame.at, task.instruction
        self._tell("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?)", values)

    def _take_marks(self, number: int, frame: Frame) -> None:
        step, trained = step_of(frame.head, "trained_tokens")
        marked = str(frame.head.get("id"))
        self._tell("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?)", (marked, step, trained, number, frame.at))
        self._mark(marked, step, trained)

    def _resume(self, number: int, frame: Frame) -> None:
        del number
        (step,) = step_of(frame.head)
        for (marked,) in self._tell("SELECT id FROM marks WHERE step > ?", (step,)).fetchall():
            self._mark(marked, None, None)
        self._tell("DELETE FROM marks WHERE step > ?", (step,))

    def _keep(self, number: int, frame: Frame) -> None:
        """The later verdict on a trajectory stands, whichever chunk it is in; its place in the order stays."""
        row = row_of(frame.head)
        before = self._tell("SELECT seq, ended_at FROM trajectories WHERE id = ?", (row.id,)).fetchone()
        if before is not None:
            if before[1] > row.ended_at:
                return
            self._forget_row(before[0])
        marked = self._tell("SELECT step, trained_tokens FROM marks WHERE id = ?", (row.id,)).fetchone()
        fate = self._tell("SELECT reason FROM fates WHERE id = ?", (row.id,)).fetchone()
        given = {name: getattr(row, name) for name in _COLUMNS} | {
            "parts": json.dumps(row.parts), "tools": json.dumps(list(map(plain, row.tools))),
            "step": marked[0] if marked else None, "trained_tokens": marked[1] if marked else None,
            "dropped": fate[0] if fate else None,
        }  # fmt: skip
        keys = NO_REWARD if row.reward is None else row.reward, marked[0] if marked else NO_STEP
        place = before[0] if before else None, self._next(), number, frame.at
        seq = self._tell(_INSERT, (*place, *keys, *given.values())).lastrowid
        self._tell("INSERT OR IGNORE INTO tools SELECT value, ? FROM json_each(?)", (seq, given["tools"]))
        said, findings = frame.head["said"], "\n".join(frame.head["findings"])
        texts = self._instruction(row.task_id, number), said["final"], said["calls"], findings, self._noted(row.id)
        self._tell("INSERT INTO said(rowid, instruction, final, calls, findings, notes) VALUES (?, ?, ?, ?, ?, ?)",
                   (seq, *texts))  # fmt: skip

    def _instruction(self, task: str, number: int) -> str:
        if (task, number) not in self._instructions:
            found = self._tell("SELECT instruction FROM tasks WHERE id = ? AND chunk = ?", (task, number)).fetchone()
            self._instructions[task, number] = found[0] if found else ""
        return self._instructions[task, number]

    def _mark(self, trajectory: str, step: int | None, trained: int | None) -> None:
        self._tell(
            "UPDATE trajectories SET step = ?, step_key = ?, trained_tokens = ?, revision = ? WHERE id = ?",
            (step, NO_STEP if step is None else step, trained, self._next(), trajectory),
        )

    def _next(self) -> int:
        self.revision += 1
        return self.revision

    # --- beside the chunks --------------------------------------------------------------------------------------------

    def take_fates(self, run: Path) -> None:
        at, ledger = -1, self._place("ledger")
        while at != ledger:
            at = ledger
            found, ledger = fates(run, at)
            self._take_fates(found)
        self._tell("INSERT OR REPLACE INTO meta VALUES ('ledger', ?)", (ledger,))

    def _take_fates(self, found: Iterable[Fate]) -> None:
        for fate in found:
            if fate.members is None:
                self._fate(f"dropped IS NOT NULL AND {_OF_GROUP}", (fate.group,), None)
                self._tell("DELETE FROM fates WHERE group_id = ?", (fate.group,))
            for slot in fate.slots():
                if fate.reason is None:
                    self._tell("DELETE FROM fates WHERE id = ?", (slot,))
                else:
                    self._tell("INSERT OR REPLACE INTO fates VALUES (?, ?, ?)", (slot, fate.group, fate.reason))
                self._fate("id = ? AND dropped IS NOT ?", (slot, fate.reason), fate.reason)

    def _fate(self, where: str, values: tuple[object, ...], reason: str | None) -> None:
        self._tell(f"UPDATE trajectories SET dropped = ?, revision = ? WHERE {where}", (reason, self._next(), *values))

    def take_notes(self) -> None:
        at, place = -1, self._place("notes")
        while at != place:
            at = place
            found, place = notes.read(self.directory, at)
            self._take_notes(found)
        self._tell("INSERT OR REPLACE INTO meta VALUES ('notes', ?)", (place,))

    def _take_notes(self, found: Iterable[notes.Note | str]) -> None:
        for each in found:
            gone = each if isinstance(each, str) else each.id
            was = self._tell("SELECT trajectory FROM notes WHERE id = ?", (gone,)).fetchone()
            if isinstance(each, notes.Note):
                values = each.id, each.trajectory, json.dumps(each.place), each.text, each.author, each.at
                self._tell("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?, ?)", values)
            else:
                self._tell("DELETE FROM notes WHERE id = ?", (gone,))
            of = each.trajectory if isinstance(each, notes.Note) else was[0] if was else None
            if of is not None:
                self._tell(
                    "UPDATE said SET notes = ? WHERE rowid = (SELECT seq FROM trajectories WHERE id = ?)",
                    (self._noted(of), of),
                )

    def _noted(self, trajectory: str) -> str:
        rows = self._tell("SELECT text FROM notes WHERE trajectory = ? ORDER BY at", (trajectory,)).fetchall()
        return "\n".join(text for (text,) in rows)

    def _place(self, name: str) -> int:
        found = self._tell("SELECT value FROM meta WHERE key = ?", (name,)).fetchone()
        return found[0] if found else 0


class _Batch:
    """Of changes, which are there at once or not at all."""

    def __init__(self, filler: _Filler) -> None:
        self._filler = filler

    def __enter__(self) -> None:
        self._filler._tell("BEGIN IMMEDIATE")
        self._filler.revision = self._filler._place("revision")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        filler = self._filler
        if kind is None:
            filler._tell("INSERT OR REPLACE INTO meta VALUES ('revision', ?)", (filler.revision,))
            filler._tell("COMMIT")
        elif filler.connection.in_transaction:
            filler._tell("ROLLBACK")
