"""One SQLite file a user, in which every file's content is taken in once.

Owns `Store`: contents by their key, with their pieces, words and grams (`postings`) and the vectors of their pieces,
and for each workspace which path has which content, and the stamp by which that is known. Worktrees, forks and restarts
find their contents there; a branch that comes back does too. The file is a cache (`database`). One process writes at a
time and every batch is a transaction of a write-ahead log, so who is killed leaves it as it was before or after; what
is damaged is told by `Damaged`, and `renew` begins anew. It holds words and line numbers of a user's files, no lines,
and nobody else can read it.
"""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.host.home import index_directory
from etude.search.base import Vectors
from etude.search.content import Content
from etude.search.database import Damaged, Database
from etude.search.postings import DEFINED, GRAM, WORD, Keep, Numbers, Postings, Tags, rows_of, rows_of_grams

_FILE_VERSION = 3
ROW_BYTES = 16
"""Of what is known of a piece: four numbers of 32 bits, the least byte first."""
_PLAIN, _ODD, _LONG = 1, 2, 4
_MOST_AT_ONCE, _SPARSE = 500, 3
_OF_EMBEDDER = "FROM vectors WHERE embedder = ? AND"
_ENDINGS = ("", "-wal", "-shm", ".lock")
"""Of the names of one store's files."""


class Known(NamedTuple):
    """A path's content, and the stamp that the file had when it was read."""

    stamp: str
    content: int


class Facts(NamedTuple):
    """Of a content: its number, whether it is ASCII alone, odd or long (`content.Content`), the number of its first
    piece, and of each a row: first line, end, how many words, and the number of its text."""

    number: int
    plain: bool
    odd: bool
    long: bool
    first: int
    pieces: bytes


@dataclass(frozen=True)
class StoreStatus:
    """What lies in a store."""

    path: str
    bytes: int
    contents: int
    pieces: int
    workspaces: int


def default_path() -> Path:
    """Where it lies when nobody says otherwise."""
    return index_directory() / f"index-{_FILE_VERSION}.sqlite"


def forget_earlier(path: Path) -> None:
    """Remove the stores that earlier versions kept beside it: nothing reads them."""
    for version in range(1, _FILE_VERSION):
        for ending in _ENDINGS:
            path.with_name(f"index-{version}.sqlite{ending}").unlink(missing_ok=True)


