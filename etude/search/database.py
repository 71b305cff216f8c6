"""The store's SQLite file: opened, looked at, read and written a transaction at a time, begun anew where it is damaged.

Owns `Database`, `Damaged` and the tables. Who has the file open shares a lock on a file beside it. It is begun anew
only by who has that lock alone: SQLite removes its log by its name, and so would remove the new one's. The file is
never opened but by SQLite: closing another descriptor of it would drop the locks of this whole process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import stat
import zlib
from collections.abc import Generator
from functools import cache
from pathlib import Path

from etude.errors import ConfigError
from etude.host.lock import share, share_within, try_hold
from etude.search.postings import SCHEMA

_VERSION = 3
_TABLES = f"""
BEGIN IMMEDIATE;
DROP TABLE IF EXISTS trees;
CREATE TABLE IF NOT EXISTS contents (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, flags INTEGER NOT NULL, first INTEGER NOT NULL,
    count INTEGER NOT NULL, pieces BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS workspaces (
    id INTEGER PRIMARY KEY, place BLOB NOT NULL UNIQUE, commit_id TEXT NOT NULL, used REAL NOT NULL);
CREATE TABLE trees (
    workspace INTEGER NOT NULL, path BLOB NOT NULL, stamp TEXT NOT NULL, content INTEGER NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (workspace, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (next_content INTEGER NOT NULL, next_piece INTEGER NOT NULL, forgotten INTEGER);
INSERT INTO counters SELECT 1, 1, 0 WHERE NOT EXISTS (SELECT * FROM counters);
CREATE TABLE IF NOT EXISTS vectors (
    embedder TEXT NOT NULL, content INTEGER NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS vectors_by_content ON vectors (embedder, content);
{SCHEMA}
PRAGMA user_version = {_VERSION};
COMMIT;
"""
"""Also for a file of an earlier schema: it keeps its contents, and learns anew which file has which."""
_COLUMNS = (
    "SELECT made.name, its.name FROM sqlite_schema AS made, pragma_table_info(made.name) AS its "
    "WHERE made.type = 'table'"
)
_OTHER_SHAPE = re.compile(r"no such (table|column)|has no column|has \d+ columns|Could not decode")
"""In what SQLite calls operational: the file is not as it was made, and making room would not help."""
_PATIENCE_S = 60.0
_CHECKPOINT_PAGES = 8000
"""The log's 32 MB: what a question brought is not copied right after it."""
_RENEWED_S = 10.0
"""Another process removes a damaged file within so long."""
_ELSEWHERE = "XDG_CACHE_HOME names another place"


class Damaged(Exception):
    """The file is not what was written: it is to be made anew."""


class Database:
    """`path` None: in memory. Raises ConfigError where none can be kept, and Damaged; with `anew` it begins anew."""

    def __init__(self, path: Path | None, anew: bool = False) -> None:
        self.path = path
        self._lock: int | None = None
        try:
            if anew:
                self._begin_anew()
            self.connection = self._opened()
        except BaseException:
            self._let_go()
            raise

    def __del__(self) -> None:
        self._let_go()

    def close(self) -> None:
        self.connection.close()
        self._let_go()

    def renew(self) -> None:
        """Begin anew with nothing. Raises ConfigError where others have the file open."""
        self.connection.close()
        if self.path is not None:
            self._begin_anew()
        self.connection = self._opened()

    @contextlib.contextmanager
    def told(self) -> Generator[None]:
        """What SQLite says as ConfigError or Damaged."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if _OTHER_SHAPE.search(str(error)):
                raise Damaged(str(error)) from None
            raise ConfigError(f"{self.path}: {error}; `etude index gc` makes room, {_ELSEWHERE}") from None
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except (sqlite3.DatabaseError, zlib.error) as error:
            raise Damaged(str(error)) from None

    @contextlib.contextmanager
    def reading(self) -> Generator[None]:
        """All that is read belongs together, whatever others write or forget meanwhile."""
        with self.told():
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def writing(self) -> Generator[None]:
        """All of it, or nothing."""
        with self.told():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def counters(self) -> tuple[int, int, int]:
        """The numbers of the next content and the next piece, and how often something was forgotten."""
        return _counters(self.connection)

    def _opened(self) -> sqlite3.Connection:
        if self.path is None:
            return _made(sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None))
        try:
            handle = self._locked(self.path)
            if not share_within(handle, _RENEWED_S):
                raise OSError(errno.EAGAIN, f"another process has begun it anew for {_RENEWED_S:.0f} s")
            _touch(self.path)
            db = sqlite3.connect(self.path, timeout=_PATIENCE_S, check_same_thread=False, isolation_level=None)
            try:
                return _looked_at(_made(db))
            except BaseException:
                db.close()
                raise
        except OSError as error:
            raise self._impossible(error) from None
        except sqlite3.OperationalError as error:
            if _OTHER_SHAPE.search(str(error)):
                raise Damaged(str(error)) from None
            raise self._impossible(error) from None
        except sqlite3.DatabaseError as error:
            raise Damaged(str(error)) from None

    def _begin_anew(self) -> None:
        assert self.path is not None, "what is in memory is not begun anew"
        try:
            handle = self._locked(self.path)
            if not try_hold(handle):
                self._let_go()
                raise ConfigError(f"{self.path}: is damaged, and made anew when no other process has it open any more")
            for ending in ("", "-wal", "-shm"):
                Path(f"{self.path}{ending}").unlink(missing_ok=True)
            share(handle)
        except OSError as error:
            raise self._impossible(error) from None

    def _locked(self, path: Path) -> int:
        """The file whose lock is shared; not locked yet, where this object has not opened it before."""
        if self._lock is None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        return self._lock

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _impossible(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.path}: no index can be kept there: {error}; {_ELSEWHERE}")


def _touch(path: Path) -> None:
    """Make the file, for nobody else to read, where there is none; never open one that is there."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(errno.ELOOP, "it is a link, or no file") from None


def _made(db: sqlite3.Connection) -> sqlite3.Connection:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    [version] = db.execute("PRAGMA user_version").fetchone()
    if version > _VERSION:
        raise Damaged(f"it is of another Etude's version, {version}")
    if version != _VERSION:
        db.executescript(_TABLES)
    return db


def _looked_at(db: sqlite3.Connection) -> sqlite3.Connection:
    """Raises Damaged where something is not there that every such file has."""
    if lacking := sorted(_columns() - set(db.execute(_COLUMNS))):
        raise Damaged(f"it lacks {'.'.join(lacking[0])}")
    last = db.execute("SELECT coalesce(max(id), 0) FROM contents").fetchone()[0]
    if _counters(db)[0] <= last:
        raise Damaged("a number would be given twice")
    return db


@cache
def _columns() -> frozenset[tuple[str, str]]:
    with contextlib.closing(_made(sqlite3.connect(":memory:", isolation_level=None))) as db:
        return frozenset(db.execute(_COLUMNS))


def _counters(db: sqlite3.Connection) -> tuple[int, int, int]:
    rows = db.execute("SELECT next_content, next_piece, forgotten FROM counters").fetchall()
    if len(rows) != 1 or not all(type(number) is int for number in rows[0]):
        raise Damaged("its counters are not there")
    return rows[0]
