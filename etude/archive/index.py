"""The index of an archive: an SQLite file that knows nothing that the chunks, the ledger and the notes do not.

    archive/index.sqlite    WAL, so that nobody who reads it waits for who fills it; or the other way round

Owns `Index`: the tables, who may fill them, and that they are made anew where the file is missing, damaged, truncated
or of another version. What is filled in is `catching_up`'s. Where the directory cannot be written, the index is a file
of this process alone, and goes with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Generator
from functools import cache
from pathlib import Path

from etude.deadlines import scaled
from etude.errors import DeadlineExceeded
from etude.host.lock import try_hold, wait_for
from etude.host.scratch import Scratch

FORMAT = 3
"""Of the tables below: an index of another is made anew."""
BUSY_S = 10.0
"""How long a statement waits for another process's, which are all short."""
MOST_REBUILT = 3
"""Times that one process makes a new file in the place of a damaged one."""
FILL_S = 600.0
"""Longest wait for another process that fills the index."""
_TABLES = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE chunks(number INTEGER PRIMARY KEY, nonce BLOB, scanned INTEGER, size INTEGER);
CREATE TABLE tasks(id TEXT, chunk INTEGER, at INTEGER, instruction TEXT, PRIMARY KEY(id, chunk)) WITHOUT ROWID;
CREATE TABLE marks(id TEXT PRIMARY KEY, step INTEGER, trained_tokens INTEGER, chunk INTEGER, at INTEGER) WITHOUT ROWID;
CREATE TABLE fates(id TEXT PRIMARY KEY, group_id TEXT, reason TEXT) WITHOUT ROWID;
CREATE TABLE notes(id TEXT PRIMARY KEY, trajectory TEXT, place TEXT, text TEXT, author TEXT, at REAL) WITHOUT ROWID;
CREATE TABLE tools(name TEXT, seq INTEGER, PRIMARY KEY(name, seq)) WITHOUT ROWID;
CREATE TABLE trajectories(
  seq INTEGER PRIMARY KEY AUTOINCREMENT, revision INTEGER, id TEXT UNIQUE, chunk INTEGER, at INTEGER,
  phase TEXT, group_id TEXT, task_id TEXT, step INTEGER, outcome TEXT, reward REAL, solved INTEGER, parts TEXT,
  findings INTEGER, turns INTEGER, calls INTEGER, sampled_tokens INTEGER, total_tokens INTEGER,
  oldest_version INTEGER, newest_version INTEGER, worker TEXT, begun_at REAL, ended_at REAL, seconds REAL,
  tools TEXT, "limit" TEXT, trained_tokens INTEGER, dropped TEXT,
  reward_key REAL, step_key INTEGER
);
CREATE INDEX tools_of ON tools(seq);
CREATE INDEX marks_in ON marks(chunk);
CREATE INDEX fates_of ON fates(group_id);
CREATE INDEX notes_of ON notes(trajectory);
CREATE VIRTUAL TABLE said USING fts5(
  instruction, final, calls, findings, notes, tokenize = "unicode61 remove_diacritics 2"
);
"""
_INDEXED = (
    "revision", "chunk", "phase", "group_id", "task_id", "outcome", "solved", "dropped", "step_key", "reward_key",
    "turns", "sampled_tokens", "seconds", "ended_at", "newest_version", "oldest_version",
)  # fmt: skip
"""Each also holds `seq`, as every index of SQLite does: a page by one of them is one walk along it."""
_FIGURES = (
    "outcome", "phase", "solved", "step_key", "reward_key", "turns", "calls", "sampled_tokens", "total_tokens",
    "seconds", "oldest_version", "newest_version", "task_id", "group_id", "dropped", "ended_at",
)  # fmt: skip
"""What is counted, spread over bins and sorted, in one index: a tenth of the table, which is not read for it."""


class Index:
    """The index of the archive in `directory`. Use it from any thread; each has a connection of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._scratch: Scratch | None = None
        self._opening = threading.RLock()
        self._mine = threading.local()
        self._all: list[sqlite3.Connection] = []
        self.path = directory / "index.sqlite"
        self.was_there = directory.exists()
        """Whether there was an archive when this was opened; else the index is empty, and this process's alone."""
        if not self.was_there or not os.access(directory, os.W_OK):
            self._use_scratch()
        self.rebuilt = 0
        """How often a file that was of no use was put away."""

    def connection(self) -> sqlite3.Connection:
        """This thread's, to the file that is there now; made where there is none that is of use."""
        found: tuple[sqlite3.Connection, int] | None = getattr(self._mine, "found", None)
        if found is not None and found[1] == self._inode():
            return found[0]
        with self._opening:
            try:
                made = self._opened()
            except (OSError, sqlite3.OperationalError) as error:
                self.leave(error)  # a file system that is full, or read-only whatever the rights say
                made = self._opened()
            self._mine.found = made, self._inode()
            return made

    def leave(self, why: OSError | sqlite3.OperationalError) -> None:
        """Where the file is cannot be written: the next connection makes one that is this process's alone. Raises `why`
        where that is no help."""
        with self._opening:
            if self._scratch is not None or not _is_unwritable(why):
                raise why
            self._use_scratch()

    def put_away(self, why: Exception) -> None:
        """The file is damaged: the next connection makes a new one. Raises `why` where that has not helped before."""
        self.rebuilt += 1
        if self.rebuilt > MOST_REBUILT:
            raise why
        found = getattr(self._mine, "found", None)
        with self._locked(FILL_S):
            if found is not None and found[1] == self._inode():  # or another process has made a new one by now
                self._remove()

    @contextlib.contextmanager
    def filling(self, patience_s: float = 0.0) -> Generator[sqlite3.Connection | None]:
        """The connection, for the one process that fills the index now; None where another does. With `patience_s` that
        one is waited for: raises DeadlineExceeded.
        """
        connection = self.connection()
        with self._locked(patience_s) as held:
            yield connection if held else None

    def close(self) -> None:
        with self._opening:
            for connection in self._all:
                connection.close()
            self._all.clear()
            self._mine = threading.local()
            if self._scratch is not None:
                self._scratch.remove()

    @contextlib.contextmanager
    def _locked(self, patience_s: float) -> Generator[bool]:
        with self.path.with_name("index.lock").open("ab") as file:
            held = wait_for(file.fileno(), scaled(patience_s)) if patience_s else try_hold(file.fileno())
            if patience_s and not held:
                raise DeadlineExceeded(f"another process to fill {self.path}", scaled(patience_s))
            yield held

    def _use_scratch(self) -> None:
        self._scratch = Scratch("etude-archive-index-")
        self.path = self._scratch.path / "index.sqlite"

    def _inode(self) -> int:
        try:
            return self.path.stat().st_ino
        except FileNotFoundError:
            return 0

    def _opened(self) -> sqlite3.Connection:
        made = self._connected()
        if _is_of_use(made):
            return made
        made.close()
        with self._locked(FILL_S):
            made = self._connected()
            if not _is_of_use(made):  # nobody has made it meanwhile
                made.close()
                self._remove()
                made = self._connected()
                made.execute("PRAGMA journal_mode = WAL")
                made.execute("PRAGMA synchronous = NORMAL")
                made.executescript(_script())
            return made

    def _connected(self) -> sqlite3.Connection:
        made = sqlite3.connect(self.path, timeout=BUSY_S, check_same_thread=False, isolation_level=None)
        self._all.append(made)
        return made

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def _is_of_use(made: sqlite3.Connection) -> bool:
    """Whether it is an index of this format."""
    try:
        made.execute("PRAGMA trusted_schema = OFF")  # a run may have been copied from anywhere
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("PRAGMA synchronous = NORMAL")
        if _schema_of(made) != _schema():  # what stands for a table in a stranger's may never come to an end
            return False
        return made.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == (FORMAT,)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
        return False