class Store:
    """See the module. `path` None: in memory, for as long as this object lives, and without grams."""

    def __init__(self, path: Path | None, anew: bool = False) -> None:
        """With `anew` what lies there is removed first, as by `renew`."""
        self.path = path
        self.grams = path is not None
        self._database = Database(path, anew)
        self._postings = Postings(self._db)

    def close(self) -> None:
        self._database.close()

    def renew(self) -> None:
        """Begin anew with nothing. Raises ConfigError where others have the file open."""
        self._database.renew()
        self._postings = Postings(self._db)

    def reading(self) -> AbstractContextManager[None]:
        """All that is read within belongs together, whatever others write or forget meanwhile."""
        return self._database.reading()

    # --- contents -----------------------------------------------------------------------------------------------------

    def known(self, keys: Sequence[bytes]) -> set[bytes]:
        """Those that need not be taken in."""
        with self._told():
            return {key for (key,) in self._in("SELECT key FROM contents WHERE key IN ({})", keys)}

    def take(
        self, place: str, batch: Mapping[bytes, Content], files: Mapping[str, tuple[str, bytes]],
        gone: Sequence[str] = (), commit: str = "", vectors: Mapping[bytes, Vectors] | None = None, embedder: str = "",
    ) -> dict[str, Known]:  # fmt: skip
        """In one transaction: contents, those files of a workspace that have changed, each with its stamp and the key
        of its content, and those that are gone; and vectors of contents, by their key, as an embedder of that name
        made them. A `commit` that is not said stays as it was. What the files are now."""
        with self._writing():
            ids = dict(self._in("SELECT key, id FROM contents WHERE key IN ({})", [key for _, key in files.values()]))
            ids.update(self._insert({key: content for key, content in batch.items() if key not in ids}))
            known = {path: Known(stamp, ids[key]) for path, (stamp, key) in files.items() if key in ids}
            near = [(embedder, ids[key], _packed(each)) for key, each in (vectors or {}).items() if key in ids]
            self._db.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", near)
            number = self._workspace(place, commit)
            rows = [(number, _encoded(path)) for path in {*gone, *(files.keys() - known.keys())}]
            self._db.executemany("DELETE FROM trees WHERE workspace = ? AND path = ?", rows)
            tree = [_row(number, _encoded(path), each) for path, each in known.items()]
            self._db.executemany("INSERT OR REPLACE INTO trees VALUES (?, ?, ?, ?, ?)", tree)
            return known

    def find(self, term: bytes) -> tuple[Numbers, Tags]:
        """Where a term stands (`postings`), in whatever workspace."""
        with self._told():
            return self._postings.find(term)

    def sizes(self, terms: Sequence[bytes]) -> dict[bytes, int]:
        """How much there is to read of each, of those that there are."""
        with self._told():
            return self._postings.sizes(terms)

    def facts(self, ids: Sequence[int]) -> dict[int, Facts]:
        """Of these contents."""
        with self._told():
            rows = self._of("SELECT id, flags, first, pieces FROM contents WHERE", "id", ids)
            return {
                number: Facts(
                    number, bool(flags & _PLAIN), bool(flags & _ODD), bool(flags & _LONG), first, _verified(pieces)
                )
                for number, flags, first, pieces in rows
            }

    def embedded(self, embedder: str, ids: Sequence[int]) -> set[int]:
        """Those of these contents that have vectors of an embedder."""
        with self._told():
            return {number for (number,) in self._of(f"SELECT content {_OF_EMBEDDER}", "content", ids, embedder)}

    def embedded_keys(self, embedder: str, keys: Sequence[bytes]) -> set[bytes]:
        """The same by their keys."""
        with self._told():
            words = "SELECT key FROM vectors JOIN contents ON content = id WHERE embedder = ? AND key IN ({})"
            return {key for (key,) in self._in(words, keys, embedder)}

    def vectors(self, embedder: str, ids: Sequence[int]) -> dict[int, Vectors]:
        """Of the pieces of these contents, where an embedder made them."""
        with self._told():
            rows = self._of(f"SELECT content, data {_OF_EMBEDDER}", "content", ids, embedder)
            return {number: _matrix(data) for number, data in rows}

    def _insert(self, new: Mapping[bytes, Content]) -> dict[bytes, int]:
        number, piece, _ = self._database.counters()
        words: dict[str, tuple[list[int], list[int]]] = {}
        defined: dict[str, tuple[list[int], list[int]]] = {}
        rows, grams, numbers = [], [], {}
        for key, content in new.items():
            rows_of_pieces = zip(content.pieces, content.texts, strict=True)
            table = [(each.first, each.end, each.words.total(), text) for each, text in rows_of_pieces]
            packed = _summed(np.array(table, "<u4").tobytes())
            flags = _PLAIN * content.plain | _ODD * content.odd | _LONG * content.long
            rows.append((number, key, flags, piece, len(table), packed))
            grams.append((number, content.grams))
            numbers[key] = number
            for each in content.pieces:
                for found, counted in ((words, each.words), (defined, each.defined)):
                    for word, times in counted.items():
                        if (rows_of_word := found.get(word)) is None:
                            found[word] = ([piece], [times])
                        else:
                            rows_of_word[0].append(piece)
                            rows_of_word[1].append(times)
                piece += 1
            number += 1
        if rows:
            self._db.execute("UPDATE counters SET next_content = ?, next_piece = ?", (number, piece))
            self._db.executemany("INSERT INTO contents VALUES (?, ?, ?, ?, ?, ?)", rows)
            terms = [*rows_of(WORD, words), *rows_of(DEFINED, defined), *rows_of_grams(grams if self.grams else [])]
            self._postings.add(len(rows), terms)
        return numbers

    # --- workspaces ---------------------------------------------------------------------------------------------------

    def tree(self, place: str) -> dict[str, Known]:
        """The paths of a workspace, as they were when it was last looked at."""
        with self._told():
            words = "SELECT path, stamp, content, checksum FROM trees JOIN workspaces ON workspace = id WHERE place = ?"
            found = {}
            for path, stamp, content, checksum in self._db.execute(words, (_encoded(place),)):
                if _checksum(path, stamp, content) != checksum:
                    raise Damaged("a row of a tree is torn")
                found[_decoded(path)] = Known(stamp, content)
            return found

    def commit_of(self, place: str) -> str:
        """The commit that a workspace stood at when it was last built; "" where that is not known."""
        with self._told():
            row = self._db.execute("SELECT commit_id FROM workspaces WHERE place = ?", (_encoded(place),)).fetchone()
            return row[0] if row else ""

    def forgotten(self) -> int:
        """A number that changes when anything was forgotten: what was read of a tree before may be gone."""
        with self._told():
            return self._database.counters()[2]

    def _workspace(self, place: str, commit: str) -> int:
        self._db.execute(
            "INSERT INTO workspaces (place, commit_id, used) VALUES (?, ?, ?) ON CONFLICT (place) DO UPDATE SET "
            "used = excluded.used, commit_id = CASE excluded.commit_id WHEN '' THEN commit_id "
            "ELSE excluded.commit_id END",
            (_encoded(place), commit, time.time()),
        )
        return self._db.execute("SELECT id FROM workspaces WHERE place = ?", (_encoded(place),)).fetchone()[0]

    # --- size ---------------------------------------------------------------------------------------------------------

    def status(self) -> StoreStatus:
        with self._told():
            [(contents, pieces)] = self._db.execute("SELECT count(*), coalesce(sum(count), 0) FROM contents")
            [(workspaces,)] = self._db.execute("SELECT count(*) FROM workspaces")
            return StoreStatus(str(self.path or ""), self.size(), contents, pieces, workspaces)

    def size(self) -> int:
        """Bytes of the database, without pages that are free again."""
        with self._told():
            names = ("page_size", "page_count", "freelist_count")
            size, pages, free = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
            return size * (pages - free)

    def collect(self, most_bytes: int, here: str = "") -> bool:
        """Make room: workspaces that are gone first; then, while it is larger than it may be, contents that no
        workspace has, and the workspaces that were used longest ago, `here` last. Whether anything went."""
        with self._told():
            rows = self._db.execute("SELECT place FROM workspaces ORDER BY used").fetchall()
        places = [_decoded(place) for (place,) in rows]
        lost = [place for place in places if not os.path.isdir(place)]
        left = [place for place in places if place not in lost]
        left.sort(key=lambda place: place == here)
        went = self._forget(lost) if lost else False
        if self.size() > most_bytes:
            went |= self._forget([])
        while self.size() > most_bytes and left:
            went |= self._forget([left.pop(0)])
        return went

    def _forget(self, places: Sequence[str]) -> bool:
        """These workspaces, and all contents that none has."""
        with self._writing():
            for place in map(_encoded, places):
                own = "(SELECT id FROM workspaces WHERE place = ?)"
                self._db.execute(f"DELETE FROM trees WHERE workspace = {own}", (place,))
                self._db.execute("DELETE FROM workspaces WHERE place = ?", (place,))
            removed = self._db.execute("DELETE FROM contents WHERE id NOT IN (SELECT content FROM trees)").rowcount
            self._db.execute("DELETE FROM vectors WHERE content NOT IN (SELECT id FROM contents)")
            if removed:
                self._postings.compact(self._keep())
            self._db.execute("UPDATE counters SET forgotten = forgotten + 1")
        with self._told():
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return removed > 0 or bool(places)

    def _keep(self) -> Callable[[bytes], Keep]:
        """Which numbers of a kind of term are still of a content."""
        rows = self._db.execute("SELECT id, first, count FROM contents ORDER BY id").fetchall()
        ids, firsts, counts = np.array(rows, np.int64).reshape(-1, 3).T

        def of_contents(numbers: Numbers) -> NDArray[np.bool_]:
            return np.isin(numbers, ids)

        def of_pieces(numbers: Numbers) -> NDArray[np.bool_]:
            if not len(firsts):
                return np.zeros(len(numbers), bool)
            at = np.searchsorted(firsts, numbers, "right") - 1
            return (at >= 0) & (numbers < (firsts + counts)[at])

        return lambda kind: of_contents if kind == GRAM else of_pieces

    # --- the database -------------------------------------------------------------------------------------------------

    @property
    def _db(self) -> sqlite3.Connection:
        return self._database.connection

    def _told(self) -> AbstractContextManager[None]:
        return self._database.told()

    def _writing(self) -> AbstractContextManager[None]:
        return self._database.writing()

    def _of(self, words: str, column: str, numbers: Sequence[int], *first: Any) -> Iterator[Any]:
        """The rows whose `column` has one of these numbers. Those of most that there are, as of a whole workspace, are
        read in one go."""
        if not numbers or _SPARSE * len(numbers) < max(numbers) - min(numbers):
            yield from self._in(f"{words} {column} IN ({{}})", numbers, *first)
            return
        wanted = set(numbers)
        bounds = f"{words} {column} BETWEEN ? AND ?"
        for row in self._db.execute(bounds, [*first, min(numbers), max(numbers)]):
            if row[0] in wanted:
                yield row

    def _in(self, words: str, values: Sequence[Any], *first: Any) -> Iterator[Any]:
        """The rows for all values, some at a time; `first` stands before them in the words."""
        for start in range(0, len(values), _MOST_AT_ONCE):
            some = values[start : start + _MOST_AT_ONCE]
            yield from self._db.execute(words.format(",".join("?" * len(some))), [*first, *some])


def _row(workspace: int, path: bytes, known: Known) -> tuple[int, bytes, str, int, int]:
    """Which content a path has is in no other place: a grep that believed a wrong one would miss a file."""
    return workspace, path, *known, _checksum(path, *known)


def _checksum(path: bytes, stamp: str, content: int) -> int:
    return zlib.crc32(stamp.encode(), zlib.crc32(path, content & 0xFFFFFFFF))


def _encoded(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _decoded(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _summed(data: bytes) -> bytes:
    """Behind a checksum: numbers in no order do not tell that one was damaged."""
    return zlib.crc32(data).to_bytes(4, "big") + data


def _verified(summed: bytes) -> bytes:
    data = summed[4:]
    if zlib.crc32(data).to_bytes(4, "big") != summed[:4]:
        raise Damaged("what is known of a content is torn")
    return data


def _packed(vectors: Vectors) -> bytes:
    """How wide they are, and they."""
    return _summed(vectors.shape[1].to_bytes(4, "big") + vectors.tobytes())


def _matrix(packed: bytes) -> Vectors:
    data = _verified(packed)
    return np.frombuffer(data, np.int8, offset=4).reshape(-1, max(int.from_bytes(data[:4], "big"), 1))
