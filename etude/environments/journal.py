"""What the environment server must still know after it was killed: its requests, by key, and its sandboxes.

Owns one SQLite file. A request is written down before it is begun and again, with its answer, when it has ended; a
sandbox when it is there and when it is gone. What a killed server left begun is found by `recover`. Answers are kept
for a time and up to a size, the oldest forgotten first; a key that was forgotten is a new one. Nothing here waits for
the disk: what was committed survives a killed process, the last moments before a power cut may be lost.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.environments.wire import ServerError, answer_of
from etude.errors import ConfigError
from etude.host.lock import hold
from etude.serving.wire import Answer

_TABLES = """
CREATE TABLE IF NOT EXISTS requests (key TEXT PRIMARY KEY, digest TEXT NOT NULL, began REAL NOT NULL, status INTEGER,
    body BLOB, size INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS requests_by_age ON requests (began);
CREATE TABLE IF NOT EXISTS sandboxes (id TEXT PRIMARY KEY, facts TEXT NOT NULL, born REAL NOT NULL, state TEXT NOT NULL,
    ended REAL, why TEXT);
CREATE INDEX IF NOT EXISTS sandboxes_by_state ON sandboxes (state);
"""
_PRUNE_EVERY = 256
ALIVE = "alive"


@dataclass(frozen=True)
class RecordedAnswer:
    """A request the journal knows. `answer` is None while it is under way."""

    digest: str
    answer: Answer | None


@dataclass(frozen=True)
class JournalEntry:
    """A sandbox the journal knows. `state` is alive, or the kind of error it is to ask for it now."""

    id: str
    facts: dict[str, Any]
    born: float
    state: str
    ended: float | None
    why: str | None


class Journal:
    """One server's; a second one on the same directory is refused. Use on one thread; the caller closes it."""

    def __init__(self, directory: Path, keep_s: float, keep_mb: int) -> None:
        self._keep_s, self._keep, self._directory = keep_s, keep_mb << 20, directory
        self._lock = _lock(directory / "lock")
        try:
            self._db = sqlite3.connect(directory / "journal.sqlite", isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
        except sqlite3.OperationalError as error:
            os.close(self._lock)
            raise ConfigError(f"state_dir: {directory / 'journal.sqlite'}: {error}; make room there") from None
        self._finished = 0
        self._opened = time.time() - time.monotonic()

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def recover(self) -> list[JournalEntry]:
        """End what a killed server left: requests begun as interrupted; sandboxes, which are returned, as lost."""
        cut = answer_of(
            ServerError("interrupted", "the server was killed while it was at this; try again, with a new key")
        )
        self._execute(
            "UPDATE requests SET status = ?, body = ?, size = ? WHERE status IS NULL",
            (cut.status, cut.body, len(cut.body)),
        )
        lost = [row[0] for row in self._execute("SELECT id FROM sandboxes WHERE state = ?", (ALIVE,))]
        for name in lost:
            self.record_ended(name, "lost", "the server it lived on was killed")
        self._prune()
        return [past for name in lost if (past := self.entry(name)) is not None]

    # requests -----------------------------------------------------------------------------------------------------

    def find(self, key: str) -> RecordedAnswer | None:
        row = self._execute("SELECT digest, status, body FROM requests WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        return RecordedAnswer(row[0], None if row[1] is None else Answer(row[1], row[2]))

    def begin(self, key: str, digest: str) -> None:
        self._execute("INSERT INTO requests (key, digest, began) VALUES (?, ?, ?)", (key, digest, self._now()))

    def finish(self, key: str, answer: Answer) -> None:
        self._execute(
            "UPDATE requests SET status = ?, body = ?, size = ? WHERE key = ?",
            (answer.status, answer.body, len(answer.body), key),
        )
        self._finished += 1
        if self._finished % _PRUNE_EVERY == 0:
            self._prune()

    def forget(self, key: str) -> None:
        """As if it had never come: for what was refused before anything was done."""
        self._execute("DELETE FROM requests WHERE key = ?", (key,))

    def _prune(self) -> None:
        before = self._now() - self._keep_s
        self._execute("DELETE FROM requests WHERE status IS NOT NULL AND began < ?", (before,))
        self._execute("DELETE FROM sandboxes WHERE ended IS NOT NULL AND ended < ?", (before,))
        (held,) = self._execute("SELECT coalesce(sum(size), 0) FROM requests").fetchone()
        oldest = self._execute("SELECT key, size FROM requests WHERE status IS NOT NULL ORDER BY began")
        for key, size in oldest.fetchall() if held > self._keep else ():
            if held <= self._keep:
                break
            self.forget(key)
            held -= size

    # sandboxes ----------------------------------------------------------------------------------------------------

    def record_created(self, name: str, facts: dict[str, Any]) -> None:
        self._execute(
            "INSERT INTO sandboxes (id, facts, born, state) VALUES (?, ?, ?, ?)",
            (name, json.dumps(facts), self._now(), ALIVE),
        )

    def record_ended(self, name: str, state: str, why: str) -> None:
        self._execute(
            "UPDATE sandboxes SET state = ?, ended = ?, why = ? WHERE id = ?", (state, self._now(), why, name)
        )

    def entry(self, name: str) -> JournalEntry | None:
        query = "SELECT id, facts, born, state, ended, why FROM sandboxes WHERE id = ?"
        row = self._execute(query, (name,)).fetchone()
        return None if row is None else JournalEntry(row[0], json.loads(row[1]), *row[2:])

    # ----------------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        """Seconds since 1970 as of when it was opened: who sets the clock meanwhile makes it forget nothing."""
        return self._opened + time.monotonic()

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Raises ServerError where the disk does not take it, or does not give it."""
        try:
            return self._db.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise ServerError(
                "unwritable",
                f"the environment server cannot write to its state directory {self._directory}: {error}; make room "
                "there, or let it be written to, and ask again",
            ) from None


def _lock(path: Path) -> int:
    """Hold a file for as long as this process lives."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        hold(handle)
    except OSError as error:
        os.close(handle)
        raise ConfigError(
            f"state_dir: another environment server uses {path.parent} ({error.strerror}); stop it or name another"
        ) from None
    return handle