def is_damage(error: Exception) -> bool:
    """Whether it comes of what is in the file; else of the question, or of a disk that is busy or full. SQLite's own
    words are no UTF-8 where they quote what is damaged."""
    if isinstance(error, sqlite3.OperationalError):
        return any(words in str(error) for words in ("Could not decode", "unsupported file format"))
    return type(error) is sqlite3.DatabaseError or isinstance(error, ValueError)


def _schema_of(made: sqlite3.Connection) -> set[tuple[str, str, str | None]]:
    return set(made.execute("SELECT type, name, sql FROM sqlite_master"))


@cache
def _schema() -> set[tuple[str, str, str | None]]:
    """Of every index of this format."""
    with contextlib.closing(sqlite3.connect(":memory:")) as made:
        made.executescript(_script())
        return _schema_of(made)


def _script() -> str:
    """All tables, made at once or not at all."""
    indexes = "".join(f"CREATE INDEX by_{name} ON trajectories({name});\n" for name in _INDEXED)
    indexes += f"CREATE INDEX figures ON trajectories({', '.join(_FIGURES)});\n"
    known = f"INSERT INTO meta VALUES ('format', {FORMAT}), ('name', '{secrets.token_hex(6)}'), ('revision', 0);\n"
    return f"BEGIN IMMEDIATE;\n{_TABLES}{indexes}{known}COMMIT;"


def _is_unwritable(error: OSError | sqlite3.OperationalError) -> bool:
    return isinstance(error, OSError) or any(words in str(error) for words in _UNWRITABLE)


_UNWRITABLE = ("readonly", "unable to open", "is full", "disk I/O error")


def plain(text: str) -> str:
    """As SQLite can have it: no lone surrogate, no NUL, which would end it."""
    safe = text if text.isascii() else text.encode("utf-8", "replace").decode()
    return safe.replace("\0", " ")
